"""What was measured, as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import psutil

from mmshared.utils.stack import stack_versions


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: key in ``results.json``.
        title: what was measured, with its unit.
        stock: of stock (mmdet's ``CocoDataset``, MMEngine's loops); None if it has no such thing.
        shared: of ours (``SharedCocoDataset``, the lean loops).
        kind: how the two compare: 'time' and 'size' are better when small, 'speed' when great.
        ratio: shared / stock, if that is not just the quotient of the two.
        note: what to know about the figures.
        runs: the single measurements, where the figures are medians.
    """

    name: str
    title: str
    stock: Optional[float]
    shared: float
    kind: str = 'size'
    ratio: Optional[float] = None
    note: str = ''
    runs: Optional[Dict[str, List[float]]] = None

    def __post_init__(self) -> None:
        if self.ratio is None and self.stock and self.stock > 0 and self.shared > 0:
            object.__setattr__(self, 'ratio', self.shared / self.stock)

    def comparison(self) -> str:
        """The ratio in words: '5.2x faster'."""
        if self.ratio is None:
            return '-'
        words = {'time': ('faster', 'slower'), 'size': ('less', 'more'), 'speed': ('slower', 'faster')}
        times, word = (1 / self.ratio, words[self.kind][0]) if self.ratio <= 1 else (self.ratio, words[self.kind][1])
        return f'{_figure(times)}x {word}' if times < 1000 else f'over 1,000x {word}'


def table(rows: Sequence[Row], columns: Sequence[str] = ('CocoDataset', 'SharedCocoDataset', 'shared is')) -> str:
    """The rows as Markdown, aligned so that it reads well as plain text too. ``columns``: stock, ours, comparison."""
    lines = [('', *columns)]
    lines += [(row.title, _figure(row.stock), _figure(row.shared), row.comparison()) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, tuple('-' * (width - 1) + ':' if i else '-' * width for i, width in enumerate(widths)))
    text = [
        ' | '.join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    ]
    notes = [f'- {row.title}: {row.note}' for row in rows if row.note]
    return '\n'.join([f'| {line} |' for line in text] + [''] * bool(notes) + notes)


def figures(values: Dict[str, float]) -> str:
    """A table of two columns: what, and how much."""
    width = max(map(len, values))
    lines = ['', '-' * width] + list(values)
    cells = ['shared', '---:'] + [f'{v:,}' if isinstance(v, int) else _figure(v) for v in values.values()]
    return '\n'.join(f'| {line.ljust(width)} | {cell.rjust(10)} |' for line, cell in zip(lines, cells))


def matrix(columns: Sequence[str], rows: Dict[str, Sequence[Any]]) -> str:
    """A table of several columns; numbers get three digits, texts stay as they are."""
    cells = [[v if isinstance(v, str) else _figure(v) for v in values] for values in rows.values()]
    lines = [['', *columns], ['---', *['---:'] * len(columns)]]
    lines += [[title, *values] for title, values in zip(rows, cells)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def machine() -> Dict[str, Any]:
    """Facts about this machine and the versions of what is measured."""
    cores = len(os.sched_getaffinity(0))
    facts = {
        'cores': cores,
        'memory_gb': round(psutil.virtual_memory().total / 1e9, 1),
        'kernel': platform.release(),
        'python': platform.python_version(),
    }
    return {**facts, **{package: version(package) for package in ('numpy', 'torch')}, **stack_versions()}


def sentence(facts: Dict[str, Any]) -> str:
    """Facts on one line."""
    return ', '.join(f'{key.replace("_", " ")} {value}' for key, value in facts.items())


def write(folder: Path, text: str, facts: Dict[str, Dict[str, Any]], rows: Sequence[Row]) -> None:
    """Write ``table.md`` and ``results.json`` into ``folder``, which is created if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'table.md').write_text(text + '\n', encoding='utf-8')
    results = {**facts, 'results': {row.name: asdict(row) for row in rows}}
    (folder / 'results.json').write_text(json.dumps(results, indent=1) + '\n', encoding='utf-8')


def _figure(value: Optional[float]) -> str:
    """A number with three digits that mean something."""
    if value is None:
        return '-'
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f'{value:,.{digits}f}'
