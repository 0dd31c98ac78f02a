"""Reading what ``NodeMemoryHook`` wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

FILE = 'node_memory.jsonl'
PARTS = ('main', 'train_workers', 'val_workers', 'other', 'annotations', 'shm', 'shared')
_COUNTS = ('ranks', 'trainers', 'validators', 'others')
_NUMBERS = ('time', 'began', 'iter', 'start', 'seconds', 'total', 'pss', *_COUNTS, *PARTS)
_ADVICE = 'Is NodeMemoryHook among the default_hooks of the config, and has the job begun?'
Look = Dict[str, Any]


class BadRecords(Exception):
    """There is nothing to draw; the message says where and what to do."""


@dataclass
class Run:
    """One job.

    Attributes:
        name: what it is called.
        looks: as recorded, in order of time.
        times: seconds since the first look, for each; the time between a job's end and its resumption is left out.
        breaks: when it was resumed, in these seconds.
    """

    name: str
    looks: List[Look] = field(default_factory=list)
    times: List[float] = field(default_factory=list)
    breaks: List[float] = field(default_factory=list)
    _begins: List[float] = field(default_factory=list)

    def add(self, session: List[Look]) -> None:
        """Go on with the looks of one start of the job."""
        offset = self.duration
        if self.times:
            self.breaks.append(offset)
        shift = offset - session[0]['time']
        self.looks += session
        self.times += [look['time'] + shift for look in session]
        self._begins += [max(offset, look['began'] + shift) for look in session]

    @property
    def duration(self) -> float:
        """Seconds from the first look to the last."""
        return self.times[-1] if self.times else 0.0

    def phases(self) -> List[Tuple[str, float, float]]:
        """Name, begin and end of each phase that lasted."""
        ends = [*self._begins[1:], self.duration]
        found: List[Tuple[str, float, float]] = []
        for look, begin, end, now in zip(self.looks, self._begins, ends, self.times):
            if found and found[-1][1] == begin:  # still the same one
                found.pop()
            if look['phase'] is not None:
                found.append((look['phase'], begin, max(end, now)))
        return [(name, begin, end) for name, begin, end in found if end > begin]


def read_run(path: Path, name: str) -> Run:
    """The job whose work folder, a folder in it, or file ``path`` is.

    A work folder has one folder per start. The latest is taken, and those that it resumed.

    Raises:
        BadRecords: no file is there, or it holds nothing that could be drawn.
    """
    sessions = [read_looks(file) for file in _files(path)]
    chosen = [sessions.pop()]
    while sessions and chosen[0][0]['start'] > 0:  # it was resumed
        chosen.insert(0, sessions.pop())
    run = Run(name)
    for session in chosen:
        run.add(session)
    return run


def read_looks(path: Path) -> List[Look]:
    """The looks of one file, in order of time.

    A last line that a killed job has not finished is left out.

    Raises:
        BadRecords: another line is damaged, or there is none.
    """
    *lines, last = path.read_text(encoding='utf-8', errors='replace').split('\n')
    looks = []
    for number, line in enumerate(lines, 1):
        look = _look(line)
        if look is None:
            remedy = 'Remove the line' if looks else 'Give the work folder, or node_memory.jsonl in its vis_data folder'
            raise BadRecords(f'{path}, line {number}: is no record of NodeMemoryHook. {remedy}')
        looks.append(look)
    if last and (look := _look(last)) is not None:
        looks.append(look)
    if not looks:
        raise BadRecords(f'{path}: holds no look. {_ADVICE}')
    return sorted(looks, key=lambda look: look['time'])


def _look(line: str) -> Optional[Look]:
    try:
        look = json.loads(line)
        whole = all(isinstance(look[key], (int, float)) for key in _NUMBERS)
        return look if whole and isinstance(look['moment'], str) and 'phase' in look else None
    except (ValueError, KeyError, TypeError):
        return None


def _files(path: Path) -> List[Path]:
    """The files of ``path``, the latest start last."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise BadRecords(f'{path}: there is no such file or folder')
    for pattern in (FILE, f'vis_data/{FILE}', f'*/vis_data/{FILE}'):  # folders are named after the time of the start
        found = sorted(path.glob(pattern))
        if found:
            return found
    raise BadRecords(f'{path}: no {FILE} in there. {_ADVICE}')
