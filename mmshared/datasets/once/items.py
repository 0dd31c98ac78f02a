"""``data_list`` of a dataset that was loaded once for all: pickled items in a mapped file, unpickled when asked for."""

from __future__ import annotations

import contextlib
import pickle
from contextvars import ContextVar
from typing import Any, Iterator, Optional, Sequence

import numpy as np

from mmshared.datasets.data_list import LazyDataList

_COPIES_ONLY: ContextVar[bool] = ContextVar('_COPIES_ONLY', default=False)


@contextlib.contextmanager
def copies_only() -> Iterator[None]:
    """Within the block, a :class:`PickledList` keeps nothing of what it hands out: nobody will change it in place."""
    token = _COPIES_ONLY.set(True)
    try:
        yield
    finally:
        _COPIES_ONLY.reset(token)


class PickledItems:
    """Items, each of which is made anew when it is read.

    Args:
        data: uint8, shape (B,): the pickles, one behind the other.
        ends: int64, shape (N,): where in ``data`` each ends.
        rows: int64, shape (M,): which of them are the items; None: all N.
    """

    def __init__(self, data: np.ndarray, ends: np.ndarray, rows: Optional[np.ndarray] = None) -> None:
        self._data, self._ends, self._rows = data, ends, rows

    def read(self, index: int) -> Any:
        """Return item ``index`` (negative: from the end); IndexError if there is none."""
        position = range(len(self))[index]
        row = position if self._rows is None else self._rows[position].item()
        start = self._ends[row - 1].item() if row else 0
        return pickle.loads(memoryview(self._data[start : self._ends[row].item()]))

    def select(self, positions: Sequence[int]) -> PickledItems:
        """Return the items at these positions, all of them from 0 on."""
        positions = np.asarray(positions, dtype=np.int64)
        return PickledItems(self._data, self._ends, positions if self._rows is None else self._rows[positions])

    def __len__(self) -> int:
        return len(self._ends if self._rows is None else self._rows)


class PickledList(LazyDataList):
    """A list of :class:`PickledItems`."""

    def __getitem__(self, index: Any) -> Any:
        return self.read(index) if _COPIES_ONLY.get() and not isinstance(index, slice) else super().__getitem__(index)

    def subset(self, indices: Any) -> Sequence:
        """Return the items that mmengine's ``_get_unserialized_subset(indices)`` gives."""
        positions = range(len(self))
        if isinstance(indices, int):
            chosen = positions[:indices] if indices >= 0 else positions[indices:]
        else:
            chosen = [positions[index] for index in indices]
        if self.untouched is None:
            return [self[position] for position in chosen]
        return PickledList(self._samples.select(chosen))
