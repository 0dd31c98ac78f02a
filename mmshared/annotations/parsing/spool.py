"""Scratch files that are written from the front to the end, and then mapped."""

from __future__ import annotations

import mmap
import shutil
from typing import Any, BinaryIO, Union

_BLOCK = 1 << 20


class Spool:
    """Bytes appended to a scratch file, mapped when complete.

    Args:
        file: the file, empty, open for reading and writing.

    Attributes:
        file: the same.
        size: bytes written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, 0

    def write(self, data: Any) -> None:
        """Appends a bytes-like object or an array."""
        view = memoryview(data).cast('B') if len(data) else b''
        self.file.write(view)
        self.size += len(view)

    def append(self, other: Spool) -> None:
        """Appends all that ``other`` holds, and closes that, since the disk need not hold it twice."""
        other.file.seek(0)
        shutil.copyfileobj(other.file, self.file, _BLOCK)
        self.size += other.size
        other.file.close()

    def map(self) -> Union[mmap.mmap, bytes]:
        """All that was written, read-only."""
        self.file.flush()
        return mmap.mmap(self.file.fileno(), self.size, access=mmap.ACCESS_READ) if self.size else b''
