"""Worker lifetimes: MMEngine's loops with persistent workers against the lean loops of mmshared.

    python tools/benchmarks/bench_loops.py                              # both parts
    python tools/benchmarks/bench_loops.py --only memory --out results

time: how long it takes from an epoch's last training step through a validation to the next epoch's first step. Samples
and steps take their time by waiting, so that the cores are not the limit. memory: a pipeline of mmdet's over generated
images, the same workers, batches and prefetching for training and validation; the job is looked at from outside all the
time, so also while it changes from one to the other.

Both kinds run in turns, each in fresh processes. The table goes to stdout, what is being done to stderr; temporary
files go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import cv2
import numpy as np
import pool_memory
import report
from coco_generator import CLASSES, Style, write_coco
from measurements import say
from memory import MB
from probe import Probe, ProbeError

KINDS = ('stock', 'lean')
PARTS = ('time', 'memory')
COLUMN_OF = dict(zip(('stock', 'shared'), KINDS))  # of a row
COLUMNS = ('stock loops', 'lean loops', 'lean is')


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), help='take only these measurements')
    parser.add_argument('--workers', type=int, default=4, help='of training, and of validation (default: 4)')
    parser.add_argument('--pairs', type=int, default=2, help='runs of each kind; the first one alternates (default: 2)')
    time = parser.add_argument_group('time')
    time.add_argument('--metric', type=float, nargs='+', default=[2, 0], help='seconds a metric takes (default: 2 0)')
    time.add_argument('--validation', type=float, default=4, help='seconds, without the metric, at least (default: 4)')
    time.add_argument('--sample', type=float, default=0.05, help='seconds a sample takes to come (default: 0.05)')
    time.add_argument('--step', type=float, default=0.05, help='seconds a training step takes (default: 0.05)')
    time.add_argument('--batch-size', type=int, default=4, help='of training, and of validation (default: 4)')
    time.add_argument('--switches', type=int, default=3, help='validations in each run (default: 3)')
    memory = parser.add_argument_group('memory')
    memory.add_argument('--json-mb', type=float, default=0.5, help='size of the annotation file (default: 0.5)')
    memory.add_argument('--scale', type=int, nargs=2, default=[1333, 800], help='of Resize (default: 1333 800)')
    memory.add_argument('--images-per-gpu', type=int, default=2, help='batch size (default: 2)')
    memory.add_argument('--interval', type=float, default=0.03, help='seconds between two looks (default: 0.03)')
    parser.add_argument('--out', type=Path, help='folder for results.json and table.md')
    args = parser.parse_args()
    if min(args.workers, args.pairs, args.batch_size, args.switches, args.images_per_gpu, *args.scale) < 1:
        parser.error('--workers, --pairs, --batch-size, --switches, --images-per-gpu and --scale must be at least 1')
    if min(args.validation, args.sample, args.step, args.json_mb, args.interval) <= 0 or min(args.metric) < 0:
        parser.error('seconds and sizes must be greater than 0 (--metric: not less)')
    return args


def pairs(number: int, folder: Path, function: str, **settings: Any) -> Iterator[Tuple[str, Probe]]:
    """Kinds and their jobs, ready to run, in turns: stock, lean, lean, stock, ... What changes slowly hits both alike.

    The imports of a pair run side by side, what is measured does not.
    """
    for pair in range(number):
        settings['folder'] = str(folder)
        with contextlib.ExitStack() as stack:
            jobs = {
                kind: stack.enter_context(
                    Probe('job', folder, module='loop_jobs', function=function, kind=kind, **settings)
                )
                for kind in KINDS[:: -1 if pair % 2 else 1]
            }
            for job in jobs.values():
                job.wait()
            for kind, job in jobs.items():
                say(f'  pair {pair + 1}/{number}: {kind}')
                yield kind, job
                job.end()


def time_rows(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """Three rows for each metric."""
    say('time')
    found: Dict[str, List[List[Dict[str, float]]]] = {kind: [[] for _ in args.metric] for kind in KINDS}
    settings = {name: getattr(args, name) for name in ('workers', 'batch_size', 'sample', 'step', 'validation')}
    settings.update(metric=args.metric, count=args.switches)
    for kind, job in pairs(args.pairs, folder, 'switches', **settings):
        for values, more in zip(found[kind], job.step()['found']):
            values += more
    for number, metric in enumerate(args.metric):
        for name, title, note in (
            ('switch', 'from the last step to the next first one', 'from the end of the last step of an epoch'),
            ('around', '... from the end of the step before the last', 'has all that is done before the last step'),
            ('until_metric', '... until all predictions are there', 'from the end of the last step of an epoch'),
        ):
            runs = {key: [one[name] for one in found[kind][number]] for key, kind in COLUMN_OF.items()}
            typical = {key: median(values) for key, values in runs.items()}
            title = f'metric of {metric:g} s: {title}, s'
            yield report.Row(f'{name}_{metric:g}_s', title, **typical, kind='time', note=note, runs=runs)


def memory_rows(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """Peaks over a job of three epochs."""
    say('memory: making images')
    file = folder / 'annotations.json'
    write_coco(file, int(args.json_mb * MB), 10, Style())
    make_images(file, folder / 'images')
    looks: Dict[str, List[pool_memory.Look]] = {kind: [] for kind in KINDS}
    say('memory')
    settings = {'file': str(file), 'classes': CLASSES, 'workers': args.workers, 'batch_size': args.images_per_gpu}
    settings.update(scale=args.scale, step=args.step)
    for kind, job in pairs(args.pairs, folder, 'pools', **settings):
        with pool_memory.highest_of(job.pid, args.interval) as highest:
            job.step()
        looks[kind].append(highest[0])
        say(f'    {highest[0]}')
    for name, title, note in (
        ('pools', 'workers and samples in flight, peak, MB', 'private memory (USS) of all workers plus shared memory'),
        ('private', '... private memory of all workers, peak, MB', ''),
        ('in_flight', '... shared memory in flight, peak, MB', 'each peak at a moment of its own'),
        ('pss', 'PSS of the whole job, peak, MB', 'main process included'),
        ('workers', 'workers at once, peak', ''),
    ):
        runs = {key: [getattr(seen, name) for seen in looks[kind]] for key, kind in COLUMN_OF.items()}
        typical = {key: median(values) for key, values in runs.items()}
        yield report.Row(f'{name}_peak', title, **typical, note=note, runs=runs)


def make_images(file: Path, folder: Path) -> None:
    """A JPEG for each image of the annotation file: blurred noise, which takes as long to decode as a photo."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for image in json.loads(file.read_text())['images']:
        coarse = rng.integers(0, 256, (image['height'] // 8, image['width'] // 8, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / image['file_name']), cv2.resize(coarse, (image['width'], image['height'])))


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    measured: Dict[str, Any] = {'time': time_rows, 'memory': memory_rows}
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            rows: List[report.Row] = [
                row for part in PARTS if part in args.only for row in measured[part](args, Path(folder).resolve())
            ]
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    machine = report.machine()
    text = f'{report.sentence(machine)}\n\n{report.table(rows, COLUMNS)}\n\nFigures are medians of runs in turns.'
    print(text)
    if args.out is not None:
        options = {name: value for name, value in vars(args).items() if name != 'out'}
        report.write(args.out, text, {'machine': machine, 'options': options}, rows)
    return 0


if __name__ == '__main__':
    sys.exit(main())
