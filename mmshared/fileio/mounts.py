"""An archive as a part of the tree of files: which paths mean something in it, and what."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional, Tuple

from .archives import ArchiveArg, Archives, find_archives
from .errors import ArchiveError, EntryNotFoundError
from .formats.detection import format_of
from .resolution import Resolver


class Mount:
    """A set of archives, and what paths mean in it. It opens the archives' index.

    Args:
        archive: as of :class:`~.record_backend.RecordBackend`, like the others.
        root: of paths.
        verify_crc: of reads.
        cache_dir: of the index.
    """

    def __init__(self, archive: ArchiveArg, root: Optional[str], verify_crc: bool, cache_dir: Optional[str]) -> None:
        self._archives = Archives(find_archives(archive), verify_crc, cache_dir)
        self._resolver = Resolver(self._archives.index, root)
        self.find, self.read = self._resolver.find, self._archives.read
        self.find_folder, self.must_have = self._resolver.find_folder, self._resolver.must_have

    def missing(self, path: str) -> FileNotFoundError:
        """The error for a ``path`` that is nowhere."""
        return self._resolver.explain(path, self._archives.paths)

    def children(self, folder: bytes) -> Iterator[Tuple[str, bool]]:
        """The names of what lies in a ``folder`` of the archive, each with whether it is a folder."""
        for name, is_folder in self._archives.index.children(folder):
            yield name.decode('utf-8', 'surrogateescape'), is_folder

    def below(self, folder: bytes) -> Iterator[Tuple[str, int]]:
        """The names, from there, of all files below a ``folder`` of the archive, and their rows."""
        for name, row in self._archives.index.below(folder):
            yield name.decode('utf-8', 'surrogateescape'), row


class NoMount:
    """Stands in for a :class:`Mount` where a path names no archive: all files are on the disk."""

    def find(self, path: str) -> int:
        """No row."""
        return -1

    def find_folder(self, path: str) -> Optional[bytes]:
        """No folder."""
        return None

    def must_have(self, path: str) -> bool:
        """Never."""
        return False

    def missing(self, path: str) -> FileNotFoundError:
        """The error for a ``path`` that is nowhere."""
        problem = 'there is no such file, and no part of its path is an archive. Name one: archive= in backend_args'
        return EntryNotFoundError(path, problem)


def split_at_archive(path: str) -> Tuple[str, str]:
    """``path`` as an archive and what is below it; the former is '' if no part of the path is an archive.

    Raises:
        ArchiveError: a file is taken for a folder, and is no archive.
    """
    end = path.find('/', 1)
    while end > 0:
        if os.path.isfile(path[:end]):
            return path[:end], path[end + 1 :].strip('/')
        end = path.find('/', end + 1)
    if os.path.isfile(path):
        with contextlib.suppress(ArchiveError):  # any other file may be asked for, too
            format_of(path)
            return path, ''
    return '', path
