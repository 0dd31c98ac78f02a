"""Who uses a store: a shared lock on the store file itself, held as long as it is mapped.

Cleaning up takes the exclusive lock, so it can never remove a store in use, and a crashed user holds nothing. The lock
belongs to the open file: workers forked after :func:`hold` share it and keep it alive, others take their own.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Iterator, Optional

from . import locks
from .filesystem import network_filesystem

_CLOEXEC = getattr(os, 'O_CLOEXEC', 0)
_PATIENCE_SECONDS = 10.0  # someone who looks whether a file is in use has it for microseconds
_FRESH_NS = 3600 * 10**9  # the time of last use is kept to the hour


class Hold:
    """An open store file that nobody removes until :meth:`close` (or until this object is garbage).

    A copy, also one by pickle in another process, opens and holds the path anew.

    Attributes:
        path: Where it was opened.
        locked: Whether the mark 'in use' is set. Without it (no flock here) the mapping is safe all the same on POSIX,
            as a mapped file outlives its name; only disk space is not saved by whoever removes it.
    """

    def __init__(self, path: Path, fd: int, locked: bool) -> None:
        self.path = path
        self.locked = locked
        self._fd: Optional[int] = fd

    def fileno(self) -> int:
        """The descriptor, open for reading: map this one to be sure to map the file that is held.

        Raises:
            ValueError: The hold was closed.
        """
        if self._fd is None:
            raise ValueError(f'The hold on {self.path} was closed.')
        return self._fd

    def close(self) -> None:
        """Stop holding the file in this process; forked children go on with their copies."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        return hold, (self.path,)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()


def hold(path: os.PathLike) -> Hold:
    """Open the store at ``path`` and mark it as in use. Keep the result as long as the store is mapped.

    Raises:
        FileNotFoundError: It is not there, or was removed just now: get it from the cache again.
        OSError: It cannot be opened.
    """
    path = Path(path)
    while True:
        fd = os.open(path, os.O_RDONLY | _CLOEXEC | getattr(os, 'O_BINARY', 0))
        try:
            locked = _share(fd, path)
            current = os.path.samestat(os.fstat(fd), os.stat(path))
        except BaseException:
            os.close(fd)
            raise
        if current:
            _stamp(fd)
            return Hold(path, fd, locked)
        os.close(fd)  # replaced between the two calls: open its successor


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[Optional[bool]]:
    """Whether nobody uses the file at ``path`` (None: no lock can tell); nobody new can start to before the block ends.

    Gone already counts as in use: there is nothing to remove.
    """
    try:
        try:
            fd = os.open(path, os.O_RDWR | _CLOEXEC)  # some network file systems lock only what is open for writing
        except OSError:
            fd = os.open(path, os.O_RDONLY | _CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        free = _try(fd, path, shared=False)
        yield free and locks.is_at(fd, path)
    finally:
        os.close(fd)


def in_use(path: Path) -> bool:
    """Whether some process, this one included, holds the file at ``path``."""
    try:
        with exclusive(path) as free:
            return free is False
    except OSError:
        return False


def _share(fd: int, path: Path) -> bool:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        got = _try(fd, path, shared=True)
        if got is not False or time.monotonic() > end:
            return bool(got)
        time.sleep(0.005)


def _try(fd: int, path: Path, shared: bool) -> Optional[bool]:
    """try_lock that also works where locks do not: None then. With a time limit where they may hang."""
    if not locks.SUPPORTED:
        return None
    try:
        if network_filesystem(path.parent):
            return locks.within(locks.PROBE_SECONDS, lambda: locks.try_lock(fd, shared))
        return locks.try_lock(fd, shared)
    except OSError:
        return None


def _stamp(fd: int) -> None:
    """Note the time of use, to prune by, as the access time: set by hand since many disks are mounted noatime."""
    info = os.fstat(fd)
    now = time.time_ns()
    if now - info.st_atime_ns > _FRESH_NS and os.utime in os.supports_fd:
        with contextlib.suppress(OSError):  # somebody else's file, or a read-only disk
            os.utime(fd, ns=(now, info.st_mtime_ns))
