"""Loading annotations: mmdet's CocoDataset against SharedCocoDataset, on a generated file or on yours.

    python tools/benchmarks/bench_annotations.py                        # 300 MB, 10 instances per image
    python tools/benchmarks/bench_annotations.py --json instances_train2017.json --out results

Both run in the same session, in turns, each in fresh processes, memory above what the imports take. The table goes to
stdout, what is being done to stderr; temporary files (about twice the JSON's size) go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import report
from coco_generator import CLASSES, Style, write_coco, write_single
from measurements import Benchmark, DatasetsDifferError, Job, say
from memory import MB
from probe import ProbeError

from mmshared.annotations import AnnotationFileError, CacheError, open_store


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--json', type=Path, help='measure on this COCO file instead of generating one')
    parser.add_argument('--size-mb', type=_positive, default=300, help='size of the generated JSON (default: 300)')
    parser.add_argument('--instances', type=_positive, default=10, help='annotations per image (default: 10)')
    style = parser.add_mutually_exclusive_group()
    style.add_argument('--spaced', action='store_true', default=True, help='spaces after , and : (the default)')
    style.add_argument('--compact', action='store_false', dest='spaced', help='no spaces in the JSON')
    parser.add_argument('--ranks', type=_positive, default=4, help='ranks on the node (default: 4)')
    parser.add_argument('--workers', type=int, default=2, help='workers of each rank (default: 2)')
    parser.add_argument('--repeats', type=_positive, default=3, help='runs of each timed load (default: 3)')
    parser.add_argument('--cores', type=_positive, help='use only so many cores')
    parser.add_argument('--cold', action='store_true', help='first loads read the JSON from disk, not the page cache')
    parser.add_argument(
        '--only',
        nargs='+',
        choices=Benchmark.names(),
        default=Benchmark.names(),
        metavar='NAME',
        help=f'take only these measurements: {", ".join(Benchmark.names())}',
    )
    parser.add_argument('--out', type=Path, help='folder for results.json and table.md')
    return parser.parse_args()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f'must be at least 1, is {value}')
    return value


def prepare(args: argparse.Namespace, folder: Path) -> Tuple[Job, Dict[str, Any]]:
    """Generate the file, or look into the one given; returns the job and facts about its data."""
    file = args.json
    if file is None:
        say(f'generating {args.size_mb} MB of JSON')
        file, classes = folder / 'annotations.json', CLASSES
        images, annotations = write_coco(file, int(args.size_mb * MB), args.instances, Style(args.spaced))
    else:
        store = open_store(file, cache_dir=str(folder / 'look'))
        classes = tuple(category['name'] for category in store.categories)
        images, annotations = store.num_images, store.num_annotations
    single = folder / 'single.json'
    write_single(single)
    job = Job(file.resolve(), classes, images, single, folder, args.ranks, args.workers, args.repeats, args.cold)
    return job, {
        'file': 'generated' if args.json is None else file.name,
        'json_mb': round(job.megabytes, 1),
        'images': images,
        'annotations': annotations,
        'instances_per_image': round(annotations / images, 1),
    }


def measure(args: argparse.Namespace) -> None:
    """Take the measurements, print the table, write the results."""
    with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
        job, data = prepare(args, Path(folder).resolve())
        rows: List[report.Row] = Benchmark(job).run(args.only)
    machine = report.machine()
    text = f'{report.sentence(data)}\n{report.sentence(machine)}\n\n{report.table(rows)}'
    print(text)
    if args.out is not None:
        options = {name: getattr(args, name) for name in ('ranks', 'workers', 'repeats', 'cores', 'cold', 'spaced')}
        report.write(args.out, text, {'machine': machine, 'data': data, 'options': options}, rows)


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    if args.cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        measure(args)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (AnnotationFileError, CacheError, DatasetsDifferError, ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
