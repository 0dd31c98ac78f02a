"""``dataset.data_list`` for datasets that do not have one."""

from __future__ import annotations

import copy
from collections.abc import MutableSequence
from typing import Any, Dict, Iterable, List, Optional, Sequence

from .samples import Samples


class LazyDataList(MutableSequence):
    """A list of ``data_info`` dicts, each made when first asked for, then kept: who got it may change it.

    So reading all of it ends up at the memory of a stock dataset, and reading a little costs a little. Inserting or
    deleting makes a real list of it. It equals a list of the same items, but ``isinstance(x, list)`` is False.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples: Optional[Samples] = samples
        self._seen: Dict[int, dict] = {}
        self._items: List[dict] = []

    @property
    def untouched(self) -> Optional[Samples]:
        """The samples behind it as long as no item was handed out or replaced, else None."""
        return None if self._seen else self._samples

    def read(self, index: int) -> dict:
        """Return item ``index`` as a copy that is the caller's own; nothing is kept."""
        if self._samples is None:
            return copy.deepcopy(self._items[index])
        if not self._seen:
            return self._samples.read(index)
        position = range(len(self))[index]
        kept = self._seen.get(position)
        return self._samples.read(position) if kept is None else copy.deepcopy(kept)

    def labels(self, index: int) -> List[int]:
        """Return the labels of the instances of item ``index``."""
        if self.untouched is not None:
            return self._samples.labels(index)
        return [instance['bbox_label'] for instance in self.read(index)['instances']]

    def __len__(self) -> int:
        return len(self._items if self._samples is None else self._samples)

    def __getitem__(self, index: Any) -> Any:
        if self._samples is None:
            return self._items[index]
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        position = range(len(self))[index]
        if position not in self._seen:
            self._seen[position] = self._samples.read(position)
        return self._seen[position]

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._samples is None or isinstance(index, slice):
            self._make_list()[index] = value
        else:
            self._seen[range(len(self))[index]] = value

    def __delitem__(self, index: Any) -> None:
        del self._make_list()[index]

    def insert(self, index: int, value: Any) -> None:
        """Insert ``value`` before ``index``."""
        self._make_list().insert(index, value)

    def sort(self, **options: Any) -> None:
        """Sort in place; ``key`` and ``reverse`` as for a list."""
        self._make_list().sort(**options)

    def copy(self) -> List[dict]:
        """Return a list of the same items."""
        return self[:]

    def _make_list(self) -> List[dict]:
        if self._samples is not None:
            self._items, self._samples, self._seen = self[:], None, {}
        return self._items

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, LazyDataList)):
            return NotImplemented
        return len(self) == len(other) and all(self._peek(i) == _peek(other, i) for i in range(len(self)))

    __hash__ = None

    def _peek(self, index: int) -> dict:
        """Return item ``index`` to look at only: nothing is kept, nothing copied without need."""
        if self._samples is None:
            return self._items[index]
        return self._seen[index] if index in self._seen else self._samples.read(index)

    def __add__(self, other: Iterable[dict]) -> List[dict]:
        return self[:] + list(other)

    def __radd__(self, other: Iterable[dict]) -> List[dict]:
        return list(other) + self[:]

    def __repr__(self) -> str:
        return f'<{type(self).__name__} of {len(self)} samples>'


def _peek(items: Sequence[dict], index: int) -> dict:
    return items._peek(index) if isinstance(items, LazyDataList) else items[index]
