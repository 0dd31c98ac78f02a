"""Samples with their annotations: CocoDataset + LoadAnnotations against SharedCocoDataset + LoadSharedAnnotations.

    python tools/benchmarks/bench_loading.py                    # generated files, 10 and 175 instances per image
    python tools/benchmarks/bench_loading.py --json instances_train2017.json

What is timed is ``dataset[i]`` with no other transform in the pipeline, so without images: ``get_data_info`` and
loading. Both run in one process, in turns on the same samples, after some results have been compared. The table goes
to stdout, what is being done to stderr; temporary files (about twice the JSON's size) go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Dict, Iterator, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import report
from coco_generator import CLASSES, Style, write_coco
from measurements import say
from memory import MB
from probe import Probe, ProbeError

from mmshared.annotations import AnnotationFileError, CacheError, open_store

VARIANTS: Dict[str, Dict[str, Any]] = {
    'boxes': {},
    'polygons': {'with_mask': True, 'poly2mask': False},
    'bitmaps': {'with_mask': True},
}
TITLES = {
    'boxes': 'boxes, labels',
    'polygons': 'boxes, labels, polygons',
    'bitmaps': 'boxes, labels, bitmaps',
}


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--json', type=Path, help='measure on this COCO file instead of generating some')
    parser.add_argument('--size-mb', type=int, default=60, help='size of each generated JSON (default: 60)')
    parser.add_argument('--instances', type=int, nargs='+', default=[10, 175], help='per image (default: 10 175)')
    parser.add_argument(
        '--only', nargs='+', choices=list(VARIANTS), default=list(VARIANTS), help='take only these measurements'
    )
    parser.add_argument('--cores', type=int, help='use only so many cores')
    parser.add_argument('--out', type=Path, help='folder for results.json and table.md')
    args = parser.parse_args()
    if args.size_mb < 1 or min(args.instances) < 1:
        parser.error('--size-mb and --instances must be at least 1')
    return args


def files(args: argparse.Namespace, folder: Path) -> Iterator[Tuple[str, Path, Tuple[str, ...]]]:
    """What to measure on: instances per image, file, names of its categories."""
    if args.json is None:
        for instances in args.instances:
            say(f'generating {args.size_mb} MB of JSON with {instances} instances per image')
            file = folder / f'{instances}.json'
            write_coco(file, int(args.size_mb * MB), instances, Style())
            yield str(instances), file, CLASSES
    else:
        store = open_store(args.json, cache_dir=str(folder / 'cache'))
        classes = tuple(category['name'] for category in store.categories)
        yield f'{store.num_annotations / store.num_images:.1f}', args.json.resolve(), classes


def measure(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """A row for each file and variant."""
    for instances, file, classes in files(args, folder):
        variants = [VARIANTS[name] for name in args.only]
        with Probe('loading', file=str(file), classes=classes, cache=str(folder / 'cache'), variants=variants) as probe:
            probe.wait()
            for name in args.only:
                say(f'{instances} instances per image: {TITLES[name]}')
                times = probe.step()
                ratios = [shared / stock for stock, shared in zip(times['stock'], times['shared'])]
                yield report.Row(
                    f'{name}_{instances}_us',
                    f'{TITLES[name]}; {instances} per image, us a sample',
                    **{kind: median(values) for kind, values in times.items()},
                    kind='time',
                    ratio=median(ratios),
                )


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if args.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            rows: List[report.Row] = list(measure(args, Path(folder).resolve()))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (AnnotationFileError, CacheError, ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    machine = report.machine()
    text = (
        f'{report.sentence(machine)}\n\n{report.table(rows)}\n\nRatios are medians of those of small blocks in turns.'
    )
    print(text)
    if args.out is not None:
        report.write(args.out, text, {'machine': machine, 'options': {'size_mb': args.size_mb}}, rows)
    return 0


if __name__ == '__main__':
    sys.exit(main())
