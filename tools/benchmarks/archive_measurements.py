"""What is measured of archives: reads by all ways in turns, and the opening of an archive of very many entries."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import memory
from archive_files import MANY, WRITERS, read_anew, write_folder
from archive_jobs import WAYS
from measurements import say
from probe import Probe

#: Reads by ours, and by the stock way that they are compared with.
STOCK_OF = {'tar': 'tarfile', 'rec': 'tarfile', 'zip': 'zipfile', 'zip-no-crc': 'zipfile'}
#: Ways to open an archive of very many entries. (CRC makes no difference there.)
OPENED = ('zipfile', 'zip', 'tarfile-dict', 'tar')
Cell = Tuple[str, int]  # of a size, and a number of workers


class WaysDifferError(RuntimeError):
    """Two ways did not read the same bytes: their figures mean nothing."""


@dataclass
class Reads:
    """Reads a second.

    Attributes:
        rates: of each way and cell, of each pass.
        memory: MB that a worker of each way has gained by opening and reading all sizes.
    """

    rates: Dict[str, Dict[Cell, List[float]]] = field(default_factory=dict)
    memory: Dict[str, memory.Memory] = field(default_factory=dict)

    def rate(self, way: str, cell: Cell) -> float:
        """Reads a second of all workers together."""
        return median(self.rates[way][cell])

    def ratio(self, way: str, other: str, cell: Cell) -> float:
        """How many times as fast ``way`` is as ``other``: the median of the passes'."""
        return median(one / base for one, base in zip(self.rates[way][cell], self.rates[other][cell]))

    def ratios(self, way: str, other: str) -> List[float]:
        """Those of all cells; none if one of the two was not measured."""
        return [self.ratio(way, other, cell) for cell in self.rates[way]] if {way, other} <= set(self.rates) else []


@contextlib.contextmanager
def sources(folder: Path, ways: Sequence[str], count: int, sizes: Sequence[int]) -> Iterator[Dict[str, Dict[str, str]]]:
    """What each way reads of each size (in kB, as a text); it is removed at the end."""
    made: Dict[str, Dict[str, str]] = {way: {} for way in ways}
    for size in sizes:
        say(f'writing {count} images of {size} kB, as a folder and as archives')
        write_folder(folder / f'{size}', count, size)
        paths = {'folder': folder / f'{size}'}
        for kind in {WAYS[way].source for way in ways} - {'folder'}:
            paths[kind] = folder / f'{size}.{kind}'
            WRITERS[kind](folder / f'{size}', paths[kind])
        for path in paths.values():
            read_anew(path)
        for way in ways:
            made[way][f'{size}'] = str(paths[WAYS[way].source])
    try:
        yield made
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def measure_reads(
    folder: Path,
    ways: Sequence[str],
    *,
    count: int,
    sizes: Sequence[int],
    workers: Sequence[int],
    repeats: int,
    seconds: float,
) -> Reads:
    """All ways in turns: each pass of each cell by all of them, every time in another order.

    Raises:
        WaysDifferError: they do not read the same.
        ProbeError: a measured process failed.
    """
    cells = [(f'{size}', number) for size in sizes for number in workers]
    passes = [cell for _ in range(repeats) for cell in cells]
    settings = {'workers': max(workers), 'passes': passes, 'seconds': seconds, 'count': count}
    result = Reads(rates={way: {cell: [] for cell in cells} for way in ways})
    with sources(folder, ways, count, sizes) as made, contextlib.ExitStack() as stack:
        probes = {
            way: stack.enter_context(
                Probe(
                    'job',
                    module='archive_jobs',
                    function='reads',
                    way=way,
                    sources=made[way],
                    cache=str(folder / 'cache'),
                    **settings,
                )
            )
            for way in ways
        }
        before = {way: _of_each(probe.wait()['workers']) for way, probe in probes.items()}
        say('comparing what they read')
        _compare({way: probe.step()['digests'] for way, probe in probes.items()})
        for turn, cell in enumerate(passes):
            if turn % len(cells) == 0:
                say(f'pass {turn // len(cells) + 1}/{repeats}')
            for way in [*ways[turn % len(ways) :], *ways[: turn % len(ways)]]:
                result.rates[way][cell].append(probes[way].step()['rate'])
        for way, probe in probes.items():
            after = _of_each(probe.step()['workers'])
            result.memory[way] = _middle([now - then for now, then in zip(after, before[way])])
    return result


def _compare(digests: Dict[str, Dict[str, List[str]]]) -> None:
    first, known = next(iter(digests.items()))
    for way, found in digests.items():
        for size, of_workers in found.items():
            if set(of_workers) != set(known[size][:1]):
                raise WaysDifferError(
                    f'images of {size} kB: {WAYS[way].title} has not read the bytes that {WAYS[first].title} has'
                )


def _of_each(pids: Sequence[int]) -> List[memory.Memory]:
    return [memory.of_processes([pid]) for pid in pids]


def _middle(values: Sequence[memory.Memory]) -> memory.Memory:
    return memory.Memory(*(median(getattr(one, kind) for one in values) for kind in ('anonymous', 'uss', 'pss')))


# ---- archives of very many entries
@dataclass(frozen=True)
class Opened:
    """How an archive of very many entries was opened, by fresh processes.

    Attributes:
        build: seconds of the process that came first, which builds the index; 0 if there is none to be built.
        index: seconds to open the index alone; 0 likewise.
        index_uss: MB of private memory that this takes.
        first: seconds until the first entry is read.
        uss: MB of private memory by then.
        later_uss: ... when so many more have been read.
        us: microseconds of each of those reads.
    """

    build: float
    index: float
    index_uss: float
    first: float
    uss: float
    later_uss: float
    us: float


def measure_opening(
    folder: Path, ways: Sequence[str], *, entries: int, reads: int, repeats: int
) -> Iterator[Tuple[str, Opened]]:
    """Open an archive of each kind by the ways that read it. (Stock's are slow: once each.)

    Raises:
        ProbeError: a measured process failed, or has read something wrong.
    """
    for kind, write in MANY.items():
        mine = [way for way in OPENED if way in ways and WAYS[way].source == kind]
        if not mine:
            continue
        say(f'writing a {kind} of {entries:,} entries')
        source = folder / f'many.{kind}'
        write(source, entries)
        settings = {'source': str(source), 'cache': str(folder / 'cache')}
        for way in mine:
            say(f'opening it: {WAYS[way].title}')
            task = {'function': 'opening', 'way': way, 'count': entries, 'reads': reads, **settings}
            ours = way in STOCK_OF
            with contextlib.ExitStack() as stack:
                build = stack.enter_context(_companion(task)) if ours else 0.0
                index = [_opened_index(settings, entries) for _ in range(repeats)] if ours else [(0.0, 0.0)]
                looks = [_steps(task) for _ in range(repeats if ours else 1)]
            figures = [(first['seconds'], first['uss'], later['uss'], later['us']) for first, later in looks]
            yield way, Opened(build, *map(median, zip(*index)), *map(median, zip(*figures)))
        source.unlink()


@contextlib.contextmanager
def _companion(task: Dict[str, Any]) -> Iterator[float]:
    """Another worker, which came first and stays: a job has several. Gives the seconds until it had read an entry.

    What is mapped by one process alone counts as its private memory, though the system may take it back at any time.
    """
    with Probe('job', module='archive_jobs', **task) as probe:
        probe.wait()
        seconds = probe.step()['seconds']
        probe.step()
        yield seconds


def _opened_index(settings: Dict[str, str], entries: int) -> Tuple[float, float]:
    (opened,) = _steps({'function': 'opening_index', **settings})
    if opened['entries'] != entries:
        raise WaysDifferError(f'{settings["source"]}: the index has {opened["entries"]:,} entries, not {entries:,}')
    return opened['seconds'], opened['uss']


def _steps(task: Dict[str, Any]) -> List[Dict[str, float]]:
    """What a fresh process replies, each with the MB of USS gained since it began."""
    steps = []
    with Probe('job', module='archive_jobs', **task) as probe:
        probe.wait()
        before = memory.of_processes([probe.pid]).uss
        for _ in range(1 if task['function'] == 'opening_index' else 2):
            steps.append({**probe.step(), 'uss': memory.of_processes([probe.pid]).uss - before})
    return steps
