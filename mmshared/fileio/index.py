"""What is in a set of archives: entries by name, mapped from one file by all processes of a node.

Entries are rows in the order of their names' bytes, so that what is below a folder lies together. A column has the
names' CRC-32 in ascending order: finding a name is a bisection of numbers, and one comparison of names. All that a read
needs to know of an entry lies together (:data:`ROW`): one look at one place, instead of one at each of eight columns.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path
from struct import Struct
from typing import Dict, Iterator, List, NamedTuple, Tuple
from zlib import crc32

import numpy as np

from mmshared.annotations.cache import hold
from mmshared.annotations.container import Container
from mmshared.annotations.errors import StoreError

from .entry import Entry

#: Where in the names its name begins, its length, then of the entry: offset, size, stored, crc, kind; its archive. Last
#: a CRC-32 of the name and of all that: what is damaged must be an error, and not another image.
ROW = np.dtype(
    [
        ('start', '<u8'),
        ('length', '<u2'),
        ('offset', '<i8'),
        ('size', '<i8'),
        ('stored', '<i8'),
        ('crc', '<u4'),
        ('kind', 'u1'),
        ('archive', '<u4'),
        ('check', '<u4'),
    ]
)
ROW_STRUCT = Struct('<QHqqqLBLL')  # the same
CHECKED = ROW_STRUCT.size - 4
MOST_NAME = (1 << 16) - 1
COLUMNS = ('names', 'rows', 'hashes', 'numbers')
ENTRIES = 'entries'
ARCHIVES = 'archives'
_BLOCK = 1 << 22
_NAME = Struct('<QH')


class ArchiveFacts(NamedTuple):
    """An archive as it was when its index was made.

    Attributes:
        path: its real path.
        size: in bytes.
        modified: when, in ns since the epoch.
        inode: its number on the file system.
        blocks: a hash of some of its bytes (:class:`~mmshared.annotations.cache.Fingerprint`).
        format: name of its format.
    """

    path: str
    size: int
    modified: int
    inode: int
    blocks: str
    format: str


def encoded(name: str) -> bytes:
    """``name`` as the index has it; bytes that no entry has, where it cannot be encoded."""
    try:
        return name.encode('utf-8', 'surrogateescape')
    except UnicodeEncodeError:  # a lone surrogate: nothing that a file system or an archive can have
        return b''


def _places(data: memoryview, part: bytes) -> Iterator[int]:
    """Where in ``data`` there is ``part``."""
    for start in range(0, len(data), _BLOCK):
        block = bytes(data[start : start + _BLOCK + len(part) - 1])
        at = block.find(part)
        while at >= 0:
            yield start + at
            at = block.find(part, at + 1)


class Index:
    """The entries of a set of archives, opened by path. It pickles to its path; copies are the same object.

    A process has no object per entry, however many there are.

    Args:
        path: the index's file.

    Raises:
        StoreError: the file is torn, foreign or of another version.

    Attributes:
        archives: what is known of each archive.
        depth: the most parts that a name has: 1 if no entry is in a folder.
        common: the innermost folder that all entries are in; b'' if there is none.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self._hold = hold(Path(path))  # nobody prunes it while it is mapped here
        container = Container(self.path, self._hold.fileno())
        try:
            columns = {name: container.columns[name] for name in COLUMNS}
            self._size = int(container.attributes[ENTRIES])
            self.archives = [ArchiveFacts(*facts) for facts in container.attributes[ARCHIVES]]
            self.depth = int(container.attributes['depth'])
            self._check(columns)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f'{self.path}: is no index of archives ({error!r}). Delete it') from error
        self._names, self._rows, self._hashes, self._numbers = (memoryview(columns[name]) for name in COLUMNS)
        self.common = self._common()

    def _check(self, columns: Dict[str, np.ndarray]) -> None:
        expected = {'rows': self._size * ROW_STRUCT.size, 'hashes': self._size, 'numbers': self._size}
        wrong = [name for name, size in expected.items() if columns[name].shape != (size,)]
        if wrong:
            raise ValueError(f'{wrong[0]} are not of {self._size} entries')

    def __reduce__(self) -> tuple:
        return type(self), (self.path,)

    def __copy__(self) -> Index:
        return self

    def __deepcopy__(self, memo: dict) -> Index:
        return self

    def __len__(self) -> int:
        return self._size

    def name(self, row: int) -> bytes:
        """The name of an entry."""
        start, length = _NAME.unpack_from(self._rows, row * ROW_STRUCT.size)
        return bytes(self._names[start : start + length])

    def find(self, name: bytes) -> int:
        """The row of the entry ``name``; -1 if there is none."""
        key = crc32(name)
        place = bisect_left(self._hashes, key)
        while place < self._size and self._hashes[place] == key:
            row = self._numbers[place]
            if not 0 <= row < self._size:
                raise self._damaged()
            if self.name(row) == name:
                return row
            place += 1
        return -1

    def __getitem__(self, row: int) -> Tuple[int, Entry]:
        """The number of the archive that an entry is in, and the entry.

        Raises:
            StoreError: the index is damaged there.
        """
        at = row * ROW_STRUCT.size
        start, length, offset, size, stored, crc, kind, archive, check = ROW_STRUCT.unpack_from(self._rows, at)
        name = self._names[start : start + length]
        if crc32(self._rows[at : at + CHECKED], crc32(name)) != check:
            raise self._damaged()
        return archive, Entry(str(name, 'utf-8', 'surrogateescape'), offset, size, stored, kind, crc)

    def _damaged(self) -> StoreError:
        return StoreError(f'{self.path}: this index of archives is damaged. Delete it: it is made again')

    def archives_of(self, name: bytes) -> List[int]:
        """The numbers of all archives that have an entry ``name``."""
        row = self._first_from(name)
        found = []
        while row < self._size and self.name(row) == name:
            found.append(self[row][0])
            row += 1
        return found

    def is_folder(self, folder: bytes) -> bool:
        """Whether entries lie in ``folder``; b'' is the archives' root."""
        if not folder:
            return True
        row = self._first_from(folder + b'/')
        return row < self._size and self.name(row).startswith(folder + b'/')

    def children(self, folder: bytes) -> Iterator[Tuple[bytes, bool]]:
        """The names of what lies in ``folder``, by name, each with whether it is a folder."""
        prefix = folder + b'/' if folder else b''
        row = self._first_from(prefix)
        last = None
        while row < self._size:
            name = self.name(row)
            if not name.startswith(prefix):
                return
            child, slash, _ = name[len(prefix) :].partition(b'/')
            if slash:
                yield child, True
                row = max(row + 1, self._first_from(prefix + child + b'0'))  # '0' comes after '/'
            else:
                if name != last:
                    yield child, False
                last, row = name, row + 1

    def below(self, folder: bytes) -> Iterator[Tuple[bytes, int]]:
        """The names, from there, of all entries below ``folder``, and their rows."""
        prefix = folder + b'/' if folder else b''
        for row in range(self._first_from(prefix), self._size):
            name = self.name(row)
            if not name.startswith(prefix):
                return
            yield name[len(prefix) :], row

    def ending_in(self, part: bytes, most: int = 100) -> List[bytes]:
        """Names of entries whose last parts are ``part``, at most so many; reads all names: for errors only."""
        found = [part] if self.find(part) >= 0 else []
        for at in _places(self._names, b'/' + part):  # without the slash 1.jpg would be in every eleventh name
            name = self.name(self._row_at(at))
            if name.endswith(b'/' + part) and name not in found:
                found.append(name)
                if len(found) == most:
                    break
        return found

    def _row_at(self, position: int) -> int:
        """The row whose name has the byte at ``position`` of all names."""
        low, high = 0, self._size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high)
                if _NAME.unpack_from(self._rows, middle * ROW_STRUCT.size)[0] <= position
                else (low, middle)
            )
        return low

    def _first_from(self, name: bytes) -> int:
        low, high = 0, self._size
        while low < high:
            middle = (low + high) // 2
            if self.name(middle) < name:
                low = middle + 1
            else:
                high = middle
        return low

    def _common(self) -> bytes:
        if not self._size:
            return b''
        first, last = (self.name(row).split(b'/')[:-1] for row in (0, self._size - 1))
        return b'/'.join(os.path.commonprefix([first, last]))
