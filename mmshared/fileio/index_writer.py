"""Making the index of archives: entries in any order become rows by name."""

from __future__ import annotations

import zlib
from array import array
from typing import Any, BinaryIO, Dict, List, Tuple

import numpy as np

from mmshared.annotations.columns import narrow
from mmshared.annotations.container import ContainerWriter
from mmshared.annotations.errors import clip

from .entry import Entry, Kind
from .errors import ArchiveError
from .index import ENTRIES, MOST_NAME, ROW, encoded


class IndexWriter:
    """Gathers entries, in the order of the archives, and writes them as an index."""

    def __init__(self) -> None:
        self._names: List[bytes] = []
        self._archive, self._kind, self._crc = array('I'), bytearray(), array('I')
        self._offset, self._size, self._stored = array('q'), array('q'), array('q')

    def add(self, archive: int, entry: Entry, path: str) -> None:
        """Takes an entry of the archive of that number, which is at ``path``.

        Raises:
            ArchiveError: its name cannot be kept.
        """
        name = encoded(entry.name)
        if not 0 < len(name) <= MOST_NAME:
            raise ArchiveError(path, f'its name has {len(name)} bytes, which no file can have', clip(repr(entry.name)))
        self._names.append(name)
        self._archive.append(archive)
        self._offset.append(entry.offset)
        self._size.append(entry.size)
        self._stored.append(entry.stored)
        self._kind.append(entry.kind)
        self._crc.append(entry.crc)

    def write(self, out: BinaryIO, attributes: Dict[str, Any]) -> None:
        """Writes the index to ``out`` (seekable, empty), with ``attributes`` in its header."""
        archive = np.array(self._archive, np.int64)
        order = np.array(sorted(range(len(self._names)), key=self._names.__getitem__), np.int64)
        order, repeated = self._last_ones(order, archive)
        names = [self._names[row] for row in order]
        rows = np.zeros(order.size, ROW)
        rows['length'] = np.fromiter(map(len, names), np.int64, len(names))
        rows['start'] = np.cumsum(rows['length'], dtype=np.uint64) - rows['length']
        columns = {'offset': self._offset, 'size': self._size, 'stored': self._stored, 'crc': self._crc}
        for name, column in {**columns, 'kind': self._kind, 'archive': self._archive}.items():
            rows[name] = np.frombuffer(column, ROW[name])[order] if len(column) else 0
        rows['kind'][repeated] = Kind.REPEATED
        hashes = np.fromiter(map(zlib.crc32, names), np.uint32, len(names))
        by_hash = np.argsort(hashes, kind='stable')
        writer = ContainerWriter(out)
        writer.add_stream('names', np.uint8, [b''.join(names)])
        writer.add_stream('rows', np.uint8, [rows.view(np.uint8)])
        writer.add_stream('hashes', np.uint32, [hashes[by_hash]])
        writer.add('numbers', narrow(by_hash))
        depth = max((name.count(b'/') + 1 for name in names), default=1)
        writer.close({**attributes, ENTRIES: len(names), 'depth': depth})

    def _last_ones(self, order: np.ndarray, archive: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """What of ``order`` counts (of one name the last in an archive), and which of that several archives have."""
        names = self._names
        same = np.fromiter((names[a] == names[b] for a, b in zip(order[:-1], order[1:])), bool, max(order.size - 1, 0))
        last = np.ones(order.size, bool)
        last[:-1] = ~same | (archive[order[:-1]] != archive[order[1:]])
        order, groups = order[last], np.append(0, np.cumsum(~same))[: order.size][last]
        repeated = np.zeros(order.size, bool)
        equal = groups[1:] == groups[:-1]
        repeated[1:] |= equal
        repeated[:-1] |= equal
        return order, repeated
