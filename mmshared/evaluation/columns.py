"""Columns that grow: a few pieces of memory, however many things are appended."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

import numpy as np


class Column:
    """Numbers of one dtype, appended array by array.

    A ``bytearray`` grows where it lies, by an eighth more than is needed, so memory stays close to the payload, and
    nothing is copied to send it.

    Args:
        dtype: of the numbers; None: that of the first array with something in it. Later ones of another dtype make it
            the one that numpy promotes both to.
    """

    def __init__(self, dtype: Optional[Any] = None) -> None:
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.data = bytearray()

    def extend(self, array: Any) -> None:
        """Append the numbers of ``array``, of any shape."""
        array = np.ascontiguousarray(array).reshape(-1)
        if not array.size:
            return
        if self.dtype is None:
            self.dtype = array.dtype
        elif array.dtype != self.dtype:
            self._promote(np.result_type(self.dtype, array.dtype))
            array = array.astype(self.dtype)
        self.data += array.view(np.uint8).data

    def array(self) -> np.ndarray:
        """All of it, shape (N,), as a view: nothing can be appended while one is alive."""
        return np.frombuffer(self.data, np.float32 if self.dtype is None else self.dtype)

    def copy(self, start: int, stop: int) -> np.ndarray:
        """Numbers ``start`` to ``stop``, as an array of their own."""
        return self.array()[start:stop].copy()

    def _promote(self, dtype: np.dtype) -> None:
        if dtype != self.dtype:
            self.data = bytearray(self.array().astype(dtype).view(np.uint8).data)
            self.dtype = dtype


class Texts(NamedTuple):
    """Texts in one or several pieces of memory.

    Attributes:
        data: the pieces, one after the other.
        starts, lengths: int64, shape (N,): where in ``data`` each text is, in bytes.
    """

    data: bytes
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[bytes], lengths: Sequence[np.ndarray]) -> Texts:
        """All texts of the ``parts``, of which ``lengths`` says how long each text is."""
        data = parts[0] if len(parts) == 1 else b''.join(parts)
        sizes = np.concatenate([np.zeros(0, np.int64), *lengths])
        return cls(data, np.cumsum(sizes) - sizes, sizes)

    def take(self, rows: np.ndarray) -> Texts:
        """These texts, in this order, without copying them."""
        return Texts(self.data, self.starts[rows], self.lengths[rows])

    def all(self) -> List[bytes]:
        """Every text."""
        view = memoryview(self.data)
        stops = (self.starts + self.lengths).tolist()
        return [bytes(view[start:stop]) for start, stop in zip(self.starts.tolist(), stops)]


def ragged(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The row numbers of groups of rows, one group after the other.

    Args:
        starts, lengths: int64, shape (G,): where each group begins, and how many rows it has.

    Returns:
        int64, shape (sum of lengths,).
    """
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
