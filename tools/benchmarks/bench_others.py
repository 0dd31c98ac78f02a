"""Others who keep annotations once for many processes: techniques of detectron2 and d2go, lightly-train; and mmdet.

    python tools/benchmarks/bench_others.py                 # 60 MB of JSON, 3 processes

What is not installed (lightly-train, diskcache) is left out. All ways are measured in turns, in fresh processes: memory
above what the imports take, and processor time, which other processes change less than time on the clock.
docs/comparison.md says what each does, and what it leaves to others. The table goes to stdout, what is being done to
stderr; temporary files go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import memory
import report
from coco_generator import CLASSES, Style, write_coco, write_single
from measurements import say
from memory import MB
from probe import Probe, ProbeError
from ways import WAYS


class Comparison:
    """Measures ways on one generated file.

    Args:
        args: the command line.
        folder: for the file and for what the ways keep; whoever made it removes it.
        names: of the ways.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, names: List[str]) -> None:
        self._args, self._folder, self._names, self._runs = args, folder, names, 0
        self.file, self._single = folder / 'annotations.json', folder / 'single.json'
        say(f'generating {args.size_mb:,} MB of JSON')
        self.images, self.annotations = write_coco(self.file, int(args.size_mb * MB), args.instances, Style())
        write_single(self._single)

    def rows(self) -> Dict[str, List[Any]]:
        """All that is measured: a list of one value a way. Medians, where there is more than one run."""
        runs: Dict[str, List[Dict[str, float]]] = {name: [] for name in self._names}
        for run in range(self._args.repeats):
            first = run % len(self._names)
            for name in self._names[first:] + self._names[:first]:
                say(f'run {run + 1}/{self._args.repeats}: {name}')
                runs[name].append(self._run(name))
                say('  ' + ', '.join(f'{title}: {value:.3g}' for title, value in runs[name][-1].items()))
        say('reading in turns')
        reads = self._reads()
        found = {name: {title: median(run[title] for run in runs[name]) for title in runs[name][0]} for name in runs}
        rows = {title: [found[name][title] for name in self._names] for title in found[self._names[0]]}
        return {
            **rows,
            'kept where': [WAYS[name].place for name in self._names],
            'a sample read, us of processor time': [median(reads['us'][name]) for name in self._names],
            'polygons': [_in_words(reads['deviation'][name]) for name in self._names],
        }

    def _run(self, name: str) -> Dict[str, float]:
        """One process loads and reads everything, then the others do, one after the other."""
        with self._processes(name, self._args.ranks) as probes:
            pids = [probe.pid for probe in probes]
            before = memory.of_processes(pids)
            replies, peaks, held = [], [], []
            for probe in probes:
                start = memory.of_processes([probe.pid])
                with memory.peak_of_tree(probe.pid) as highest:
                    replies.append(probe.step())
                now = memory.of_processes([probe.pid])  # a short load is over before anybody looks
                peaks.append(max(highest[0].anonymous, now.anonymous) - start.anonymous)
                probe.step()
                held.append((memory.of_processes(pids) - before).pss)
        if {reply['length'] for reply in replies} != {self.images}:
            raise RuntimeError(f'{name} has {[reply["length"] for reply in replies]} samples, should be {self.images}')
        return {
            'first process loads, s of processor time': replies[0]['seconds'],
            '... a further one': median(reply['seconds'] for reply in replies[1:]),
            'heap while the first loads, at most, MB': peaks[0],
            '... while a further one does': median(peaks[1:]),
            'memory (PSS) of the first, all read, MB': held[0],
            '... of each further one': (held[-1] - held[0]) / (len(held) - 1),
            'kept, in sizes of the JSON': replies[0]['stored'] / self.file.stat().st_size,
        }

    def _reads(self) -> Dict[str, Any]:
        folder = str(self._folder / 'reads')
        with Probe('reads', names=self._names, file=str(self.file), folder=folder, classes=CLASSES) as probe:
            reply = probe.wait()
            probe.end()
        return reply

    @contextlib.contextmanager
    def _processes(self, name: str, ranks: int) -> Iterator[List[Probe]]:
        """Processes that have imported everything; their folder is new."""
        self._runs += 1
        source = {'file': str(self.file), 'single': str(self._single), 'classes': CLASSES}
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f'run{self._runs}-', dir=self._folder))
            probes = [
                stack.enter_context(Probe('share', way=name, rank=rank, ranks=ranks, folder=folder, **source))
                for rank in range(ranks)
            ]
            try:
                for probe in probes:
                    probe.wait()
                yield probes
            finally:
                for probe in probes:
                    probe.end()


def _in_words(deviation: Optional[float]) -> str:
    if deviation is None:
        return 'not all kept'
    return 'the same numbers' if deviation == 0 else f'up to {deviation:.0e} px off'


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size-mb', type=float, default=60, help='size of the generated JSON (default: 60)')
    parser.add_argument('--instances', type=int, default=10, help='annotations per image (default: 10)')
    parser.add_argument('--ranks', type=int, default=3, help='processes that share, at least 2 (default: 3)')
    parser.add_argument('--repeats', type=int, default=3, help='runs of each way (default: 3)')
    args = parser.parse_args()
    if args.ranks < 2 or args.repeats < 1 or args.instances < 1 or args.size_mb <= 0:
        parser.error('needs two ranks, and one of everything else')
    return args


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    names = [name for name, way in WAYS.items() if not way.needs or find_spec(way.needs)]
    missing = {name: way.needs for name, way in WAYS.items() if name not in names}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            comparison = Comparison(args, Path(folder).resolve(), names)
            size = comparison.file.stat().st_size / MB
            facts = {'json_mb': round(size, 1), 'images': comparison.images, 'annotations': comparison.annotations}
            rows = comparison.rows()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    print(f'{report.sentence(facts)}\n{report.sentence(report.machine())}\n\n{report.matrix(names, rows)}')
    for name, package in missing.items():
        print(f'\n{name}: not measured, {package} is not installed')
    return 0


if __name__ == '__main__':
    sys.exit(main())
