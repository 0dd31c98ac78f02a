"""Making the index of archives: entries in any order become rows by name."""

from __future__ import annotations

import zlib
from itertools import islice
from operator import eq
from typing import Any, BinaryIO, Dict, List, Tuple

import numpy as np

from mmshared.annotations.columns import narrow
from mmshared.annotations.container import ContainerWriter
from mmshared.annotations.errors import clip

from .entry import Entry, Kind
from .errors import ArchiveError
from .index import CHECKED, ENTRIES, MOST_NAME, ROW, ROW_STRUCT, encoded


class IndexWriter:
    """Gathers entries, in the order of the archives, and writes them as an index.

    It takes some 300 bytes an entry meanwhile, with names of 26 bytes.
    """

    def __init__(self) -> None:
        self._names: List[bytes] = []
        self._rows = bytearray()

    def add(self, archive: int, entry: Entry, path: str) -> None:
        """Takes an entry of the archive of that number, which is at ``path``.

        Raises:
            ArchiveError: its name cannot be kept.
        """
        text, offset, size, stored, kind, crc = entry
        name = encoded(text)
        if not 0 < len(name) <= MOST_NAME:
            raise ArchiveError(path, f'its name has {len(name)} bytes, which no file can have', clip(repr(text)))
        self._names.append(name)
        self._rows += ROW_STRUCT.pack(0, len(name), offset, size, stored, crc, kind, archive, 0)

    def write(self, out: BinaryIO, attributes: Dict[str, Any]) -> None:
        """Writes the index to ``out`` (seekable, empty), with ``attributes`` in its header."""
        order = np.array(sorted(range(len(self._names)), key=self._names.__getitem__), np.int64)
        rows, names = np.frombuffer(self._rows, ROW)[order], [self._names[row] for row in order.tolist()]
        rows, names = _last_ones(rows, names)
        rows['start'] = np.cumsum(rows['length'], dtype=np.uint64) - rows['length']
        hashes = np.fromiter(map(zlib.crc32, names), np.uint32, len(names))
        rows['check'] = _checks(rows, hashes)
        by_hash = np.argsort(hashes, kind='stable')
        writer = ContainerWriter(out)
        writer.add_stream('names', np.uint8, [b''.join(names)])
        writer.add_stream('rows', np.uint8, [rows.view(np.uint8)])
        writer.add_stream('hashes', np.uint32, [hashes[by_hash]])
        writer.add('numbers', narrow(by_hash))
        depth = max((name.count(b'/') + 1 for name in names), default=1)
        writer.close({**attributes, ENTRIES: len(names), 'depth': depth})


def _checks(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """The checksums of ``rows``, which begin with the ``hashes`` of their names."""
    data = memoryview(rows.view(np.uint8))
    places = range(0, len(data), ROW_STRUCT.size)
    found = (zlib.crc32(data[at : at + CHECKED], name) for at, name in zip(places, hashes.tolist()))
    return np.fromiter(found, np.uint32, len(rows))


def _last_ones(rows: np.ndarray, names: List[bytes]) -> Tuple[np.ndarray, List[bytes]]:
    """What counts of the ``rows`` of sorted ``names``: of those of one name in one archive the last.

    Where several archives have a name, nothing says which counts: their rows become such as cannot be read.
    """
    same = np.fromiter(map(eq, names, islice(names, 1, None)), bool, max(len(names) - 1, 0))
    if not same.any():
        return rows, names
    last = np.append(~same | (rows['archive'][1:] != rows['archive'][:-1]), True)
    groups = np.append(0, np.cumsum(~same))[last]
    rows, names = rows[last], [names[row] for row in np.flatnonzero(last).tolist()]
    repeated = np.append(groups[1:] == groups[:-1], False)
    repeated[1:] |= repeated[:-1].copy()
    rows['kind'][repeated] = Kind.REPEATED
    return rows, names
