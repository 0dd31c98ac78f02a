"""Which folders may hold stores.

In order: the one that the user named, else the usual place in the home; then a folder of this user on a local disk, for
when the former cannot be written or is on a network file system. A folder that somebody else could write is never
written: whoever can swap the files of a cache decides what everybody trains on.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Union

from .errors import SPACE_ERRNOS
from .filesystem import network_filesystem
from .publish import Draft

ENV = 'MMSHARED_CACHE'
PathArg = Union[str, os.PathLike]


@dataclass(frozen=True)
class Folder:
    """A folder for stores.

    Attributes:
        path: Absolute path; it need not exist.
        named: The user asked for this one, so a network file system is fine.
        private: In a place where everybody may create files: it must be this user's own even to be read.
    """

    path: Path
    named: bool = False
    private: bool = False

    def readable(self) -> bool:
        """Whether stores may be taken from here as they are. Creates nothing."""
        try:
            return self.foreign() is None if self.private else os.path.isdir(self.path)
        except OSError:
            return False

    def network(self) -> Optional[str]:
        """The network file system it is on, if any and if the user did not ask for it."""
        return None if self.named else network_filesystem(self.path)

    def problem(self) -> Optional[str]:
        """Why it must not or cannot be written, or None. Creates the folder, for this user only (0700).

        A full disk is no such problem: whoever writes gets to know, with the size of what did not fit.
        """
        try:
            if not os.path.isdir(self.path):
                self._create()
            foreign = self.foreign()
        except OSError as error:
            return (error.strerror or str(error)).lower()
        if foreign is not None:
            return foreign
        try:
            Draft(self.path).close()
        except OSError as error:
            return None if error.errno in SPACE_ERRNOS else (error.strerror or str(error)).lower()
        return None

    def _create(self) -> None:
        missing = [path for path in (self.path, *self.path.parents) if not os.path.exists(path)] or [self.path]
        for path in reversed(missing):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:  # another process was faster, or a dangling link: seen right after this
                continue
            os.chmod(path, 0o700)  # a strange umask may have taken the owner's own bits

    def foreign(self) -> Optional[str]:
        """Why others could tamper with it, or None.

        Raises:
            OSError: It is not there, or cannot be looked at.
        """
        info = os.lstat(self.path) if self.private else os.stat(self.path)
        if not stat.S_ISDIR(info.st_mode):
            return 'it is not a folder'
        if not hasattr(os, 'geteuid'):  # Windows: modes say nothing there
            return None
        if info.st_uid != os.geteuid():
            return f'it belongs to user id {info.st_uid}, not to {os.geteuid()}'
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f'others may write to it (mode {stat.S_IMODE(info.st_mode):04o})'
        return None


def candidates(cache_dir: Optional[PathArg] = None) -> List[Folder]:
    """The folders to look in, best first.

    Args:
        cache_dir: The user's choice; None for ``$MMSHARED_CACHE``, or the default in the home.
    """
    named = cache_dir or os.environ.get(ENV)
    if named:
        first = [Folder(Path(os.path.abspath(os.path.expanduser(os.fspath(named)))), named=True)]
    else:
        home = _home_cache()
        first = [] if home is None else [Folder(home / 'mmshared')]
    return first + [folder for folder in local_folders() if folder.path not in {known.path for known in first}]


def local_folders() -> List[Folder]:
    """This user's folders on local disks; /var/tmp comes first because it survives a reboot."""
    name = f'mmshared-{_user()}'
    roots = [Path('/var/tmp')] if os.path.isdir('/var/tmp') else []
    with contextlib.suppress(FileNotFoundError):  # no writable one at all
        roots.append(Path(tempfile.gettempdir()))
    return [Folder(root / name, private=True) for root in dict.fromkeys(roots)]


def _home_cache() -> Optional[Path]:
    xdg = os.environ.get('XDG_CACHE_HOME', '')
    if os.path.isabs(xdg):  # a relative one must be ignored, says the specification
        return Path(xdg)
    home = os.path.expanduser('~')
    return Path(home) / '.cache' if os.path.isabs(home) else None  # '~' stays if this user has no home


def _user() -> str:
    if hasattr(os, 'geteuid'):
        return str(os.geteuid())
    return re.sub(r'[^A-Za-z0-9_.-]', '_', os.environ.get('USERNAME', 'user'))
