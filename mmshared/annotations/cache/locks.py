"""File locks that die with their holder.

The kernel drops a ``flock`` when the last descriptor of its open file is closed, so a process that was killed never
blocks the others. Three things need care, and are dealt with here: a lock *file* that is removed while others wait for
it (they must notice that theirs is no longer the one at the path), a child process forked while the lock is held (it
must not keep it), and file systems where ``flock`` hangs, fails or does nothing (probed first, with a time limit).

Windows has no ``flock``: there :data:`SUPPORTED` is False, nothing is locked, and each process builds for itself.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Dict, Optional

from .errors import SPACE_ERRNOS, explain

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUPPORTED = fcntl is not None
NOTE_BYTES = 8192
POLL_SECONDS = 0.05
PROBE_SECONDS = 5.0

Note = Dict[str, Any]


def try_lock(fd: int, shared: bool = False) -> bool:
    """Take a flock on the open file ``fd`` if it is free; False if another open file has it.

    Raises:
        OSError: The file system has no flock (ENOLCK, ENOTSUP...).
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Drop the flock of the open file ``fd``, for all descriptors of it, in forked children too."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(fd: int, path: os.PathLike) -> bool:
    """Whether ``path`` still names the open file ``fd``, rather than nothing or a successor."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """The result of ``action()``, run in a helper thread that is left behind if it takes longer.

    Raises:
        TimeoutError: It did not end in time.
        Exception: Whatever ``action`` raised.
    """
    outcome: Dict[str, Any] = {}

    def run() -> None:
        try:
            outcome['value'] = action()
        except BaseException as error:
            outcome['error'] = error

    thread = threading.Thread(target=run, name='mmshared-probe', daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f'no answer within {seconds:g} s')
    if 'error' in outcome:
        raise outcome['error']
    return outcome['value']


@functools.lru_cache(maxsize=64)
def problem(folder: Path) -> Optional[str]:
    """Why file locks in ``folder`` cannot be trusted, or None if they work; tried once per process and folder.

    Raises:
        OSError: The disk is full: nothing can be said about its locks.
    """
    if not SUPPORTED:
        return 'this system has no flock'
    try:
        works = within(PROBE_SECONDS, lambda: _excludes(folder))
    except OSError as error:  # TimeoutError too
        if error.errno in SPACE_ERRNOS:
            raise
        return f'flock fails there ({error.strerror or error})'
    return None if works else 'flock does not exclude anyone there'


def _excludes(folder: Path) -> bool:
    """Lock a file in ``folder`` through one descriptor, and see that another one is refused."""
    if os.path.isdir('/proc/self/fd'):
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name: nothing is left by a kill
            other = os.open(f'/proc/self/fd/{file.fileno()}', os.O_RDWR | os.O_CLOEXEC)
            return _refused(file.fileno(), other)
    with tempfile.NamedTemporaryFile(dir=folder, prefix='.', suffix='.probe') as file:
        return _refused(file.fileno(), os.open(file.name, os.O_RDWR | os.O_CLOEXEC))


def _refused(fd: int, other: int) -> bool:
    try:
        return try_lock(fd) and not try_lock(other) and not try_lock(other, shared=True)
    finally:
        os.close(other)


class BuildLock:
    """An exclusive lock on a file that lives as long as the work it guards and carries a note about it.

    The note is a JSON object: how far the work is, and after a failure why. It is written in place into space that is
    reserved at once, so a disk that fills up meanwhile cannot keep it from being written.

    Args:
        path: The lock file. It is created, and removed on release.
        label: What the work is about, for error messages.
    """

    _open: weakref.WeakSet[BuildLock] = weakref.WeakSet()

    def __init__(self, path: Path, label: str) -> None:
        self.path = path
        self.label = label
        self._fd: Optional[int] = None

    def acquire(self, waiting: Callable[[Note], None]) -> Optional[Note]:
        """Take the lock, or wait for the one who has it.

        Args:
            waiting: Called with the holder's note, every :data:`POLL_SECONDS` while waiting.

        Returns:
            None if the lock is now held. Else the note that the former holder left when it ended: the lock is NOT held,
            and whatever it guards deserves another look.

        Raises:
            CacheSpaceError: The disk is full.
            CacheAccessError: The lock file cannot be created, or locked.
        """
        try:
            return self._acquire(waiting)
        except OSError as error:
            raise explain(error, self.path.parent, self.label) from error

    def _acquire(self, waiting: Callable[[Note], None]) -> Optional[Note]:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, 'O_NOFOLLOW', 0), 0o600)
        self._fd = fd
        self._open.add(self)
        try:
            while not try_lock(fd):
                waiting(_read(fd))
                time.sleep(POLL_SECONDS)
            if not is_at(fd, self.path):
                note = _read(fd)
                self._close()
                return note
        except BaseException:
            self._close()
            raise
        try:
            self.leave({})
        except OSError:
            self.release()
            raise
        return None

    def leave(self, note: Note) -> None:
        """Replace the note that those who wait can read; of a forked child, nothing happens."""
        if self._fd is None:
            return
        data = json.dumps(note).encode('ascii')
        if len(data) > NOTE_BYTES:
            raise ValueError(f'a note of {len(data)} bytes, {NOTE_BYTES} are reserved')
        os.pwrite(self._fd, data.ljust(NOTE_BYTES), 0)

    def release(self) -> None:
        """Remove the lock file, then drop the lock, so that no stale file is left for the next one."""
        if self._fd is None:
            return
        try:
            if is_at(self._fd, self.path):
                os.unlink(self.path)
        except OSError:  # a folder that turned read-only: the file is harmless, nobody holds it
            pass
        finally:
            unlock(self._fd)  # explicitly: a child forked without Python's knowledge may still have the descriptor
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        self._open.discard(self)
        if fd is not None:
            os.close(fd)

    @classmethod
    def _forget_all(cls) -> None:
        """In a forked child: close its copies, so that the locks die with the parent alone."""
        for lock in list(cls._open):
            lock._close()


class NoLock:
    """Stands in for :class:`BuildLock` where no file lock works: every process builds, publishing is atomic anyway."""

    def acquire(self, waiting: Callable[[Note], None]) -> Optional[Note]:
        """Never waits."""

    def leave(self, note: Note) -> None:
        """Nobody reads it."""

    def release(self) -> None:
        """Nothing to drop."""


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=BuildLock._forget_all)


def _read(fd: int) -> Note:
    """The note in a lock file; empty if it is not (yet) there or is being written just now."""
    try:
        note = json.loads(os.pread(fd, NOTE_BYTES, 0))
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}
