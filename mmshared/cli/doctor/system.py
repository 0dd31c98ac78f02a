"""How the machine is looked at: the one place, so that tests can show another machine."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional, Tuple

from mmshared.annotations.cache.filesystem import filesystem_name, nearest, network_filesystem


class Space(NamedTuple):
    """Bytes of a file system: in all, and free for this user; and files that may still be made, None if unlimited."""

    total: int
    free: int
    files: Optional[int]


@dataclass(frozen=True)
class System:
    """The machine as this process sees it.

    Args:
        root: folder with ``proc``, ``sys`` and ``dev/shm``.
    """

    root: Path = Path('/')

    def path(self, name: str) -> Path:
        """The place of the absolute path ``name``."""
        return self.root / name.lstrip('/')

    def read(self, name: str) -> Optional[str]:
        """The text of the small file ``name``; None if it cannot be read."""
        try:
            return self.path(name).read_text(encoding='utf-8', errors='replace')
        except OSError:
            return None

    def space(self, folder: Path) -> Optional[Space]:
        """Space of the file system that ``folder``, or its nearest parent, is on; None if that cannot be told."""
        try:
            info = os.statvfs(nearest(folder))
        except (OSError, AttributeError):
            return None
        files = info.f_favail if info.f_files else None  # btrfs and others have no fixed number of files
        return Space(info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize, files)

    def filesystem(self, folder: Path) -> Optional[str]:
        """Name of the file system of ``folder``."""
        return filesystem_name(folder)

    def network(self, folder: Path) -> Optional[str]:
        """Name of the network file system that ``folder`` is on; None for a local one."""
        return network_filesystem(folder)

    def limit(self, name: str) -> Optional[Tuple[int, int]]:
        """The soft and hard limit ``RLIMIT_<name>`` of this process, -1 for none; None where there is no such thing."""
        try:
            import resource

            soft, hard = resource.getrlimit(getattr(resource, f'RLIMIT_{name}'))
        except (ImportError, AttributeError, OSError, ValueError):
            return None
        return tuple(-1 if value == resource.RLIM_INFINITY else value for value in (soft, hard))

    def start_method(self) -> str:
        """How Python starts processes here unless told otherwise."""
        return multiprocessing.get_context().get_start_method()

    def temporary_folder(self) -> str:
        """Where Python makes temporary files here."""
        return tempfile.gettempdir()

    def python(self) -> str:
        """The version of Python."""
        return platform.python_version()

    def version(self, distribution: str) -> Optional[str]:
        """The version of an installed distribution, which is not imported; None if it is not there."""
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            return None
