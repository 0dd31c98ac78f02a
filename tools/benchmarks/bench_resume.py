"""Resuming a job without epochs far into its data: MMEngine's IterBasedTrainLoop against LeanIterTrainLoop.

    python tools/benchmarks/bench_resume.py                      # at iteration 100,000, 50 ms a sample
    python tools/benchmarks/bench_resume.py --iteration 10000 --batching aspect --batch-sizes 2

Seconds from the start of ``Runner.train()`` to the first training step, with an InfiniteSampler, in plain batches and
in those of mmdet's AspectRatioBatchSampler, over a SharedCocoDataset of a generated file. Then the samples of the next
steps must be those of a job without interruption, for which the sampler itself is iterated. Stock loads all that it
skips; it does so for some iterations (--stock) and the rest is extrapolated.

The checkpoints are real ones of a job's first iteration, in which the iteration is changed. Each case has a fresh
process. The table goes to stdout, what is being done to stderr; temporary files go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import report
from coco_generator import CLASSES, Style, write_coco
from measurements import say
from memory import MB
from probe import Probe, ProbeError

BATCHING = {'infinite': 'InfiniteSampler', 'aspect': 'AspectRatioBatchSampler'}
COLUMNS = ('stock loop', 'lean loop', 'lean is')


class OtherSamplesError(RuntimeError):
    """A job that was resumed does not have the samples that it should have: its time means nothing."""


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--iteration', type=int, default=100_000, help='where to resume (default: 100000)')
    parser.add_argument('--stock', type=int, default=48, help='iterations that stock skips, even (default: 48)')
    parser.add_argument(
        '--batching', nargs='+', choices=list(BATCHING), default=list(BATCHING), help='take only these measurements'
    )
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=[2, 16], help='(default: 2 16)')
    parser.add_argument('--sample', type=float, default=0.05, help='seconds a sample takes to come (default: 0.05)')
    parser.add_argument('--workers', type=int, default=4, help='(default: 4)')
    parser.add_argument('--steps', type=int, default=12, help='steps to compare after it (default: 12)')
    parser.add_argument('--json-mb', type=float, default=10, help='size of the generated JSON (default: 10)')
    parser.add_argument('--instances', type=int, default=175, help='annotations per image (default: 175)')
    parser.add_argument('--out', type=Path, help='folder for results.json and table.md')
    args = parser.parse_args()
    if min(args.iteration, args.workers, args.steps, args.instances, *args.batch_sizes) < 1:
        parser.error('--iteration, --workers, --steps, --instances and --batch-sizes must be at least 1')
    if args.stock < 2 or args.sample < 0 or args.json_mb <= 0:
        parser.error('--stock must be at least 2, --sample at least 0, --json-mb greater than 0')
    return args


def measure(args: argparse.Namespace, folder: Path) -> Iterator[report.Row]:
    """Two rows for each sampler and batch size."""
    say(f'generating {args.json_mb:g} MB of JSON')
    file = folder / 'annotations.json'
    write_coco(file, int(args.json_mb * MB), args.instances, Style())
    settings = {'folder': str(folder), 'file': str(file), 'classes': CLASSES}
    settings.update({name: getattr(args, name) for name in ('workers', 'sample', 'steps')})
    samplings = [{'batching': name, 'batch_size': size} for name in args.batching for size in args.batch_sizes]
    few, many = args.stock // 2, args.stock
    runs = [('lean', args.iteration), ('stock', few), ('stock', many)]
    with contextlib.ExitStack() as stack:  # imports run side by side, what is measured does not
        making = _job(folder, 'checkpoints', settings, samplings=samplings, places=[few, many, args.iteration])
        jobs = [making, *(_job(folder, 'resume', settings, sampling=sampling, runs=runs) for sampling in samplings)]
        for job in jobs:
            stack.enter_context(job)
        for job in jobs:
            job.wait()
        say('making checkpoints')
        expected = making.step()['expected']
        making.end()
        for sampling, job, following in zip(samplings, jobs[1:], expected):
            say(_title(sampling))
            lean, *stock = [job.step() for _ in runs]
            job.end()
            _compare(_title(sampling), lean['indices'], following)
            first, second = (reply['seconds'] for reply in stock)
            extrapolated = second + (args.iteration - many) * max(0.0, second - first) / (many - few)
            yield from _rows(sampling, extrapolated, [first, second], lean)


def _title(sampling: Dict[str, Any]) -> str:
    return f'{BATCHING[sampling["batching"]]}, batch size {sampling["batch_size"]}'


def _rows(sampling: Dict[str, Any], stock: float, runs: List[float], lean: Dict[str, Any]) -> Iterator[report.Row]:
    name, seconds = f'{sampling["batching"]}_{sampling["batch_size"]}', lean['seconds']
    both = {'stock': runs, 'shared': [seconds]}
    title = f'{_title(sampling)}: to the first step, s'
    yield report.Row(f'{name}_s', title, stock, seconds, kind='time', runs=both)
    title = f'{_title(sampling)}: of it processor time, s'
    yield report.Row(f'{name}_processor_s', title, None, lean['processor'], kind='time')


def _job(folder: Path, function: str, settings: Dict[str, Any], **more: Any) -> Probe:
    return Probe('job', folder, module='resume_jobs', function=function, settings=settings, **more)


def _compare(title: str, found: List[List[int]], expected: List[List[int]]) -> None:
    if found != expected:
        step = next((i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]), len(found))
        raise OtherSamplesError(
            f'{title}: {step} steps after it was resumed the job has samples {found[step : step + 1]}, should be '
            f'{expected[step : step + 1]}'
        )


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            rows: List[report.Row] = list(measure(args, Path(folder).resolve()))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (OtherSamplesError, ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    machine = report.machine()
    text = (
        f'{report.sentence(machine)}\n\n{report.table(rows, COLUMNS)}\n\n'
        f'Resumed at iteration {args.iteration:,}, {args.sample * 1000:g} ms a sample, {args.workers} workers. '
        f'Figures of stock are extrapolated from {args.stock // 2} and {args.stock} iterations. The samples of the '
        f'{args.steps} steps after it were those of a job without interruption.'
    )
    print(text)
    if args.out is not None:
        options = {name: value for name, value in vars(args).items() if name != 'out'}
        report.write(args.out, text, {'machine': machine, 'options': options}, rows)
    return 0


if __name__ == '__main__':
    sys.exit(main())
