"""The images of a dataset, in order: which rows of a store it shows, and how a row becomes a ``data_info`` dict."""

from __future__ import annotations

import operator
import os.path as osp
import pickle
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Type, Union

import numpy as np

from mmshared.annotations import ArrayView, shared_rows

from .deferred import DeferredInstances, LazyResults

Positions = Union[range, np.ndarray]


class Filter(NamedTuple):
    """What stock's ``filter_data`` goes by: see :meth:`~mmshared.annotations.DetectionView.valid_rows`."""

    filter_empty_gt: bool = False
    min_size: Any = 0
    crowds: bool = True


class Samples:
    """What ``data_list`` is in a stock dataset, without the list: item ``i`` is made when it is asked for.

    It never changes, so copies of a dataset share it, and it pickles as the recipe it is: the view (a path), the filter
    and, if the user chose some, the positions. Filtered rows are looked up again after unpickling.

    Args:
        view: the annotations as mmdet's ``CocoDataset`` understands them.
        paths: ``img`` prefix, ``seg`` prefix or None, suffix of segmentation maps.
        keep: None for all images that the view does not leave out.
        text: None, or the entries that ``return_classes`` adds to every item.
        cache_dir: where the rows that ``keep`` leaves are kept for all processes, as for the store.
        positions: None for all that ``keep`` leaves, else which of them, in order.
    """

    def __init__(
        self,
        view: ArrayView,
        paths: Tuple[str, Optional[str], str],
        keep: Optional[Filter] = None,
        text: Optional[dict] = None,
        cache_dir: Optional[str] = None,
        positions: Optional[Positions] = None,
    ) -> None:
        self._recipe = (view, paths, keep, text, cache_dir)
        self._view = view
        self._paths = osp.join(paths[0], ''), *paths[1:]  # ends in a slash: nothing left to do for every image
        # Everybody who reads an item may change what is in it; loading a pickle is the fastest deep copy.
        self._text = None if text is None else pickle.dumps(text)
        kept = valid_rows(view, keep, cache_dir)
        self._positions = range(len(kept)) if positions is None else positions
        self._rows = _take(kept, self._positions)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> dict:
        """Return a fresh ``data_info`` of image ``index`` (negative: from the end); IndexError if there is none."""
        row = int(self._rows[index])
        info = self._header(row)
        info['instances'] = self._view.instances(row)
        return info

    def defer(self, index: int) -> LazyResults:
        """Return what :meth:`read` does, with ``instances`` that are made when somebody reads them."""
        row = int(self._rows[index])
        results = LazyResults(self._header(row))
        results['instances'] = DeferredInstances(self._view, row)
        return results

    def _header(self, row: int) -> dict:
        info = self._view.header(row, *self._paths)
        if self._text is not None:
            info.update(pickle.loads(self._text))
        return info

    def labels(self, index: int) -> List[int]:
        """Return the label of every instance of image ``index``, read from the label column alone."""
        return self._view.labels(int(self._rows[index]))

    def select(self, chosen: Union[slice, np.ndarray]) -> Samples:
        """Return the samples that ``chosen``, as :func:`choose` returns it, picks out of these."""
        if not isinstance(chosen, slice):
            return Samples(*self._recipe, positions=_take(self._positions, chosen))
        return Samples(*self._recipe, positions=self._positions[chosen])

    def serialize(self) -> Tuple[np.ndarray, np.ndarray]:
        """Return all items pickled one after the other (uint8) and where each ends (int64), as stock keeps them."""
        pickles = [pickle.dumps(self.read(i), protocol=4) for i in range(len(self))]
        ends = np.cumsum([len(p) for p in pickles], dtype=np.int64)
        return np.frombuffer(bytearray().join(pickles), dtype=np.uint8), ends

    def __deepcopy__(self, memo: dict) -> Samples:
        return self

    def __reduce__(self) -> tuple:
        return Samples, (*self._recipe, self._positions)


def valid_rows(view: ArrayView, keep: Optional[Filter], cache_dir: Optional[str]) -> Positions:
    """Return the rows that are not left out, and pass the filter: worked out once per node, then mapped."""
    without = view.paths.without
    if keep is None and not without:
        return range(len(view))

    def compute() -> Optional[np.ndarray]:
        rows = None if keep is None else view.valid_rows(*keep)
        left_out = view.left_out()
        if not left_out.size:
            return rows
        return np.setdiff1d(np.arange(len(view)) if rows is None else rows, left_out, assume_unique=True)

    key = f'valid rows {view.cat_ids!r} {keep!r} {without!r}'
    rows = shared_rows(view.store, key, compute, cache_dir)
    return range(len(view)) if rows is None else rows


def _take(values: Positions, positions: Positions) -> Positions:
    """Return ``values[positions]``; ranges (always of step 1) stay ranges and cost nothing."""
    if isinstance(positions, range):
        return values[positions.start : positions.stop]
    if isinstance(values, range):
        return values.start + positions
    return values[positions]


def choose(indices: Union[int, Sequence[int]], length: int, out_of_range: Optional[Type[Exception]]) -> Any:
    """Turn mmengine's ``indices`` into a slice or an array of positions.

    Args:
        indices: the first ``n``, the last ``n`` if negative, or a sequence of positions (negative ones from the end).
        length: of what is chosen from.
        out_of_range: raised for a number greater than ``length``; None: it means all, as in slicing a list.

    Returns:
        slice or ndarray[int64]: positions are not negative.

    Raises:
        TypeError: ``indices`` is neither, or an element is not an integer.
        IndexError: a position does not exist (or ``out_of_range`` in its place).
    """
    if isinstance(indices, int):
        if out_of_range and abs(indices) > length:
            raise out_of_range(f'cannot take {indices} samples of a dataset of {length}')
        return slice(0, indices) if indices >= 0 else slice(max(length + indices, 0), length)
    if not isinstance(indices, Sequence):
        raise TypeError(f'indices should be a int or sequence of int, but got {type(indices)}')
    positions = np.fromiter((operator.index(i) for i in indices), np.int64, len(indices))
    outside = positions[(positions < -length) | (positions >= length)]
    if len(outside):
        raise (out_of_range or IndexError)(f'index {outside[0]} is out of range for a dataset of {length} samples')
    return np.where(positions < 0, positions + length, positions)
