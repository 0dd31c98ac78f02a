"""The two text files beside a ``.rec`` file: where its records begin (``.idx``), what they are called (``.lst``).

Both are read once, in order, into arrays of numbers: 10 million lines of Python objects would take gigabytes.
"""

from __future__ import annotations

import os
from array import array
from functools import partial
from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np

from mmshared.fileio.entry import entry_name
from mmshared.fileio.errors import ArchiveError

_BLOCK = 1 << 16  # lines at a time
_MAX_LINE = 1 << 16  # bytes: a name has at most 4096
_INT64 = np.iinfo(np.int64)


class RecordIndex:
    """Keys and offsets of ``.idx``: lines of a key, a tab, and where the key's record begins.

    Args:
        archive: path of the ``.rec``.
        path: of the ``.idx``.
        end: size of the ``.rec`` in bytes.
        progress: called with how many bytes of ``path`` have been read.

    Raises:
        ArchiveError: a line has another form; an offset is not that of a record, or that of two; nothing is in it.
        OSError: it cannot be read.
    """

    def __init__(self, archive: str, path: str, end: int, progress: Callable[[int], None]) -> None:
        self.path, self._end = path, end
        self._keys: List[bytes] = []  # as text, lines of a block joined
        offsets = array('q')
        block: List[bytes] = []
        for number, line in _lines(path, progress):
            key, _, offset = line.partition(b'\t')
            key = key.strip()
            try:
                place = int(offset) if offset.strip().isdigit() else -1
            except ValueError:  # more digits than Python takes
                place = -1
            if not key or place < 0:
                raise ArchiveError(path, f'{_shown(line)} is not a key, a tab and an offset', f'line {number}')
            if place >= end or place % 4:
                problem = 'is not a multiple of 4' if place % 4 else f'is not within {archive}, which has {end} bytes'
                advice = 'It is the index of another archive, or one of both is cut off. Fetch both again'
                raise ArchiveError(path, f'the offset {_shown(offset)} {problem}. {advice}', f'line {number}')
            offsets.append(place)
            block.append(key)
            if len(block) == _BLOCK:
                self._keys.append(b'\n'.join(block))
                block.clear()
        if block:
            self._keys.append(b'\n'.join(block))
        if not offsets and end:
            raise ArchiveError(path, f'lists no record, though {archive} has {end} bytes. Fetch both again')
        self._offsets = np.frombuffer(offsets, np.int64) if offsets else np.empty(0, np.int64)
        self._sorted = np.sort(self._offsets)
        twice = self._sorted[1:][self._sorted[1:] == self._sorted[:-1]]
        if len(twice):
            keys = [self._key(position) for position in np.flatnonzero(self._offsets == twice[0])[:2]]
            raise ArchiveError(
                path,
                f'keys {keys[0]} and {keys[1]} have one offset, {twice[0]}: one record would be two images. '
                'Fetch it again, or take one of the lines out',
            )

    def blocks(self) -> Iterator[Tuple[List[bytes], List[int], List[int]]]:
        """Keys, offsets, and where at the latest the records end, some thousand at a time, in the order of the file."""
        stops = np.append(self._sorted[1:], self._end)
        for number, text in enumerate(self._keys):
            offsets = self._offsets[number * _BLOCK : (number + 1) * _BLOCK]
            yield text.split(b'\n'), offsets.tolist(), stops[np.searchsorted(self._sorted, offsets)].tolist()

    def texts(self, keys: Sequence[bytes]) -> List[str]:
        """``keys`` as names of entries.

        Raises:
            ArchiveError: one cannot be a name.
        """
        names = [os.fsdecode(key) for key in keys]
        for name in names:
            if entry_name(name) != name:
                raise ArchiveError(self.path, f'the key {name!r} cannot be the name of an image')
        return names

    def spread(self, number: int) -> List[Tuple[int, int]]:
        """Keys (those that are numbers) and offsets of about ``number`` records, first and last among them."""
        count = len(self._offsets)
        positions = sorted({round(i * (count - 1) / (number - 1)) for i in range(number)}) if count else []
        keys = [self._key(position) for position in positions]
        return [(int(key), int(self._offsets[at])) for key, at in zip(keys, positions) if _is_number(key.encode())]

    def _key(self, position: int) -> str:
        key = self._keys[position // _BLOCK].split(b'\n')[position % _BLOCK]
        return key.decode('utf-8', 'backslashreplace')


class RecordNames:
    """Names by key from ``.lst``: lines of a key, labels, and a path, with tabs between; the last line of a key counts.

    Args:
        path: of the ``.lst``.
        progress: called with how many bytes of it have been read.

    Raises:
        ArchiveError: a line has another form.
        OSError: it cannot be read.
    """

    def __init__(self, path: str, progress: Callable[[int], None]) -> None:
        self.path = path
        keys, ends, names, block = array('q'), array('q'), [], []
        size = 0
        for number, line in _lines(path, progress):
            key, _, rest = line.partition(b'\t')
            name = rest[rest.rfind(b'\t') + 1 :].strip()
            if not _is_number(key) or not name:
                raise ArchiveError(
                    path, f'{_shown(line)} is not a key (a whole number), labels and a path', f'line {number}'
                )
            keys.append(int(key))
            size += len(name)
            ends.append(size)
            block.append(name)
            if len(block) == _BLOCK:
                names.append(b''.join(block))
                block.clear()
        names.append(b''.join(block))
        found = np.frombuffer(keys, np.int64) if keys else np.empty(0, np.int64)
        self._text = b''.join(names)
        self._order = np.argsort(found, kind='stable')
        self._sorted = found[self._order]
        self._bounds = np.concatenate([np.zeros(1, np.int64), np.frombuffer(ends, np.int64)] if ends else [[0]])

    def has(self, key: int) -> bool:
        """Whether there is a line of ``key``."""
        if not _INT64.min <= key <= _INT64.max:
            return False
        at = int(np.searchsorted(self._sorted, key))
        return at < len(self._sorted) and int(self._sorted[at]) == key

    def of(self, keys: Sequence[bytes], index: str) -> List[str]:
        """The names of ``keys``, which are from the file ``index``.

        Raises:
            ArchiveError: one has none, or one that no entry can have.
        """
        odd = [key for key in keys if not _is_number(key)]
        if odd:
            raise ArchiveError(index, f'the key {_shown(odd[0])} is not a whole number, as those of {self.path} are')
        wanted = np.array(list(map(int, keys)), np.int64)
        places = np.searchsorted(self._sorted, wanted, 'right') - 1
        missing = np.ones(len(wanted), bool) if not len(self._sorted) else self._sorted[places] != wanted
        missing |= places < 0
        if missing.any():
            raise ArchiveError(
                index,
                f'{self.path} has no line of key {wanted[missing.argmax()]}: it is the list of another archive, or cut '
                'off. Fetch both again, or take the .lst away to have the keys as names',
            )
        rows = self._order[places]
        begins, ends = self._bounds[rows].tolist(), self._bounds[rows + 1].tolist()
        return [self._name(self._text[begin:end]) for begin, end in zip(begins, ends)]

    def _name(self, path: bytes) -> str:
        name = entry_name(os.fsdecode(path))
        if not name:
            raise ArchiveError(
                self.path, f'{_shown(path)} is a path outside the archive, or none at all: no image can have that name'
            )
        return name


def _lines(path: str, progress: Callable[[int], None]) -> Iterator[Tuple[int, bytes]]:
    """The lines of the file ``path`` that are not empty, without their ends, numbered from 1."""
    done = 0
    with open(path, 'rb', buffering=1 << 20) as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE), b''), 1):
            done += len(line)
            if not number % _BLOCK:
                progress(done)
            if len(line) == _MAX_LINE:
                raise ArchiveError(path, f'{_shown(line)} is too long: this is not such a list', f'line {number}')
            line = line.rstrip(b'\r\n')
            if line:
                yield number, line
    progress(done)


def _is_number(text: bytes) -> bool:
    """Whether ``text`` is a whole number that fits 8 bytes."""
    text = text.strip()
    digits = text[1:] if text[:1] == b'-' else text
    return digits.isdigit() and len(digits) < 19


def _shown(text: bytes, limit: int = 60) -> str:
    return repr(text[:limit].decode('utf-8', 'backslashreplace')) + ('...' if len(text) > limit else '')
