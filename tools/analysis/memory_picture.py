"""The picture of ``plot_memory.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from memory_records import PARTS, Run

MOST_PANELS = 4
_RUNS = ('#c1272d', '#0b5fa5', '#2e8540', '#8250c4', '#b35900', '#5c5c5c')
_PARTS = {
    'shared': ('shared otherwise: libraries, pages inherited by fork', '#c9ced6'),
    'main': ('private: main processes', '#6f87ad'),
    'train_workers': ('private: train workers', '#e8894a'),
    'val_workers': ('private: val workers', '#58a868'),
    'other': ('private: other processes', '#8d8d8d'),
    'annotations': ('mapped annotations', '#a678c2'),
    'shm': ('/dev/shm: batches in flight', '#e3c44d'),
}
_PHASES = {'train': ('training', '#fbeee4'), 'val': ('validation', '#e2f1e4'), 'test': ('test', '#e6ecf7')}
_BREAK = {'color': '#333333', 'linestyle': ':', 'linewidth': 1}


def draw(runs: Sequence[Run], title: str, out: Path) -> None:
    """Draw ``runs`` into the file ``out``; its suffix says which kind. With many runs, only their totals.

    Raises:
        OSError, ValueError: it cannot be written.
    """
    details = list(runs) if len(runs) <= MOST_PANELS else []
    unit, suffix = (1e9, 'GB') if max(look['total'] for run in runs for look in run.looks) >= 10e9 else (1e6, 'MB')
    second, word = (60, 'minutes') if max(run.duration for run in runs) > 600 else (1, 'seconds')
    figure, axes = plt.subplots(
        1 + len(details),
        sharex=True,
        squeeze=False,
        figsize=(11, 3.4 + 2.5 * len(details)),
        gridspec_kw=dict(height_ratios=[1.25, *[1] * len(details)]),
        layout='constrained',
    )
    top, *panels = axes[:, 0]
    _draw_totals(top, runs, unit, second)
    top.set_title(title, loc='left', fontweight='bold')
    for axis, run in zip(panels, details):
        _draw_parts(axis, run, unit, second)
    if panels:
        highest = max(axis.get_ylim()[1] for axis in panels)
        for axis in panels:
            axis.set_ylim(0, highest)
        figure.legend(handles=_key(details), loc='outside lower center', ncols=3, frameon=False, fontsize=9)
    for axis in (top, *panels):
        axis.set_ylabel(suffix)
        axis.yaxis.set_major_formatter('{x:,.0f}' if unit < 1e9 else '{x:,.1f}')
        axis.spines[['top', 'right']].set_visible(False)
        axis.margins(x=0)
    axes[-1, 0].set_xlabel(f'{word} since the first look')
    try:
        figure.savefig(out, dpi=130)
    finally:
        plt.close(figure)


def _draw_totals(axis: Any, runs: Sequence[Run], unit: float, second: float) -> None:
    """One line a run, with a ribbon of its phases below all lines."""
    for number, run in enumerate(runs):
        colour = _RUNS[number % len(_RUNS)]
        values = [look['total'] / unit for look in run.looks]
        peak = f'{max(values):,.0f} MB' if unit < 1e9 else f'{max(values):,.2f} GB'
        text = f'{run.name}: at most {peak} at a look'
        axis.plot(_scaled(run.times, second), values, color=colour, marker='o', markersize=3, linewidth=1.6, label=text)
    low, high = axis.get_ylim()
    height = (high - low) * 0.05
    for number, run in enumerate(runs):
        bottom = low - (number + 1) * height * 1.5
        for phase, begin, end in run.phases():
            axis.broken_barh(
                [(begin / second, (end - begin) / second)],
                (bottom, height),
                facecolors=_RUNS[number % len(_RUNS)],
                alpha=0.25 if phase == 'train' else 0.9,
                linewidth=0,
            )
    axis.set_ylim(low - (len(runs) + 0.6) * height * 1.5, high + 2 * height)
    axis.legend(loc='best', frameon=False)
    axis.annotate(
        'the axis does not begin at 0; bars: training pale, validation dark',
        (1, 1.02),
        xycoords='axes fraction',
        ha='right',
        va='bottom',
        fontsize=9,
        color='#555555',
    )
    axis.grid(axis='y', color='#e5e5e5')
    axis.set_axisbelow(True)


def _draw_parts(axis: Any, run: Run, unit: float, second: float) -> None:
    """What the memory of a run consists of, one on top of the other, and its phases."""
    times = _scaled(run.times, second)
    for phase, begin, end in run.phases():
        axis.axvspan(begin / second, end / second, color=_PHASES[phase][1], linewidth=0, zorder=0)
    values = [[look[part] / unit for look in run.looks] for part in _PARTS]
    axis.stackplot(times, values, colors=[colour for _, colour in _PARTS.values()], linewidth=0, zorder=2)
    axis.plot(times, [look['total'] / unit for look in run.looks], color='#333333', linewidth=0.9, zorder=3)
    for moment in run.breaks:
        axis.axvline(moment / second, zorder=4, **_BREAK)
    axis.set_ylim(bottom=0, top=1.12 * max(look['total'] for look in run.looks) / unit)
    axis.set_title(run.name, loc='left', fontsize=10)


def _key(runs: Sequence[Run]) -> List[Artist]:
    """What the colours of the lower panels mean, as far as they occur."""
    looks = [look for run in runs for look in run.looks]
    phases = {phase for run in runs for phase, _, _ in run.phases()}
    parts = [
        Patch(color=colour, label=text) for part, (text, colour) in _PARTS.items() if any(look[part] for look in looks)
    ]
    shades = [
        Patch(facecolor=colour, edgecolor='#bbbbbb', label=text)
        for phase, (text, colour) in _PHASES.items()
        if phase in phases
    ]
    resumed = [Line2D([], [], label='resumed', **_BREAK)] if any(run.breaks for run in runs) else []
    return parts + shades + resumed


def _scaled(times: Sequence[float], second: float) -> List[float]:
    return [time / second for time in times]


assert set(_PARTS) == set(PARTS)
