"""Columns of varying length: where each record's piece lies, from the lengths alone."""

from __future__ import annotations

from typing import Callable, List, Tuple

import numpy as np

from .errors import StoreError

#: Records between two places that are remembered.
BLOCK = 256


class Offsets:
    """Start and stop of the piece of each record in a ragged column.

    It keeps 8 bytes for every :data:`BLOCK` records; running sums of all lengths would take more than the column itself
    where most records are short.

    Args:
        size: how many records there are.
        lengths: ``lengths(rows)`` gives the lengths of the records at ``rows`` (a slice or an array), as integers.

    Attributes:
        total: elements of all records.
    """

    def __init__(self, size: int, lengths: Callable[..., np.ndarray]) -> None:
        self._lengths, many = lengths, BLOCK * BLOCK
        sums = [np.zeros(1, np.int64)]
        for start in range(0, size, many):
            part = lengths(slice(start, min(start + many, size)))
            sums.append(np.add.reduceat(part, np.arange(0, part.size, BLOCK), dtype=np.int64))
        self._starts = np.cumsum(np.concatenate(sums))
        self.total = int(self._starts[-1])

    def of(self, rows: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Starts and stops (int64, shape (N,)) of the records ``rows`` (int64, shape (N,)) of one block."""
        if not self.total or not rows.size:
            return np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
        block = int(rows[0]) // BLOCK
        lengths = self._lengths(slice(block * BLOCK, (block + 1) * BLOCK)).astype(np.int64)
        stops = (np.add.accumulate(lengths) + self._starts[block])[rows - block * BLOCK]
        return stops - lengths[rows - block * BLOCK], stops

    def __getitem__(self, i: int) -> Tuple[int, int]:
        block = i // BLOCK
        before = self._lengths(slice(block * BLOCK, i + 1))
        stop = int(self._starts[block]) + int(before.sum(dtype=np.int64))
        return stop - int(before[-1]), stop


class Texts:
    """A ragged uint8 column: the bytes of record ``i``."""

    def __init__(self, data: np.ndarray, lengths: np.ndarray) -> None:
        self._data, self._size = memoryview(data), lengths.size
        self._offsets = Offsets(lengths.size, lengths.__getitem__)
        if self._size and self._offsets.total != data.size:
            raise StoreError('a store is inconsistent: texts and their lengths differ. Delete it')

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> bytes:
        start, stop = self._offsets[i]
        return bytes(self._data[start:stop])

    def at(self, rows: np.ndarray) -> List[bytes]:
        """The bytes of the records ``rows`` (int64, shape (N,)) of one block."""
        if not self._data.nbytes:
            return [b''] * rows.size
        starts, stops = self._offsets.of(rows)
        return [bytes(self._data[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist())]


def gather(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The pieces of ``data`` from each start to its stop, one after the other."""
    if not starts.size:
        return data[:0]
    if (starts[1:] == stops[:-1]).all():
        return data[int(starts[0]) : int(stops[-1])]
    lengths = stops - starts
    ends = np.add.accumulate(lengths)
    return data[(stops - ends).repeat(lengths) + np.arange(ends[-1])]
