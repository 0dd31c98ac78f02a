"""Writing MXNet's RecordIO, with the index and the list of names that belong to it."""

from __future__ import annotations

import os
from typing import BinaryIO, Iterator, List, Optional, Sequence, Tuple

from mmshared.fileio.entry import Entry
from mmshared.fileio.formats.base import Format
from mmshared.fileio.formats.recordio import (
    FIRST,
    IMAGE,
    INDEX_SUFFIX,
    LAST,
    LENGTH_BITS,
    MARK,
    MAX_RECORD,
    MIDDLE,
    NAMES_SUFFIX,
    PART,
    WHOLE,
    RecordIO,
)

from .source import Source
from .writers import Writer

_LINES = 64  # bytes of the lines in .idx and .lst, names aside, at most


class RecordWriter(Writer):
    """Records with label 0 and keys from 0 on."""

    suffixes = ('.rec', INDEX_SUFFIX, NAMES_SUFFIX)
    end = 0

    def __init__(self, files: Sequence[BinaryIO]) -> None:
        self._records, self._index, self._names = files
        self._key = self._offset = 0

    def add(self, name: str, size: int, source: Source) -> None:
        """As :meth:`Writer.add`."""
        data = IMAGE.pack(0, 0.0, self._key, 0) + source.read(size)
        self._index.write(b'%d\t%d\n' % (self._key, self._offset))
        self._names.write(b'%d\t0.000000\t%s\n' % (self._key, os.fsencode(name)))
        for kind, part in parts_of(data):
            padding = -len(part) % 4
            self._records.write(PART.pack(MARK, kind << LENGTH_BITS | len(part)))
            self._records.write(part)
            self._records.write(bytes(padding))
            self._offset += PART.size + len(part) + padding
        self._key += 1

    def finish(self) -> None:
        """As :meth:`Writer.finish`: nothing."""

    @classmethod
    def cost(cls, name: str, size: int) -> int:
        """As :meth:`Writer.cost`, as long as the data do not have the magic number in them, as images hardly do."""
        return PART.size + IMAGE.size + size + 3 + _LINES + len(os.fsencode(name))

    @classmethod
    def refusal(cls, name: str, size: int) -> Optional[str]:
        """As :meth:`Writer.refusal`."""
        if size > MAX_RECORD - IMAGE.size:
            return f'has {size} bytes, and a record holds {MAX_RECORD - IMAGE.size} at most. Make a tar'
        if name != name.strip() or any(mark in name for mark in '\t\n\r'):
            return 'has a tab, a line end or outer blanks in its name, which .lst cannot hold. Rename it, or make a tar'
        return None

    @classmethod
    def read_back(cls, paths: List[str]) -> Tuple[Format, Iterator[Entry]]:
        """As :meth:`Writer.read_back`."""
        found = RecordIO()
        return found, found.entries_of(paths, lambda done, total: None)


def parts_of(data: bytes) -> Iterator[Tuple[int, memoryview]]:
    """The parts that a record of ``data`` is split into, each with which one it is."""
    view, begin, at = memoryview(data), 0, data.find(MARK)
    while at >= 0:
        if at % len(MARK):
            at = data.find(MARK, at + 1)
            continue
        yield MIDDLE if begin else FIRST, view[begin:at]
        begin = at + len(MARK)
        at = data.find(MARK, begin)
    yield LAST if begin else WHOLE, view[begin:]
