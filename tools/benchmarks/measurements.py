"""What is measured, and how: each measurement starts fresh processes for stock and shared and looks at them."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import memory
from memory import MB, Memory
from probe import Probe, Reply
from report import Row

KINDS = ('stock', 'shared')
STOCK_RANKS = 2


class DatasetsDifferError(RuntimeError):
    """Stock and shared did not give the same samples: their figures mean nothing."""


@dataclass(frozen=True)
class Job:
    """What to measure on.

    Attributes:
        file: the annotation file.
        classes: names of its categories.
        images: how many it has.
        single: a file of one image, which stands for no dataset.
        folder: for caches; whoever made it removes it.
        ranks, workers: processes per node, and workers of each.
        repeats: runs of each timed load.
        cold: read the file from the disk at each first load, not from the page cache.
    """

    file: Path
    classes: Tuple[str, ...]
    images: int
    single: Path
    folder: Path
    ranks: int
    workers: int
    repeats: int
    cold: bool = False

    @property
    def megabytes(self) -> float:
        """Size of the file."""
        return self.file.stat().st_size / MB


class Benchmark:
    """Takes the measurements of a job; remembers what one leaves that another can use."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._cache: Optional[Path] = None
        self._store_bytes = 0
        self._caches = 0
        self._stock_seconds: List[float] = []
        self._seen: Dict[str, Reply] = {}

    @classmethod
    def names(cls) -> List[str]:
        """The measurements there are, in the order they are taken."""
        return list(_MEASUREMENTS)

    def run(self, names: Sequence[str]) -> List[Row]:
        """Take these measurements.

        Raises:
            DatasetsDifferError: the two datasets gave different samples.
            ProbeError: a measured process failed.
        """
        rows = [row for name in _MEASUREMENTS if name in names for row in _MEASUREMENTS[name](self)]
        for kind in KINDS:
            self._reply(kind)
        return rows

    def first_load(self) -> Iterator[Row]:
        """Nothing but the JSON is there: seconds until the dataset is loaded, build of the store included."""
        seconds: Dict[str, List[float]] = {kind: [] for kind in KINDS}
        for run in range(self.job.repeats):
            say(f'first load {run + 1}/{self.job.repeats}')
            with self._both() as probes:
                for kind in KINDS if run % 2 else KINDS[::-1]:
                    if self.job.cold:
                        forget_pages(self.job.file)
                    seconds[kind].append(self._load(probes[kind], kind))
        self._stock_seconds = seconds['stock']
        typical = {kind: median(values) for kind, values in seconds.items()}
        note = 'file not in the page cache' if self.job.cold else 'no store yet; the JSON is in the page cache'
        yield Row('first_load_s', 'first load, s', **typical, kind='time', note=note, runs=seconds)
        yield Row(
            'first_load_mb_s',
            'first load, MB of JSON / s',
            kind='speed',
            **{kind: self.job.megabytes / value for kind, value in typical.items()},
        )

    def peak_memory(self) -> Iterator[Row]:
        """As first_load, watched from outside: the process and its helpers together."""
        say('peak memory of a first load')
        peak, left = {}, {}
        with self._both() as probes:
            for kind, probe in probes.items():
                before = memory.of_processes([probe.pid])
                with memory.peak_of_tree(probe.pid) as highest:
                    self._load(probe, kind, finish=False)
                peak[kind] = (highest[0] - before).anonymous
                left[kind] = (memory.of_processes([probe.pid]) - before).anonymous
                self._finish(probe, kind)
        yield Row(
            'peak_anonymous_mb',
            'peak anonymous memory of a first load, MB',
            **peak,
            note='above the imports, helpers included',
        )
        yield Row('left_anonymous_mb', 'still held after it, MB', **left)

    def later_load(self) -> Iterator[Row]:
        """The store is there: seconds for a fresh process to construct the dataset."""
        cache = self._warm_cache()
        say('later loads')
        with self._probes([('shared', cache)] * self.job.repeats) as probes:
            shared = [self._load(probe, 'shared') for probe in probes]
        if not self._stock_seconds:
            self._stock_seconds = [self._single_load('stock') for _ in range(self.job.repeats)]
        yield Row(
            'later_load_s',
            'later loads, s',
            median(self._stock_seconds),
            median(shared),
            kind='time',
            note='filter included; stock loads as the first time',
            runs={'stock': self._stock_seconds, 'shared': shared},
        )

    def store_size(self) -> Iterator[Row]:
        """What is kept instead of the JSON: the cache's files, and stock's array of pickles in every rank."""
        self._warm_cache()
        size = self.job.file.stat().st_size
        yield Row(
            'store_ratio',
            'store size / JSON size',
            self._reply('stock')['pickled_bytes'] / size,
            self._store_bytes / size,
            note='stock: its serialized samples, in the memory of every rank',
        )

    def processes(self) -> Iterator[Row]:
        """Ranks with workers that read everything: memory of one more of each, and of the node."""
        ran = {'stock': min(self.job.ranks, STOCK_RANKS), 'shared': self.job.ranks}
        found = {kind: self._run_node(kind, ran[kind]) for kind in KINDS}
        for unit, title in (('anonymous', 'anonymous'), ('uss', 'USS'), ('pss', 'PSS')):
            yield Row(
                f'rank_{unit}_mb',
                f'{title} memory per extra rank, MB',
                **{kind: getattr(node.per_rank, unit) for kind, node in found.items()},
            )
        for unit, title in (('anonymous', 'anonymous'), ('uss', 'USS'), ('pss', 'PSS')) if self.job.workers else ():
            yield Row(
                f'worker_{unit}_mb',
                f'{title} memory per extra worker, MB',
                **{kind: getattr(node.per_worker, unit) for kind, node in found.items()},
            )
        scale = self.job.ranks / ran['stock']
        guess = f'stock: {STOCK_RANKS} ranks measured, extrapolated to {self.job.ranks}' if scale > 1 else ''
        who = f'{self.job.ranks} ranks x {self.job.workers} workers, all read'
        shares = ', '.join(
            f'{kind} {node.total.pss * (scale if kind == "stock" else 1) / self.job.megabytes:.2f}x'
            for kind, node in found.items()
        )
        yield Row(
            'node_pss_mb',
            f'node memory (PSS), {who}, MB',
            found['stock'].total.pss * scale,
            found['shared'].total.pss,
            note='; '.join(
                filter(
                    None,
                    [f'in sizes of the JSON: {shares}', guess, 'above the same processes with a dataset of one image'],
                )
            ),
        )
        yield Row(
            'node_heap_mb',
            '... of it anonymous (heap), MB',
            found['stock'].total.anonymous * scale,
            found['shared'].total.anonymous,
            note=guess,
        )
        yield Row('node_store_mb', '... of it the mapped store, MB', None, found['shared'].mapped)

    def lookups(self) -> Iterator[Row]:
        """``get_data_info``, in turns in one process."""
        cache = self._warm_cache()
        say('get_data_info')
        with Probe('lookups', **self._source(cache)) as probe:
            probe.wait()
            times = probe.step()
        ratios = [shared / stock for stock, shared in zip(times['stock'], times['shared'])]
        yield Row(
            'get_data_info_us',
            'get_data_info, us a call',
            **{kind: median(times[kind]) for kind in KINDS},
            kind='time',
            ratio=median(ratios),
            note='the ratio is the median of those of small blocks in turns',
        )

    # ---- processes that load
    @contextlib.contextmanager
    def _probes(self, wanted: Sequence[Tuple[str, Path]]) -> Iterator[List[Probe]]:
        """Processes ready to load; their imports run side by side, what is measured does not."""
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(Probe('load', kind=kind, **self._source(cache))) for kind, cache in wanted]
            for probe in probes:
                probe.wait()
            yield probes

    @contextlib.contextmanager
    def _both(self) -> Iterator[Dict[str, Probe]]:
        """A process of each kind, ready to load; there is no store yet."""
        self._caches += 1
        cache = self.job.folder / f'cache{self._caches}'
        with self._probes([(kind, cache) for kind in KINDS]) as probes:
            yield dict(zip(KINDS, probes))
        self._keep(cache)

    def _single_load(self, kind: str) -> float:
        with self._probes([(kind, self._cache or self.job.folder / 'cache')]) as probes:
            return self._load(probes[0], kind)

    def _load(self, probe: Probe, kind: str, finish: bool = True) -> float:
        seconds = probe.step()['seconds']
        if finish:
            self._finish(probe, kind)
        return seconds

    def _finish(self, probe: Probe, kind: str) -> None:
        """Look at what the process has loaded: it must be what all others have."""
        reply = probe.step()
        for other, seen in self._seen.items():
            if (seen['digest'], seen['length']) != (reply['digest'], reply['length']):
                raise DatasetsDifferError(
                    f'{self.job.file}: the samples of {kind} ({reply["length"]}) and of {other} ({seen["length"]}) '
                    'are not equal, so there is nothing to compare'
                )
        self._seen[kind] = reply

    def _reply(self, kind: str) -> Reply:
        """What a process of this kind has loaded; one is started if none has been."""
        if kind not in self._seen:
            self._single_load(kind)
        return self._seen[kind]

    # ---- the cache
    def _source(self, cache: Path) -> Dict[str, Any]:
        return {'file': str(self.job.file), 'classes': self.job.classes, 'cache': str(cache)}

    def _keep(self, cache: Path) -> None:
        if self._cache is None:
            self._cache = cache
            self._store_bytes = sum(path.stat().st_size for path in cache.iterdir() if path.is_file())

    def _warm_cache(self) -> Path:
        """A cache with the file's store; made if no measurement has left one."""
        if self._cache is None:
            say('making the store')
            cache = self.job.folder / 'cache'
            self._single_load('shared')
            self._keep(cache)
        return self._cache

    # ---- a node
    def _run_node(self, kind: str, ranks: int) -> Node:
        """Have ``ranks`` processes load, and their workers read everything: with one image, then with the file."""
        cache = self._warm_cache()
        say(f'{kind}: {ranks} ranks x {self.job.workers} workers read everything')
        with contextlib.ExitStack() as stack:
            probes = [
                stack.enter_context(
                    Probe(
                        'rank',
                        kind=kind,
                        workers=self.job.workers,
                        samples=self.job.images,
                        empty=str(self.job.single),
                        **self._source(cache),
                    )
                )
                for _ in range(ranks)
            ]
            stages = [self._stage(probes, cache, start=stage > 0) for stage in range(6)]
        return Node.between(stages[:3], stages[3:], ranks, ranks * self.job.workers)

    def _stage(self, probes: Sequence[Probe], cache: Path, start: bool) -> Stage:
        """Let all ranks run to their next stop, and look at them."""
        if start:
            for probe in probes:
                probe.go()
        for probe in probes:
            reads = probe.wait().get('reads')
            if reads is not None and reads != [self.job.images] * max(1, self.job.workers):
                raise RuntimeError(f'the workers read {reads} samples, should be {self.job.images} each')
        roots = [probe.pid for probe in probes]
        pids = memory.trees(roots)
        workers = [pid for pid in pids if pid not in roots]
        return Stage(memory.of_processes(pids), memory.of_processes(workers), memory.of_files(pids, cache))


@dataclass(frozen=True)
class Stage:
    """Memory of a node at one moment: of all processes, of the workers, and MB of the store that is mapped."""

    total: Memory
    workers: Memory
    mapped: float


@dataclass(frozen=True)
class Node:
    """What a dataset costs a node: per rank, per worker, and with everything read."""

    per_rank: Memory
    per_worker: Memory
    total: Memory
    mapped: float

    @classmethod
    def between(cls, empty: Sequence[Stage], real: Sequence[Stage], ranks: int, workers: int) -> Node:
        """From the stages (before, loaded, all read) without and with the dataset."""
        total = (real[2].total - real[0].total) - (empty[2].total - empty[0].total)
        # A fork makes pages of the rank shared, which lowers its USS; so look at the USS of the workers alone.
        reading = (real[2].total - real[1].total) - (empty[2].total - empty[1].total)
        own = real[2].workers - empty[2].workers
        worker = Memory(reading.anonymous, own.uss, reading.pss) / max(1, workers)
        return cls((real[1].total - real[0].total) / ranks, worker, total, real[2].mapped - empty[2].mapped)


_MEASUREMENTS: Dict[str, Callable[[Benchmark], Iterator[Row]]] = {
    'first-load': Benchmark.first_load,
    'peak-memory': Benchmark.peak_memory,
    'later-load': Benchmark.later_load,
    'store-size': Benchmark.store_size,
    'processes': Benchmark.processes,
    'lookups': Benchmark.lookups,
}


def say(text: str) -> None:
    """A sign of life; the table alone goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def forget_pages(file: Path) -> None:
    """Have the kernel drop the file from its page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # pages that are not on the disk yet are kept
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
