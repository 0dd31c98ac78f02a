"""Images from archives: the file backend 'record' against a folder of files, zipfile, tarfile and LMDB.

    python tools/benchmarks/bench_archives.py                                   # reads a second, and memory
    python tools/benchmarks/bench_archives.py --only tarfile tar --workers 2    # the folder is always there
    python tools/benchmarks/bench_archives.py --part index                      # archives of a million entries

reads: images' worth of random bytes at random, by several workers, from the page cache (nothing is decoded), by each
way: a folder by mmengine's LocalBackend, Python's zipfile and tarfile opened anew in each worker, mmengine's
LmdbBackend (if lmdb is installed), and RecordBackend over tar, zip with and without CRC, and RecordIO. All through
``mmengine.fileio.get`` as a dataset reads, zipfile and tarfile by a file backend of three lines. tarfile looks for a
name among all members, one after the other; with a dict of them it does not. They take turns; what they read is
compared first. index: how long it takes to open an archive of very many small entries, and the private memory of
whoever does.

Tables, and which targets are reached, go to stdout, what is being done to stderr; temporary files (about 5 times the
images; 1.2 GB for a million entries) go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import report
from archive_jobs import WAYS
from archive_measurements import STOCK_OF, Opened, Reads, WaysDifferError, measure_opening, measure_reads
from measurements import say
from probe import ProbeError

#: Ours, what it is compared with, and how many times as fast it should be at least.
SPEEDS = (
    ('tar', 'folder', 1.0),
    ('rec', 'folder', 1.0),
    ('tar', 'tarfile', 1.5),
    ('rec', 'tarfile', 1.5),
    ('tar', 'tarfile-dict', 1.5),
    ('rec', 'tarfile-dict', 1.5),
    ('zip-no-crc', 'folder', 1.0),
    ('zip-no-crc', 'zipfile', 3.0),
)
OPENED_COLUMNS = (
    'index built, s',
    'it opens, ms',
    'its USS, MB',
    'first read, ms',
    'USS, MB',
    '... later',
    'a read, us',
)
MOST_OPENING_MS, MOST_INDEX_MB = 50, 5


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--part', nargs='+', choices=PARTS, default=['reads'], help='(default: reads)')
    parser.add_argument('--only', nargs='+', choices=WAYS, default=list(WAYS), help='measure only these ways')
    parser.add_argument('--repeats', type=int, default=5, help='passes, or processes that open (default: 5)')
    reads = parser.add_argument_group('reads')
    reads.add_argument('--seconds', type=float, default=0.5, help='of a pass of each (default: 0.5)')
    reads.add_argument('--images', type=int, default=2000, help='of each size (default: 2000)')
    reads.add_argument('--kilobytes', type=int, nargs='+', default=[60, 150], help='of an image (default: 60 150)')
    reads.add_argument('--workers', type=int, nargs='+', default=[1, 2, 4], help='(default: 1 2 4)')
    index = parser.add_argument_group('index')
    index.add_argument('--entries', type=int, default=1_000_000, help='of the archive (default: 1000000)')
    index.add_argument('--reads', type=int, default=1000, help='after the first one (default: 1000)')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write everything there')
    args = parser.parse_args()
    numbers = (args.repeats, args.images, args.entries, args.reads, *args.kilobytes, *args.workers)
    if min(numbers) < 1 or args.seconds <= 0:
        parser.error('numbers must be at least 1, and seconds more than 0')
    return args


# ---- reads
def reads(args: argparse.Namespace, folder: Path) -> Tuple[Dict[str, Any], str]:
    """Everything measured, and the text about it."""
    ways = list(dict.fromkeys(['folder', *args.only]))
    missing = 'lmdb' in ways and find_spec('lmdb') is None
    if missing:
        ways.remove('lmdb')
        say('the package lmdb is not installed: LmdbBackend is left out')
    found = measure_reads(
        folder,
        ways,
        count=args.images,
        sizes=args.kilobytes,
        workers=args.workers,
        repeats=args.repeats,
        seconds=args.seconds,
    )
    texts = [_table(found, f'{size}', args.workers) for size in args.kilobytes]
    texts.append(_memory(found, max(args.workers)))
    texts.append('\n'.join(['Targets:', '', *_speed_targets(found)]))
    if missing:
        texts.append('LmdbBackend was left out: the package lmdb is not installed.')
    values = {
        way: {
            'rates': {f'{size} kB, {workers} workers': runs for (size, workers), runs in cells.items()},
            'memory_mb': asdict(found.memory[way]),
        }
        for way, cells in found.rates.items()
    }
    return values, '\n\n'.join(texts)


def _table(found: Reads, size: str, workers: List[int]) -> str:
    """Reads a second of one size."""
    columns = [f'{count} worker{"s" * (count > 1)}, /s | x folder | x stock' for count in workers]
    rows = {}
    for way in found.rates:
        rows[WAYS[way].title] = cells = []
        for cell in ((size, count) for count in workers):
            stock = STOCK_OF.get(way)
            cells += [found.rate(way, cell), found.ratio(way, 'folder', cell)]
            cells.append(found.ratio(way, stock, cell) if stock in found.rates else '-')
    head = [part for column in columns for part in column.split(' | ')]
    return f'Random reads of {size} kB, reads a second of all workers together:\n\n{report.matrix(head, rows)}'


def _memory(found: Reads, workers: int) -> str:
    rows = {WAYS[way].title: (gained.uss, gained.anonymous) for way, gained in found.memory.items()}
    return (
        f'Memory that a worker has gained by opening and reading all of it, MB (median of {workers}):\n\n'
        f'{report.matrix(("private (USS)", "of it heap"), rows)}'
    )


def _speed_targets(found: Reads) -> Iterator[str]:
    for way, other, least in SPEEDS:
        ratios = found.ratios(way, other)
        if ratios:
            pair = f'{WAYS[way].title} / {WAYS[other].title}'
            yield _target(pair, f'at least {least:g}x', ratios, min(ratios) >= least)
    cost = found.ratios('zip', 'zip-no-crc')
    if cost:
        yield f'- with CRC a zip is read at {min(cost):.2f}x to {max(cost):.2f}x the speed that it has without'


def _target(what: str, wanted: str, values: List[float], reached: bool, unit: str = 'x') -> str:
    spread = f'{min(values):.2f}{unit}' + (f' to {max(values):.2f}{unit}' if len(values) > 1 else '')
    return f'- {what}: {wanted}; measured {spread}: {"reached" if reached else "NOT reached"}'


# ---- index
def index(args: argparse.Namespace, folder: Path) -> Tuple[Dict[str, Any], str]:
    """Everything measured, and the text about it."""
    found = dict(measure_opening(folder, args.only, entries=args.entries, reads=args.reads, repeats=args.repeats))
    rows = {WAYS[way].title: _opened_row(opened) for way, opened in found.items()}
    lines = [line for way, opened in found.items() if opened.build for line in _index_targets(WAYS[way].title, opened)]
    text = (
        f'{args.entries:,} entries, opened by a fresh process each time (zipfile and tarfile: once), ours beside one '
        f'that has read as much; later: after {args.reads:,} reads more:\n\n'
    )
    text += report.matrix(OPENED_COLUMNS, rows) + '\n\n' + '\n'.join(['Targets:', '', *lines])
    return {way: asdict(opened) for way, opened in found.items()}, text


def _opened_row(opened: Opened) -> List[Any]:
    mine = [opened.build, opened.index * 1e3, opened.index_uss] if opened.build else ['-'] * 3
    return [*mine, opened.first * 1e3, opened.uss, opened.later_uss, opened.us]


def _index_targets(title: str, opened: Opened) -> Iterator[str]:
    ms, megabytes = opened.index * 1e3, opened.later_uss
    yield _target(f'{title}: the index opens', f'within {MOST_OPENING_MS} ms', [ms], ms < MOST_OPENING_MS, ' ms')
    wanted = f'less than {MOST_INDEX_MB} MB of private memory'
    yield _target(f'{title}: a worker that reads has', wanted, [megabytes], megabytes < MOST_INDEX_MB, ' MB')


PARTS: Dict[str, Callable[[argparse.Namespace, Path], Tuple[Dict[str, Any], str]]] = {'reads': reads, 'index': index}


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            found = {part: PARTS[part](args, Path(folder).resolve()) for part in PARTS if part in args.part}
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ProbeError, WaysDifferError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    machine = report.machine()
    print('\n\n'.join([report.sentence(machine), *(text for _, text in found.values())]))
    if args.json is not None:
        options = {name: value for name, value in vars(args).items() if name != 'json'}
        everything = {'machine': machine, 'options': options, 'results': {part: v for part, (v, _) in found.items()}}
        args.json.write_text(json.dumps(everything, indent=1) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main())
