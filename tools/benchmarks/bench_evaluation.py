"""Evaluation against a COCO file: CocoMetric against SharedCocoMetric.

    python tools/benchmarks/bench_evaluation.py                                # 300 MB of JSON, 4 ranks
    python tools/benchmarks/bench_evaluation.py --size-mb 30 --only memory
    python tools/benchmarks/bench_evaluation.py --only time --images 5000 --detections 100

memory: ranks over gloo, each a process that is looked at from outside: when it has no metric yet, when it has one and
the job starts, when all is predicted, while it evaluates (the highest seen), and afterwards. Stock evaluates once,
shared three times. time: one process evaluates with both in turns. The metrics of both must be equal.

The table goes to stdout, what is being done to stderr; temporary files (about three times the JSON's size) go to
$TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import memory
import numpy as np
import report
from coco_generator import CLASSES, Style, write_coco
from measurements import say
from memory import MB, Memory
from probe import Probe, ProbeError

from mmshared.annotations import AnnotationFileError, CacheError, open_store
from mmshared.evaluation.ground_truth import StoredTruth

KINDS = ('stock', 'shared')
PARTS = ('memory', 'time')
COLUMNS = ('CocoMetric', 'SharedCocoMetric', 'shared is')
OBJECTS = 7
"""Per image, of the file that evaluations are timed against."""
_IMAGE_BYTES = 3600


class MetricsDifferError(RuntimeError):
    """Stock and shared did not give the same metrics: their figures mean nothing."""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=PARTS, default=list(PARTS), help='take only these measurements')
    parser.add_argument('--size-mb', type=float, default=300, help='memory: size of the JSON (default: 300)')
    parser.add_argument('--ranks', type=int, default=4, help='memory: processes (default: 4)')
    parser.add_argument('--per-image', type=int, default=10, help='memory: detections per image (default: 10)')
    parser.add_argument('--evaluations', type=int, default=3, help='memory: by shared, in a row (default: 3)')
    parser.add_argument('--images', type=int, default=5000, help='time: about so many (default: 5000)')
    parser.add_argument('--detections', type=int, default=100, help='time: per image (default: 100)')
    parser.add_argument('--repeats', type=int, default=1, help='time: evaluations of each (default: 1)')
    parser.add_argument('--backend', default='faster_coco_eval', help='of SharedCocoMetric (default: faster_coco_eval)')
    parser.add_argument('--out', type=Path, help='folder for results.json and table.md')
    args = parser.parse_args()
    if min(args.ranks, args.per_image, args.evaluations, args.images, args.detections, args.repeats) < 1:
        parser.error('all numbers must be at least 1')
    if args.size_mb <= 0:
        parser.error('--size-mb must be greater than 0')
    return args


def predict(file: Path, cache: Path, folder: Path, count: int) -> int:
    """Write predictions for all images of ``file``, ``count`` each, two of five near an object; returns the images."""
    truth = StoredTruth(open_store(file, cache_dir=str(cache)))
    rng, objects, images = np.random.default_rng(0), truth.objects, len(truth.image_ids)
    boxes = np.concatenate([rng.uniform(0, 400, (images, count, 2)), rng.uniform(5, 200, (images, count, 2))], axis=2)
    labels = rng.integers(0, len(CLASSES), (images, count))
    starts = np.searchsorted(objects.image, np.arange(images + 1))
    numbers = np.array([key - 1 for key in truth.category_ids])
    for image in np.flatnonzero(np.diff(starts)).tolist():
        near = np.flatnonzero(rng.random(count) < 0.4)
        rows = rng.integers(starts[image], starts[image + 1], near.size)
        boxes[image, near] = objects.box[rows] * rng.uniform(0.9, 1.1, (near.size, 4))
        labels[image, near] = numbers[objects.category[rows]]
    boxes[:, :, 2:] += boxes[:, :, :2]
    folder.mkdir()
    arrays = {'ids': np.array(truth.image_ids), 'boxes': boxes.astype(np.float32), 'labels': labels}
    arrays['scores'] = rng.random((images, count), np.float32)
    for name, array in arrays.items():
        np.save(folder / f'{name}.npy', array)
    return images


@dataclass
class Seen:
    """Memory of each rank, above that of the same process without a metric; ``peak`` while it evaluates.

    Attributes:
        predicted, peak, after: per evaluation.
        construct, look: seconds of rank 0: constructing the metric, and what it does when the job starts.
        seconds: of the evaluations.
        metrics: of the last one.
    """

    constructed: List[Memory]
    predicted: List[List[Memory]]
    peak: List[List[Memory]]
    after: List[List[Memory]]
    construct: float
    look: float
    seconds: List[float]
    metrics: Dict[str, float]


def run_ranks(kind: str, args: argparse.Namespace, folder: Path, times: int) -> Seen:
    """A job of ``args.ranks`` ranks that evaluates so many ``times``."""
    settings = {'kind': kind, 'world': args.ranks, 'rendezvous': str(folder / f'rendezvous-{kind}'), 'times': times}
    settings.update(folder=str(folder), file=str(folder / 'annotations.json'), cache=str(folder / 'cache'))
    if kind == 'shared':
        settings['backend'] = args.backend
    with contextlib.ExitStack() as stack:
        probes = [
            stack.enter_context(
                Probe('job', module='evaluation_jobs', function='ranks', classes=CLASSES, rank=rank, **settings)
            )
            for rank in range(args.ranks)
        ]
        _all(probes, first=True)
        before = [memory.of_processes([probe.pid]) for probe in probes]

        def look() -> List[Memory]:
            return [memory.of_processes([probe.pid]) - known for probe, known in zip(probes, before)]

        start = _all(probes)[0]
        seen = Seen(look(), [], [], [], start['construct'], start['look'], [], {})
        for number in range(times):
            say(f'{kind}: evaluation {number + 1} of {times}')
            _all(probes)
            seen.predicted.append(look())
            with contextlib.ExitStack() as watching:
                peaks = [watching.enter_context(memory.peak_of_tree(probe.pid)) for probe in probes]
                replies = _all(probes)
            seen.peak.append([peak[0] - known for peak, known in zip(peaks, before)])
            seen.after.append(look())
            seen.seconds.append(replies[0]['seconds'])
            if any(reply['metrics'] != replies[0]['metrics'] for reply in replies):
                raise MetricsDifferError(f'the ranks of {kind} have different metrics')
            seen.metrics = replies[0]['metrics']
        for probe in probes:
            probe.go()
        for probe in probes:
            probe.end()
    return seen


def _all(probes: List[Probe], first: bool = False) -> List[Dict[str, Any]]:
    """Let all run to their next stop; what they tell there."""
    if not first:
        for probe in probes:
            probe.go()
    return [probe.wait() for probe in probes]


def memory_rows(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """What ranks hold, and when."""
    file = folder / 'annotations.json'
    say(f'generating {args.size_mb:g} MB of JSON')
    write_coco(file, int(args.size_mb * MB), 10, Style())
    images = predict(file, folder / 'cache', folder / 'predictions', args.per_image)
    seen = {kind: run_ranks(kind, args, folder, args.evaluations if kind == 'shared' else 1) for kind in KINDS}
    if seen['stock'].metrics != seen['shared'].metrics:
        raise MetricsDifferError(f'stock: {seen["stock"].metrics}, shared: {seen["shared"].metrics}')
    where = f'{args.ranks} ranks, {images} images, {args.per_image} detections each; above no metric at all'
    yield report.Row('construct_s', 'constructing the metric, s', *_both(seen, lambda s: s.construct), kind='time')
    yield report.Row('look_s', 'looking at the file when the job starts, s', None, seen['shared'].look, kind='time')
    for unit in ('uss', 'pss', 'anonymous'):
        title = {'uss': 'USS', 'pss': 'PSS', 'anonymous': 'anonymous'}[unit]

        def of(ranks: List[Memory], unit: str = unit) -> List[float]:
            return [getattr(rank, unit) for rank in ranks]

        for name, text, value in (
            ('constructed', 'job started: most of a rank', lambda s: max(of(s.constructed))),
            (
                'other_predicted',
                'all predicted: ranks but 0, the one with most',
                lambda s: max(of(s.predicted[-1])[1:]),
            ),
            ('rank0_peak', 'evaluating: rank 0, peak', lambda s: max(of(peak)[0] for peak in s.peak)),
            ('other_peak', 'evaluating: ranks but 0, peak', lambda s: max(max(of(peak)[1:]) for peak in s.peak)),
            ('rank0_after', 'evaluated: rank 0', lambda s: of(s.after[0])[0]),
            ('other_after', 'evaluated: ranks but 0, most of one', lambda s: max(of(s.after[0])[1:])),
            ('rank0_last', 'evaluated, the last time: rank 0', lambda s: of(s.after[-1])[0]),
        ):
            if args.ranks > 1 or not name.startswith('other'):
                yield report.Row(f'{name}_{unit}_mb', f'{text}, {title}, MB', *_both(seen, value), note=where)
                where = ''
    yield report.Row('rank_evaluation_s', 'evaluation, s', *_both(seen, lambda s: median(s.seconds)), kind='time')


def _both(seen: Dict[str, Seen], value: Any) -> List[float]:
    return [value(seen[kind]) for kind in KINDS]


def time_rows(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """How long an evaluation takes."""
    file = folder / 'annotations.json'
    say(f'generating a file of about {args.images} images')
    write_coco(file, args.images * _IMAGE_BYTES, OBJECTS, Style())
    images = predict(file, folder / 'cache', folder / 'predictions', args.detections)
    say(f'evaluating {images} images with {args.detections} detections each, {args.repeats} times')
    settings = {'classes': CLASSES, 'repeats': args.repeats, 'folder': str(folder), 'cache': str(folder / 'cache')}
    with Probe('job', module='evaluation_jobs', function='in_turns', file=str(file), **settings) as probe:
        probe.wait()
        reply = probe.step()
    if not reply['equal']:
        raise MetricsDifferError('stock and shared gave different metrics')
    seconds = reply['seconds']
    yield report.Row(
        'evaluation_s',
        f'evaluation of {images} images, {args.detections} detections each, s',
        *(median(seconds[kind]) for kind in KINDS),
        kind='time',
        ratio=median(shared / stock for stock, shared in zip(seconds['stock'], seconds['shared'])),
        note=f'in turns in one process; coco/bbox_mAP is {reply["metrics"]["coco/bbox_mAP"]} with both',
        runs=seconds,
    )


def measure(args: argparse.Namespace) -> List[report.Row]:
    """All rows."""
    rows: List[report.Row] = []
    for name, take in (('memory', memory_rows), ('time', time_rows)):
        if name in args.only:
            with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
                rows += take(args, Path(folder).resolve())
    return rows


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        rows = measure(args)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (AnnotationFileError, CacheError, MetricsDifferError, ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    machine = report.machine()
    text = f'{report.sentence(machine)}\n\n{report.table(rows, COLUMNS)}'
    print(text)
    if args.out is not None:
        options = {name: value for name, value in vars(args).items() if name != 'out'}
        report.write(args.out, text, {'machine': machine, 'options': options}, rows)
    return 0


if __name__ == '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    sys.exit(main())
