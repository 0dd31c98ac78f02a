"""Reading a file that somebody else may change or remove meanwhile."""

from __future__ import annotations

import math
import os
import stat
from typing import Callable

from zlib_ng import zlib_ng

from .folder import File


class FileChangedError(ValueError):
    """A file is not any more what it was when the folder was looked through."""


class Source:
    """A file that is read once, from its beginning to its end. Also a context manager.

    Args:
        file: which.
        advance: called with how many bytes were read, after each read.

    Attributes:
        crc: CRC-32 of what was read so far.
        mtime: when it was written, in seconds since the epoch.

    Raises:
        FileChangedError: it is gone, or has another size, or is no regular file any more.
        OSError: it cannot be read.
    """

    def __init__(self, file: File, advance: Callable[[int], None]) -> None:
        self._named, self._advance, self._left, self.crc = file, advance, file.size, 0
        try:
            # A pipe of that name must not keep us waiting.
            descriptor = os.open(file.path, os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_CLOEXEC', 0))
        except FileNotFoundError as error:
            raise FileChangedError(f'{file.path}: was removed while its folder was packed') from error
        self._mark = os.fstat(descriptor)
        if not stat.S_ISREG(self._mark.st_mode) or self._mark.st_size != file.size:
            os.close(descriptor)
            raise self._changed()
        self.mtime = math.floor(self._mark.st_mtime)
        self._file = os.fdopen(descriptor, 'rb')

    def read(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer only at the end of the file as it was.

        Raises:
            FileChangedError: it ends before.
        """
        data = self._file.read(min(size, self._left))
        if len(data) < min(size, self._left):
            raise self._changed()
        self._left -= len(data)
        self.crc = zlib_ng.crc32(data, self.crc)
        self._advance(len(data))
        return data

    def finish(self) -> None:
        """Raises :class:`FileChangedError` unless all was read, and nobody wrote meanwhile."""
        info = os.fstat(self._file.fileno())
        if self._left or (info.st_size, info.st_mtime_ns) != (self._mark.st_size, self._mark.st_mtime_ns):
            raise self._changed()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _changed(self) -> FileChangedError:
        return FileChangedError(
            f'{self._named.path}: was changed while its folder was packed. Pack it when it is complete'
        )
