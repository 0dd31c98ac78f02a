"""Annotation files of a size that stock cannot load: an epoch on many processes, and a store larger than memory.

    python tools/benchmarks/bench_scale.py epoch                  # 2 GB of JSON, 4 ranks x 2 workers
    python tools/benchmarks/bench_scale.py limit                  # a store of about 4 GB, read within 1 GB of memory

``epoch`` builds the store and has every worker read every sample, shuffled, and looks at the workers' private memory
on the way. ``limit`` reads a whole store in a control group whose memory limit is smaller than the store: in order,
and some of it shuffled, which is up to the disk. Temporary files (JSON, store and, while it is built, scratch: twice
the JSON's size) go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import memory
import report
from coco_generator import CLASSES, Style, write_coco, write_copies
from measurements import forget_pages, say
from memory import MB
from memory_limit import MemoryLimit, NoLimitError
from probe import Probe, ProbeError

STOPS = 10
PART = 0.02  # of the samples: each read that finds nothing cached waits for the disk
BASE_MB = 200  # larger files are copies of one of this size


class Scale:
    """A generated file and the folder of its store."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.file = folder / 'annotations.json'
        say(f'generating {args.size_mb:,} MB of JSON')
        copies = -(-int(args.size_mb) // BASE_MB)
        base = folder / 'base.json'
        self.images, self.annotations = write_coco(base, int(args.size_mb * MB / copies), args.instances, Style())
        write_copies(self.file, base, copies)
        base.unlink()
        self.images, self.annotations = self.images * copies, self.annotations * copies

    def probe(self, stack: contextlib.ExitStack, part: float = 1) -> Probe:
        """A rank, ready to load."""
        probe = stack.enter_context(
            Probe(
                'epoch',
                kind='shared',
                workers=self.args.workers,
                stops=STOPS,
                file=str(self.file),
                part=part,
                classes=CLASSES,
                cache=str(self.folder / 'cache'),
            )
        )
        probe.wait()
        return probe

    def build(self) -> Dict[str, float]:
        """The first load: seconds and peak anonymous memory, helpers included."""
        say('building the store')
        with contextlib.ExitStack() as stack:
            probe = self.probe(stack)
            before = memory.of_processes([probe.pid])
            with memory.peak_of_tree(probe.pid) as highest:
                seconds = probe.step()['seconds']
        return {
            'first load, s': seconds,
            'peak anonymous memory of it, MB': (highest[0] - before).anonymous,
            'size of the store, MB': self.store.stat().st_size / MB,
        }

    @property
    def store(self) -> Path:
        """The store's file."""
        return max((self.folder / 'cache').iterdir(), key=lambda path: path.stat().st_size)

    def epoch(self) -> Dict[str, Any]:
        """Every worker of every rank reads every sample; their anonymous memory on the way."""
        with contextlib.ExitStack() as stack:
            probes = [self.probe(stack) for _ in range(self.args.ranks)]
            loads = [probe.step()['seconds'] for probe in probes]
            series: List[List[float]] = []
            for stop in range(STOPS + 1):
                for probe in probes:
                    probe.go()
                workers = [pid for probe in probes for pid in probe.wait()['workers']]
                say(f'{stop}/{STOPS} of the epoch')
                series.append([memory.of_processes([pid]).anonymous for pid in workers])
            total = memory.of_processes(memory.trees(probe.pid for probe in probes))
            mapped = memory.of_files(memory.trees(probe.pid for probe in probes), self.folder / 'cache')
        middle = [sorted(values)[len(values) // 2] for values in series]
        return {
            'later loads, s': max(loads),
            'workers': len(series[0]),
            'samples read by each': self.images,
            'anonymous memory of a worker, MB, begun': middle[0],
            **{f'... {100 * i // STOPS} % read': value for i, value in enumerate(middle) if i in (1, 5, STOPS)},
            'greatest growth of a worker from 10 % to 100 %, MB': max(b - a for a, b in zip(series[1], series[-1])),
            'node memory (PSS) with all imports, MB': total.pss,
            '... of it the mapped store, MB': mapped,
        }

    def limit(self) -> Dict[str, Any]:
        """Every worker reads the whole store as it lies, and some samples of it here and there, with and without."""
        rows: Dict[str, Any] = {'workers': self.args.workers}
        for part in (0, PART):
            what = f'{part:.0%} of the samples, shuffled' if part else 'all samples, in order'
            for limited in (False, True):
                say(f'reading {what}' + ' within the limit' * limited)
                rate, state = self.read(part, limited)
                rows[f'{what}, {"limited" if limited else "no limit"}, samples/s of a worker'] = rate
                for name, value in state.items():
                    rows[f'... {name}, MB'] = value / MB
        return rows

    def read(self, part: float, limited: bool) -> Tuple[float, Dict[str, float]]:
        """Samples a second of a worker, and what the control group says at the end."""
        forget_pages(self.store)  # pages that are cached already count for nobody
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(MemoryLimit(int(self.args.memory_mb * MB))) if limited else None
            probe = self.probe(stack, part)
            if group:
                group.add(probe.pid)
            probe.step()
            start = time.perf_counter()
            for _ in range(STOPS + 1):
                probe.step()
            seconds = time.perf_counter() - start
            state = {f'limit {self.args.memory_mb:,.0f}: {k}': v for k, v in group.state().items()} if group else {}
            return int(self.images * (part or 1)) / seconds, state


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=('epoch', 'limit'))
    parser.add_argument('--size-mb', type=float, help='size of the generated JSON (default: 2000, or 13500 for limit)')
    parser.add_argument('--instances', type=int, help='annotations per image (default: 10, or 175 for limit)')
    parser.add_argument('--ranks', type=int, default=4, help='ranks on the node (default: 4); limit has one')
    parser.add_argument('--workers', type=int, default=2, help='workers of each rank (default: 2)')
    parser.add_argument('--memory-mb', type=float, default=1000, help='the limit (default: 1000)')
    args = parser.parse_args()
    args.size_mb = args.size_mb or {'epoch': 2000, 'limit': 13500}[args.what]
    args.instances = args.instances or {'epoch': 10, 'limit': 175}[args.what]
    return args


def run(args: argparse.Namespace) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Facts about the file, and what was measured."""
    with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
        scale = Scale(args, Path(folder).resolve())
        facts = {
            'JSON, MB': scale.file.stat().st_size / MB,
            'images': scale.images,
            'annotations': scale.annotations,
        }
        return facts, {**scale.build(), **getattr(scale, args.what)()}


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        facts, figures = run(args)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (NoLimitError, ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    print(f'{report.sentence(report.machine())}\n\n{report.figures({**facts, **figures})}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
