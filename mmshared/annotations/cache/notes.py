"""Small texts that one process leaves for the others of its job, valid as long as one that knows it is alive.

Like everything here, a note's life hangs on a lock: each process that reads it holds the file, shared, until it ends.
A note that nobody holds belongs to a job that is over. It is never read, and whoever comes across it removes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Optional, Tuple

from . import holds

_held: Dict[Path, Tuple[holds.Hold, str]] = {}


def keep(path: Path, text: str) -> None:
    """Keep the note at ``path``, which says ``text``, valid until this process ends.

    Raises:
        OSError: It is gone or cannot be opened.
    """
    _held[path] = holds.hold(path), text


def read(path: Path) -> Optional[str]:
    """The text of the note at ``path``, which this process now keeps valid as well.

    None if there is none, if the job it was left in is over, or if file locks do not work there.
    """
    try:
        with holds.exclusive(path) as free:
            if free:
                os.unlink(path)
            if free is not False:
                return None
        held = holds.hold(path)
        with os.fdopen(os.dup(held.fileno()), encoding='utf-8') as file:
            _held[path] = held, file.read()
    except OSError:
        return None
    return _held[path][1]


if hasattr(os, 'register_at_fork'):
    # A worker that outlives a killed trainer by some seconds must not pass the note on to the trainer's successor.
    os.register_at_fork(after_in_child=_held.clear)
