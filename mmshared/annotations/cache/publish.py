"""Files that appear complete or not at all.

A draft has no name until it is published, so a crash at any moment leaves nothing behind: the kernel frees a nameless
file with its last descriptor. Where the file system cannot do that, a draft has a temporary name and a lock; one whose
lock is free belongs to a process that died, and :func:`sweep` removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO, Callable, Optional

from . import holds, locks
from .errors import SPACE_ERRNOS, explain

Write = Callable[[BinaryIO], Any]
Finish = Callable[[int], Any]

DRAFT_SUFFIX = '.draft'
LOCK_SUFFIX = '.lock'
NOTE_SUFFIX = '.note'
DATA_SUFFIX = '.mmdata'
JOB_DATA_SUFFIX = f'.job{DATA_SUFFIX}'
_DRAFT = re.compile(r'\.[0-9a-z_]{8,16}\.draft')
_OURS = re.compile(
    rf'{_DRAFT.pattern}|(.*-)?[0-9a-f]{{16}}\.note(\.lock)?|.+\.mmstore\.lock|.+\.[0-9a-f]{{16}}\.derived\.lock'
    r'|[0-9a-f]{16}\.job\.mmdata|.+-[0-9a-f]{32}\.mmdata\.lock',
    re.DOTALL,
)
_ABANDONED_SECONDS = 24 * 3600.0  # for drafts where no lock can tell
_BUFFER = 1 << 20
_CLOEXEC = getattr(os, 'O_CLOEXEC', 0)
# What a file system (or an odd sandbox) answers if it cannot make, or cannot name, a nameless file.
_CANNOT = frozenset(
    (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EMLINK)
)


class Draft:
    """A file being written in ``folder``, which others see from :meth:`publish` on. Also a context manager.

    Attributes:
        file: The open binary file: read, write, seek. Its content must go through ``write``, not a mapping: pages of a
            sparse file that the disk has no room for kill the process (SIGBUS) instead of raising.
    """

    def __init__(self, folder: Path, nameless: bool = True) -> None:
        self.folder = folder
        self._name: Optional[Path] = None
        fd = _open_nameless(folder) if nameless else None
        if fd is None:
            fd = self._open_named()
        self.file: BinaryIO = os.fdopen(fd, 'w+b', buffering=_BUFFER)

    def publish(self, target: Path, durable: bool = True) -> int:
        """Sync the file to the disk and give it the name ``target``. A file of that name is replaced, not overwritten.

        With ``durable=False`` it is not synced: for what nobody wants any more after the machine went down.

        Until :meth:`close` it counts as in use, so that nobody who cleans up can take it away at once.

        Returns:
            Bytes of the file.

        Raises:
            OSError: Disk full, folder gone or read-only...; nothing is visible then.
        """
        self.file.flush()
        size = os.fstat(self.file.fileno()).st_size
        if durable:
            os.fsync(self.file.fileno())
        if self._name is None and locks.problem(self.folder) is None:
            locks.try_lock(self.file.fileno(), shared=True)
        if self._name is None and not self._link(target):
            self._copy_to_named()
        if self._name is not None:
            if os.name == 'nt':  # an open file cannot be renamed there
                self.file.close()
            os.replace(self._name, target)  # those who mapped a file of that name keep it
            self._name = None
            if locks.problem(self.folder) is None:
                locks.try_lock(self.file.fileno(), shared=True)  # was exclusive, to tell it from an abandoned one
        if durable:
            sync_folder(self.folder)
        return size

    def close(self) -> None:
        """Close the file; it is gone unless it was published."""
        with contextlib.suppress(OSError):  # what is still buffered may not fit on the disk: no matter
            self.file.close()
        if self._name is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._name)
            self._name = None

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_named(self) -> int:
        while True:
            name = self.folder / f'.{secrets.token_hex(8)}{DRAFT_SUFFIX}'
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _CLOEXEC | getattr(os, 'O_BINARY', 0), 0o644)
            if locks.problem(self.folder) is not None or (locks.try_lock(fd) and locks.is_at(fd, name)):
                self._name = name
                return fd
            os.close(fd)  # it is being swept, as it was not locked yet
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    def _link(self, target: Path) -> bool:
        """Name the nameless file ``target``, or for now ``self._name`` if there is a file; False if it cannot be."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | _CLOEXEC)
        try:
            while True:
                try:
                    # Only with a dir_fd does os.link use linkat(2), which can follow the link in /proc.
                    os.link(f'/proc/self/fd/{self.file.fileno()}', target.name, dst_dir_fd=folder, follow_symlinks=True)
                    return True
                except FileExistsError:
                    # Replaced in one step, so that there is a file of that name at any time.
                    self._name = self.folder / f'.{secrets.token_hex(8)}{DRAFT_SUFFIX}'
                    target = self._name
        except OSError as error:
            if error.errno in _CANNOT and self.folder.is_dir():
                return False
            raise
        finally:
            os.close(folder)

    def _copy_to_named(self) -> None:
        source = self.file
        source.seek(0)
        self.file = os.fdopen(self._open_named(), 'w+b', buffering=_BUFFER)
        with contextlib.closing(source):
            shutil.copyfileobj(source, self.file, _BUFFER)
        self.file.flush()
        os.fsync(self.file.fileno())


def publish(path: Path, source: str, need: Optional[int], write: Write, finish: Finish, durable: bool = True) -> Path:
    """Have ``write(out)`` write a draft and publish it at ``path``; turn what the disk says into a CacheError.

    ``finish(size)`` is called while nobody can remove the published file.
    """
    folder = path.parent
    try:
        draft = Draft(folder)
    except OSError as error:
        raise explain(error, folder, source, need) from error
    with draft:
        try:
            write(draft.file)
        except OSError as error:
            if error.errno not in SPACE_ERRNOS:  # reading the source may fail too: that is its own story
                raise
            raise explain(error, folder, source, need) from error
        try:
            size = draft.publish(path, durable)
        except OSError as error:
            raise explain(error, folder, source, need) from error
        finish(size)
    return path


def scratch(folder: Path) -> BinaryIO:
    """A nameless temporary file in ``folder``: read, write, seek; gone when closed or when the process dies."""
    return tempfile.TemporaryFile(dir=folder, buffering=_BUFFER)  # type: ignore[return-value]


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system has a way to."""
    if os.name == 'nt':
        return
    fd = os.open(folder, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def sweep(folder: Path) -> None:
    """Remove drafts, lock files, notes and data of jobs in ``folder`` that are nobody's any more.

    What cannot be removed stays. Only names that are made here go: the user may keep other things in the folder.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _OURS.fullmatch(entry.name) and (_DRAFT.fullmatch(entry.name) or entry.is_file(follow_symlinks=False)):
                with contextlib.suppress(OSError), holds.exclusive(Path(entry.path)) as free:
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if free or (free is None and age > _ABANDONED_SECONDS):
                        (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)


def _open_nameless(folder: Path) -> Optional[int]:
    """A nameless file that :meth:`Draft._link` can name later, or None where that cannot be."""
    if not hasattr(os, 'O_TMPFILE') or not os.path.isdir('/proc/self/fd'):
        return None
    try:
        fd = os.open(folder, os.O_RDWR | os.O_TMPFILE | _CLOEXEC, 0o644)
        os.fchmod(fd, os.fstat(fd).st_mode & 0o777 | 0o600)  # whatever the umask, its owner can read it
        return fd
    except OSError as error:
        if error.errno in _CANNOT and folder.is_dir():
            return None
        raise
