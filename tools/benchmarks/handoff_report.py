"""What :mod:`bench_handoff` found, as text: tables, and what a reader should not have to look for."""

from __future__ import annotations

import argparse
from statistics import median, quantiles
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import report

KINDS = ('stock', 'ours')
PARTS = ('time', 'memory', 'device')
#: The least that ours may reach of stock's speed.
LIMITS = {'single': 0.97}
TITLES = {
    'ms': 'ms a batch',
    'loop_ms': 'ms, waiting for the batch included',
    'main_cpu_ms': 'main process, processor ms',
    'cpu_ms': 'with workers, processor ms',
    'descriptors': 'descriptors',
    'mappings': 'shared mappings',
    'pss_mb': 'PSS, MB',
    'all_mb': 'PSS and what nobody has mapped, MB',
    'added_mb': 'that above samples and imports, MB',
    'copies': 'copies',
    'peak_mb': 'device memory, MB',
}
MOVED = 'Stock has the batch unpacked before that, ours unpacks it here.'
Found = Dict[str, Any]


# ---- figures
def spread(runs: Sequence[float]) -> Found:
    """Median, quartiles, least and most of several runs, and the runs."""
    quarters = quantiles(runs, n=4, method='inclusive') if len(runs) > 1 else [*runs] * 3
    found = {'median': median(runs), 'q1': quarters[0], 'q3': quarters[2], 'min': min(runs), 'max': max(runs)}
    return {**found, 'runs': list(runs)}


def spreads(runs: Sequence[Dict[str, float]]) -> Found:
    """As :func:`spread`, of each figure."""
    return {name: spread([run[name] for run in runs]) for name in runs[0]}


def ratios(runs: Sequence[Dict[str, Dict[str, float]]]) -> Found:
    """Stock / ours of the passes that followed on each other."""
    return spread([run['stock']['ms'] / run['ours']['ms'] for run in runs])


def figure(value: float) -> str:
    """A number with three digits that mean something."""
    return f'{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}'


def ranged(values: Found, low: str = 'q1', high: str = 'q3') -> str:
    """A median and its range."""
    return f'{figure(values["median"])} ({figure(values[low])} to {figure(values[high])})'


# ---- what is printed
def time_table(results: Dict[str, Found], ours: str) -> str:
    """Milliseconds a batch."""
    rows = {}
    for title, found in _with_part(results, 'time'):
        times = [ranged(found[kind]['ms']) for kind in (*KINDS, 'none')]
        rows[title] = [*times[:2], ranged(found['ratio'], 'min', 'max'), times[2]]
    return report.matrix(('stock', ours, f'stock / {ours}', 'no batch sent'), rows)


def pairs_table(results: Dict[str, Found], part: str, names: Sequence[str], ours: str) -> str:
    """Stock and ours beside each other, for each of ``names``."""
    rows = {
        title: [_cell(found[kind][name]) for name in names for kind in KINDS]
        for title, found in _with_part(results, part)
    }
    columns = [f'{TITLES[name]}: {kind}' for name in names for kind in ('stock', ours)]
    return report.matrix(columns, rows)


def _cell(value: Any) -> str:
    return ranged(value) if isinstance(value, dict) else figure(value)


def _with_part(results: Dict[str, Found], part: str) -> Iterator[Tuple[str, Found]]:
    for title, found in results.items():
        if found.get(part) is not None:
            yield title, found[part]


def findings(results: Dict[str, Found], ours: str) -> List[str]:
    """What a reader should not have to look for: shares, limits, and every figure in which ours is worse."""
    lines = []
    for title, found in _with_part(results, 'time'):
        name = title.split(':')[0]
        if name == 'jpeg':
            for kind, who in zip(KINDS, ('stock', ours)):
                clock, processor = (f'{100 * found["share"][kind][what]["median"]:.0f}%' for what in ('ms', 'cpu_ms'))
                lines.append(f'{title}: with {who}, sending is {clock} of the time, {processor} of the processor time.')
        if name in LIMITS:
            met = 'is reached' if found['ratio']['median'] >= LIMITS[name] else 'IS NOT REACHED'
            lines.append(f'{title}: {figure(found["ratio"]["median"])}x; the limit of {LIMITS[name]}x {met}.')
    worse = worse_figures(results)
    if worse:
        lines.append(f'Worse with {ours} than with stock: {"; ".join(worse)}.')
    else:
        lines.append(f'No figure is worse with {ours} than with stock.')
    return lines


def worse_figures(results: Dict[str, Found]) -> List[str]:
    """Each figure, of all parts, whose median is higher with ours."""
    worse = []
    for title, found in results.items():
        for part in PARTS:
            values = found.get(part) or {}
            for name in TITLES:
                if name in values.get('stock', {}):
                    stock, ours = (_typical(values[kind][name]) for kind in KINDS)
                    if ours > stock:
                        worse.append(f'{title}: {TITLES[name]} {figure(ours)} instead of {figure(stock)}')
    return worse


def _typical(value: Any) -> float:
    return value['median'] if isinstance(value, dict) else value


def text_of(results: Dict[str, Found], args: argparse.Namespace, conditions: Found, has_device: bool) -> str:
    """All tables, with what they mean."""
    ours = args.collate
    passes = f'median and quartiles of {args.repeats} passes of {args.seconds:g} s in turns'
    parts = [
        f'{report.sentence(conditions["machine"])}\n'
        f'{args.workers} workers, {args.start_method}; '
        f'load {conditions["load_before"][0]:.1f} before, {conditions["load_after"][0]:.1f} after'
    ]
    if 'time' in args.parts:
        compared = 'the quotient is the median of those of passes that followed on each other (least to most)'
        parts.append(f'Milliseconds a batch: {passes}; {compared}.\n\n{time_table(results, ours)}')
        table = pairs_table(results, 'time', ('main_cpu_ms', 'cpu_ms'), ours)
        parts.append(f'Processor time a batch: {passes}.\n\n{table}')
    if 'memory' in args.parts:
        what = 'What the main process holds for a batch, and the highest memory of a whole job'
        table = pairs_table(results, 'memory', ('descriptors', 'mappings', 'pss_mb', 'all_mb', 'added_mb'), ours)
        parts.append(f'{what}.\n\n{table}')
    if 'device' in args.parts and has_device:
        pinned = 'pinned' if args.pin_memory else 'pageable'
        table = pairs_table(results, 'device', ('ms', 'loop_ms', 'copies', 'peak_mb'), ours)
        parts.append(f'From {pinned} memory to the device, a batch: {passes}. {MOVED}\n\n{table}')
    elif 'device' in args.parts:
        parts.append('Moves to a device: not measured, there is no CUDA device here.')
    return '\n\n'.join([*parts, '\n'.join(findings(results, ours))])
