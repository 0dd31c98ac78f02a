"""Files that hold pickles: what one process has loaded, for the others of its job, or kept for later jobs.

Reading a pickle runs whatever its author wanted. So these files are read only from folders, and only if they are files,
that this user owns and nobody else can write, whereas an annotation store may come from anywhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO, Callable, List, Optional, Tuple, TypeVar

from . import inventory, locks
from .errors import SPACE_ERRNOS, CacheError
from .holds import Hold
from .location import Folder
from .progress import Progress
from .publish import DATA_SUFFIX, JOB_DATA_SUFFIX, publish, sweep
from .store_cache import StoreCache

T = TypeVar('T')


class OwnFolder(Folder):
    """A folder that is of use only if nobody else can write to it, and if file locks tell there who uses what."""

    def readable(self) -> bool:
        """Whether pickles may be taken from here. Creates nothing."""
        try:
            return self.foreign() is None
        except OSError:
            return False

    def problem(self) -> Optional[str]:
        """As for every folder; and that no file locks work there."""
        reason = super().problem()
        try:
            return reason or locks.problem(self.path)
        except OSError as error:
            if error.errno in SPACE_ERRNOS:  # whoever writes gets to know
                return None
            raise


class DataCache(StoreCache):
    """Has a file written by one process, and opened by all that ask for the same.

    ``write(out)`` writes the complete file; ``open_file(path)`` gives what stands for it, and keeps it in use
    (:func:`~.holds.hold`); it raises :class:`CacheError` or OSError for one that is gone, damaged or not to be trusted.

    Args:
        cache_dir: as for :class:`StoreCache`. A folder where no file locks work is passed over.
    """

    def folders(self) -> List[Folder]:
        """The folders that are looked in, best first."""
        return [OwnFolder(folder.path, folder.named, folder.private) for folder in super().folders()]

    def of_job(self, key: str, label: str, write: Callable[[BinaryIO], Any], open_file: Callable[[Path], T]) -> T:
        """The file of this job for ``key``. It goes with the last process that has it open.

        Args:
            key: What its content depends on.
            label: The same, for people.
            write: See the class.
            open_file: See the class.

        Raises:
            CacheSpaceError, CacheAccessError: No folder can be written, or locked.
            Exception: What ``write`` raised, in this process or in the one that worked for all.
        """

        def make(place: Path) -> Tuple[str, T]:
            path = place.parent / f'{secrets.token_hex(8)}{JOB_DATA_SUFFIX}'
            return os.fspath(path), _publish(path, label, write, open_file, durable=False)

        return self.once_per_job(key, label, make, lambda path: _opened(Path(path), open_file))

    def kept(self, name: str, label: str, write: Callable[[BinaryIO], Any], open_file: Callable[[Path], T]) -> T:
        """The file ``name`` (its suffix aside), which stays in the cache. What is raised: as for :meth:`of_job`."""

        def find() -> Optional[T]:
            paths = (folder.path / f'{name}{DATA_SUFFIX}' for folder in self.folders() if folder.readable())
            return next((opened for path in paths if (opened := _opened(path, open_file)) is not None), None)

        def make(folder: Path, name: str, lock: Any) -> T:
            sweep(folder)
            Progress(label, lock, None)  # tells those who wait who works
            return _publish(folder / name, label, write, open_file)

        found = find()
        return self._anywhere(f'{name}{DATA_SUFFIX}', label, find, make) if found is None else found


def distrust(path: Path, descriptor: int) -> Optional[str]:
    """Why the file at ``path``, open as ``descriptor``, may hold what somebody else has written; None if it cannot.

    Raises:
        OSError: It cannot be looked at.
    """
    reason = Folder(path.parent).foreign()
    if reason is not None:
        return f'of its folder: {reason}'
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        return 'it is not a regular file'
    if not hasattr(os, 'geteuid'):  # Windows: modes say nothing there
        return None
    if info.st_uid != os.geteuid():
        return f'it belongs to user id {info.st_uid}, not to {os.geteuid()}'
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f'others may write to it (mode {stat.S_IMODE(info.st_mode):04o})'
    return None


def leave(path: Path, held: Hold) -> None:
    """Stop using the file at ``path``; if it is the data of a job, and nobody's any more, remove it.

    Its mappings, here and in forked children, stay as they are. (Each keeps the open file, and the lock with it.)
    """
    if locks.SUPPORTED:
        with contextlib.suppress(OSError, ValueError):
            locks.unlock(held.fileno())
    held.close()
    if path.name.endswith(JOB_DATA_SUFFIX):
        inventory.remove(path)


def _publish(
    path: Path, label: str, write: Callable[[BinaryIO], Any], open_file: Callable[[Path], T], durable: bool = True
) -> T:
    opened: List[T] = []
    publish(path, label, None, write, lambda size: opened.append(open_file(path)), durable)
    return opened[0]


def _opened(path: Path, open_file: Callable[[Path], T]) -> Optional[T]:
    with contextlib.suppress(OSError, CacheError):
        return open_file(path)
    return None
