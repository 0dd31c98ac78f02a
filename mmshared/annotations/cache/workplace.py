"""Where code that is not ours, such as a download, may leave temporary files: they go, whatever happens to it.

Such code picks names by the ``tempfile`` module and keeps files without a lock, so if it is killed nobody can tell that
they are leftovers. In a folder of their own, with a lock on the folder, :func:`.publish.sweep` can.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Iterator, List, Optional

from . import locks
from .publish import DRAFT_SUFFIX

_one_at_a_time = threading.Lock()
_kept: List[Optional[int]] = []  # locks of folders that are not empty


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A new folder in ``folder``, removed after the block, or by :func:`.publish.sweep` if this process is killed.

    What is still in it after the block stays as long as this process lives: it may be another thread's.

    Raises:
        OSError: It cannot be made.
    """
    path, fd = _make(folder)
    try:
        yield path
    finally:
        try:
            os.rmdir(path)
        except OSError:
            _kept.append(fd)
        else:
            if fd is not None:
                os.close(fd)


@contextlib.contextmanager
def tempfiles_in(folder: Path) -> Iterator[None]:
    """Within the block, the module ``tempfile`` makes files in ``folder``, for all threads of this process."""
    with _one_at_a_time:
        before, tempfile.tempdir = tempfile.tempdir, os.fspath(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before


def _make(folder: Path) -> tuple[Path, Optional[int]]:
    """A new folder, and the descriptor that has its lock; None where locks do not work (on Windows, say)."""
    while True:
        path = Path(tempfile.mkdtemp(DRAFT_SUFFIX, '.', folder))
        if locks.problem(folder) is not None:
            return path, None
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            fd = os.open(path, os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0))
            if locks.try_lock(fd) and locks.is_at(fd, path):
                return path, fd
            os.close(fd)
