"""Draw what ``NodeMemoryHook`` recorded: the memory of jobs over time, in one picture.

    python tools/analysis/plot_memory.py work_dirs/stock work_dirs/lean --names stock lean -o memory.png

Above, the totals of all runs; below, for each run, what they consist of. Phases are shaded. For each run it prints the
highest total that was seen, and what looking cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))  # so that it also works when imported by its path

from memory_records import BadRecords, Run, read_run


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description='Draw the memory of jobs over time, as NodeMemoryHook recorded it.',
        epilog='A job that was resumed in the same work folder is drawn as one run, without the time between.',
    )
    parser.add_argument(
        'runs', nargs='+', type=Path, metavar='RUN', help="a job's work folder, a folder in it, or a node_memory.jsonl"
    )
    parser.add_argument('-o', '--out', type=Path, default=Path('memory.png'), metavar='PNG', help='memory.png')
    parser.add_argument('--names', nargs='+', metavar='NAME', help='what to call the runs (default: their folders)')
    parser.add_argument('--title', default='Memory of the job on this node', help='above the picture')
    args = parser.parse_args(arguments)
    if args.names is not None and len(args.names) != len(args.runs):
        parser.error(f'{len(args.runs)} runs and {len(args.names)} names')
    return args


def names_of(paths: Sequence[Path]) -> List[str]:
    """As much of the end of each path as tells it from the others."""
    parts = [_folder(path.resolve()).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ['/'.join(one[-length:]) for one in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _folder(path: Path) -> Path:
    folder = path.parent if path.suffix == '.jsonl' else path
    return folder.parent if folder.name == 'vis_data' else folder


def summary(run: Run) -> str:
    """One line about a run."""
    peak, seconds = max(run.looks, key=lambda look: look['total']), [look['seconds'] for look in run.looks]
    processes = max(look['ranks'] + look['trainers'] + look['validators'] + look['others'] for look in run.looks)
    share = f' ({100 * sum(seconds) / run.duration:.1f} % of the time)' if run.duration else ''
    return (
        f'{run.name}: at most {peak["total"] / 1e6:,.0f} MB ({peak["moment"]}, iteration {peak["iter"]}); '
        f'{len(seconds)} looks at up to {processes} processes took {1e3 * statistics.median(seconds):.0f} ms each '
        f'(median){share}'
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw as the command line says."""
    args = parse_args(arguments)
    try:
        runs = [read_run(path, name) for path, name in zip(args.runs, args.names or names_of(args.runs))]
    except (BadRecords, OSError) as error:
        raise SystemExit(f'error: {error}') from None
    try:
        from memory_picture import draw
    except ImportError as error:
        raise SystemExit(f'error: {error}. matplotlib is needed: pip install matplotlib') from None
    for run in runs:
        print(summary(run))
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        draw(runs, args.title, args.out)
    except (OSError, ValueError) as error:  # the latter: a kind of file that matplotlib does not know
        raise SystemExit(f'error: {args.out} cannot be written: {error}') from None
    print(os.fspath(args.out))


if __name__ == '__main__':
    main()
