"""How archives are written: one class per format, of one interface. The same files give the same bytes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import time
import zipfile
from abc import ABC, abstractmethod
from typing import BinaryIO, ClassVar, Iterator, List, Optional, Sequence, Tuple

from mmshared.fileio.entry import Entry
from mmshared.fileio.formats.base import Format

from .source import Source

CHUNK = 1 << 20
MODE = 0o644  # of every entry, whoever packs


class Writer(ABC):
    """Writes one archive.

    Args:
        files: open for writing, empty: one for each of :attr:`suffixes`.

    Attributes:
        suffixes: of the files that the archive consists of; first the one that is its name.
        end: bytes that an archive takes without entries, about.
    """

    suffixes: ClassVar[Tuple[str, ...]]
    end: ClassVar[int]

    @abstractmethod
    def __init__(self, files: Sequence[BinaryIO]) -> None: ...

    @abstractmethod
    def add(self, name: str, size: int, source: Source) -> None:
        """Write ``source``, which has ``size`` bytes, as the entry ``name``."""

    @abstractmethod
    def finish(self) -> None:
        """Write what belongs to the end."""

    def abandon(self) -> None:  # noqa: B027
        """Let go of the files, which nobody wants any more."""

    @classmethod
    @abstractmethod
    def cost(cls, name: str, size: int) -> int:
        """Bytes that an entry takes in the archive, about and at most."""

    @classmethod
    def refusal(cls, name: str, size: int) -> Optional[str]:
        """Why the format cannot hold a file, and what to do; None if it can."""
        return None

    @classmethod
    def read_back(cls, paths: List[str]) -> Tuple[Format, Iterator[Entry]]:
        """The format, and the entries of a complete archive of it, whose files have any names."""
        from mmshared.fileio.formats.detection import format_of

        found = format_of(paths[0])
        return found, found.entries(paths[0], lambda done, total: None)


class TarWriter(Writer):
    """Tar as GNU tar writes it: names of any length and bytes, files of any size."""

    suffixes = ('.tar',)
    end = tarfile.RECORDSIZE

    def __init__(self, files: Sequence[BinaryIO]) -> None:
        self._tar = tarfile.TarFile(
            fileobj=files[0], mode='w', format=tarfile.GNU_FORMAT, encoding='utf-8', errors='surrogateescape'
        )

    def add(self, name: str, size: int, source: Source) -> None:
        """As :meth:`Writer.add`."""
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, source.mtime, MODE
        self._tar.addfile(info, source)  # type: ignore[arg-type]
        self._tar.members.clear()  # or it remembers every entry

    def finish(self) -> None:
        """As :meth:`Writer.finish`."""
        self._tar.close()

    @classmethod
    def cost(cls, name: str, size: int) -> int:
        """As :meth:`Writer.cost`."""
        length = len(os.fsencode(name))
        blocks = 1 + _blocks(size) + (0 if length <= tarfile.LENGTH_NAME else 1 + _blocks(length + 1))
        return blocks * tarfile.BLOCKSIZE


class ZipWriter(Writer):
    """Zip with stored entries, as images do not get smaller; with 64-bit sizes where they are needed."""

    suffixes = ('.zip',)
    end = 98  # with the records of zip64

    def __init__(self, files: Sequence[BinaryIO]) -> None:
        self._zip = zipfile.ZipFile(files[0], 'w')

    def add(self, name: str, size: int, source: Source) -> None:
        """As :meth:`Writer.add`."""
        written = time.gmtime(source.mtime)[:6]  # local time would give other bytes elsewhere
        info = zipfile.ZipInfo(name, min(max(written, (1980, 1, 1, 0, 0, 0)), (2107, 12, 31, 23, 59, 58)))
        info.create_system = 3  # Unix, wherever this runs
        info.external_attr = (0o100000 | MODE) << 16
        info.file_size = size
        with self._zip.open(info, 'w') as out:
            shutil.copyfileobj(source, out, CHUNK)  # type: ignore[misc]

    def finish(self) -> None:
        """As :meth:`Writer.finish`."""
        self._zip.close()

    def abandon(self) -> None:
        """As :meth:`Writer.abandon`: else it tries to write its end when it is collected."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._zip.close()

    @classmethod
    def cost(cls, name: str, size: int) -> int:
        """As :meth:`Writer.cost`."""
        return 30 + 46 + 2 * len(os.fsencode(name)) + (48 if size >= zipfile.ZIP64_LIMIT // 2 else 12) + size

    @classmethod
    def refusal(cls, name: str, size: int) -> Optional[str]:
        """As :meth:`Writer.refusal`."""
        if '\\' in name:
            return (
                'has a backslash in its name, which some programs take for a slash in a zip. Rename it, or make a tar'
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            return 'has a name that is not UTF-8, as names in a zip are. Rename it, or make a tar'
        return None


def _blocks(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE)
