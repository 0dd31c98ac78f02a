"""From archives to their index: mapped if it is there, built by the first process of the node to ask if it is not."""

from __future__ import annotations

import os
import zlib
from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Tuple

import numpy as np

from mmshared.annotations.cache import Fingerprint, StoreCache
from mmshared.annotations.columns import narrow
from mmshared.annotations.container import FORMAT_VERSION, ContainerWriter
from mmshared.annotations.errors import StoreError, clip

from .entry import Entry, Kind
from .errors import ArchiveError
from .formats.base import ProgressCall
from .formats.detection import format_of
from .index import ARCHIVES, ENTRIES, MOST_NAME, ROW, Index, encoded

KIND = 'i'


def open_index(archives: Sequence[str], cache_dir: Optional[str] = None) -> Index:
    """The index of a set of archives, in the annotation cache like the stores of annotation files.

    Args:
        archives: their paths. The set is what counts, and each archive as it is now.
        cache_dir: folder of the cache; see :class:`~mmshared.annotations.cache.StoreCache`.

    Raises:
        ArchiveError: one of them cannot be read.
        OSError: likewise.
        CacheError: the index cannot be written.
    """

    def build(source: str, out: BinaryIO, progress: ProgressCall, scratch: Callable[[], BinaryIO]) -> None:
        _build(archives, source, out, progress)

    mark = _Archives('', kind=KIND, archives=tuple(archives))
    with StoreCache(cache_dir, FORMAT_VERSION).acquire(mark, build, _is_index) as held:
        return Index(held.path)


def _is_index(path: Path) -> bool:
    try:
        Index(path)
    except (StoreError, OSError):
        return False
    return True


@dataclass(frozen=True)
class _Archives(Fingerprint):
    """A set of archives. What identifies it are the fingerprints of all files that say what is in it."""

    archives: Tuple[str, ...] = ()
    marks: Tuple[Fingerprint, ...] = ()

    def again(self) -> _Archives:
        files = [file for path in self.archives for file in format_of(path).files(path)]
        marks = tuple(map(Fingerprint.of_file, files))
        source = os.path.realpath(self.archives[0])
        if len(self.archives) > 1:
            source = f'{source} and {len(self.archives) - 1} more, to {os.path.basename(self.archives[-1])}'
        facts = tuple((f'{mark.source} {name}', fact) for mark in marks for name, fact in mark.facts)
        return replace(self, source=source, facts=facts, marks=marks)

    def settle(self) -> None:
        for mark in self.marks:
            mark.settle()


def _build(archives: Sequence[str], source: str, out: BinaryIO, progress: ProgressCall) -> None:
    """Writes the index of ``archives`` to ``out``."""
    rows, facts = Rows(), []
    sizes = [os.path.getsize(path) for path in archives]
    for number, path in enumerate(archives):
        archive_format, info = format_of(path), os.stat(path)
        facts.append([os.path.realpath(path), info.st_size, info.st_mtime_ns, archive_format.name])
        before, total = sum(sizes[:number]), sum(sizes)

        def done(part: int, whole: int, before: int = before, share: int = sizes[number], total: int = total) -> None:
            progress(before + share * part // max(whole, 1), total)

        for entry in archive_format.entries(path, done):
            rows.add(number, entry, path)
    rows.write(out, {'source': source, ARCHIVES: facts})


class Rows:
    """Gathers entries, in the order of the archives."""

    def __init__(self) -> None:
        self._names: List[bytes] = []
        self._archive, self._kind, self._crc = array('I'), bytearray(), array('I')
        self._offset, self._size, self._stored = array('q'), array('q'), array('q')

    def add(self, archive: int, entry: Entry, path: str) -> None:
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

    def write(self, out: BinaryIO, attributes: dict[str, Any]) -> None:
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
        """Of ``order`` what counts: of entries of one name the last of an archive; and where several archives have it."""
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
