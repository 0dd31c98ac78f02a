"""The instances of an image as arrays, for whoever would make arrays of the Python objects anyway.

A number costs a few nanoseconds here and some fifty as a Python float in a list that is then converted.
"""

from __future__ import annotations

from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Dict, List, NamedTuple, Optional, Union

import numpy as np

from .layout import COORDS_INT, COORDS_MIXED, INDEX, KEPT, Trait
from .records import id_values
from .view import CROWD, DetectionView

_ODD, _DROPPED = int(Trait.ODD), int(Trait.DROPPED)
_INTEGERS, _NO_POLYGONS = int(Trait.INTEGERS), int(Trait.NO_POLYGONS)
_IS_CROWD = np.array(CROWD, bool)
_BITS = INDEX.index('bits')


class Masks(NamedTuple):
    """The polygons of an image's instances.

    Attributes:
        polygons: per instance a list of arrays of x, y, x, y, ... in pixels; it is empty if the mask is no polygons.
            The arrays are int64 where all numbers were written as integers, else float64. They are views of one array
            that is the caller's own.
        improper: the instances (int) that do not consist of polygons of three or more whole points only.
    """

    polygons: List[List[np.ndarray]]
    improper: List[int]


class ArrayView(DetectionView):
    """A :class:`~.view.DetectionView` that also gives the instances of an image as arrays."""

    def arrays(self, row: int) -> Optional[InstanceArrays]:
        """The instances of image ``row``; None if it has a record that is kept as text: see :meth:`instances`."""
        place = self._unpack_place(self._index, row * self._row_size)
        return None if place[3] & _ODD else InstanceArrays(self, row, place)

    def record_name(self, row: int, instance: int) -> str:
        """Where in the file instance ``instance`` of image ``row`` is, for messages: ``annotations[17] (id 23)``."""
        start, _, _, _, stop, _, _ = self._unpack_place(self._index, row * self._row_size)
        column, at = self.store.container.columns, int(self._kept_rows(start, stop)[instance])
        key = int(column['annotation.id'][at])
        if column['annotation.coded'][at] & 1:
            key = id_values(self.store.container, 'annotation')[key]
        return f'annotations[{int(column["annotation.position"][at])}] (id {key!r})'

    def _kept_rows(self, start: int, stop: int) -> np.ndarray:
        """Those of the annotations from ``start`` to ``stop`` that are instances."""
        keep = (self._flags[start:stop] & KEPT != 0) & (self._label[self._category[start:stop]] >= 0)
        return np.flatnonzero(keep) + start


class InstanceArrays:
    """The N instances of one image as arrays, in the order of :meth:`~.view.DetectionView.instances`.

    All arrays are fresh at each call: the caller may change them.

    Args:
        view: the annotations.
        row: an image without records that are kept as text.
        place: its fields of the index that the view needs.
    """

    __slots__ = ('_place', '_row', '_rows', '_view')

    def __init__(self, view: ArrayView, row: int, place: tuple) -> None:
        self._view, self._row, self._place = view, row, place
        start, _, _, traits, stop, _, _ = place
        self._rows: Union[slice, np.ndarray] = slice(start, stop)
        if traits & _DROPPED or not view._all_labels:
            self._rows = view._kept_rows(start, stop)

    def boxes(self) -> np.ndarray:
        """x1, y1, x2, y2 in pixels, computed as doubles: float32, shape (N, 4)."""
        boxes, scale = self._view._bbox[self._rows].astype(np.float64), self._view._bbox_scale
        if not scale:  # doubles of any size
            with np.errstate(over='ignore'):
                boxes[:, 2:] += boxes[:, :2]
                return boxes.astype(np.float32)
        boxes /= scale
        pairs = boxes.view(np.complex128)  # (x, y) and (w, h) as one number each: half the strides
        sizes = pairs[:, 1]
        sizes += pairs[:, 0]  # not pairs[:, 1] +=, which then copies the result onto itself
        return boxes.astype(np.float32)

    def labels(self) -> np.ndarray:
        """Labels: int64, shape (N,)."""
        return self._view._label.take(self._view._category[self._rows])

    def ignore_flags(self) -> np.ndarray:
        """Where ``ignore_flag`` is 1: bool, shape (N,)."""
        return _IS_CROWD.take(self._view._flags[self._rows])

    def masks(self) -> Masks:
        """The polygons of the N instances."""
        start, polygon, _, traits, stop, polygon_stop, _ = self._place
        if start == stop:
            return Masks([], [])
        view = self._view
        lengths = view._lengths[polygon:polygon_stop].tolist()
        each = self._split(lengths)
        improper = []
        if traits & _NO_POLYGONS:
            improper = np.flatnonzero(view._polygons[start:stop] == 0).tolist()
        if len(each) + len(improper) == stop - start:
            polygons = [[array] for array in each]
            for i in improper:
                polygons.insert(i, [])
        else:
            rest = iter(each)
            polygons = [list(islice(rest, count)) for count in view._polygons[start:stop].tolist()]
        different = set(lengths)
        if different and (min(different) < 6 or reduce(or_, different) & 1):
            improper = [i for i, parts in enumerate(polygons) if not _proper(parts)]
        if not isinstance(self._rows, slice):
            rows = (self._rows - start).tolist()
            polygons, bad = [polygons[i] for i in rows], set(improper)
            improper = [i for i, position in enumerate(rows) if position in bad]
        return Masks(polygons, improper)

    def has_run_length(self, instance: int) -> bool:
        """Whether an instance has an RLE that is not empty."""
        rows = self._rows
        at = rows.start + instance if isinstance(rows, slice) else rows[instance]
        return self._view.store.container.columns['annotation.rle'][at] > len('{}')

    def run_lengths(self) -> Dict[int, Dict[str, Any]]:
        """The RLE of those of the N instances that have one, as in the JSON."""
        if not self._place[3] & _NO_POLYGONS:
            return {}
        found = self._view._run_lengths(self._view._fields(self._row))
        if isinstance(self._rows, slice):
            return found
        rows = (self._rows - self._place[0]).tolist()
        return {i: found[position] for i, position in enumerate(rows) if position in found}

    def _split(self, lengths: List[int]) -> List[np.ndarray]:
        """The image's coordinates cut into polygons of ``lengths``; those of integers only are int64."""
        values = self._view._coordinates(self._row, self._place)
        whole = self._whole_numbers() if self._place[3] & _INTEGERS else None
        if whole is None or not whole.any():
            return _cut(values, lengths)
        with np.errstate(invalid='ignore'):
            integers = values.astype(np.int64)  # what does not fit is no integer, and not used
        if whole.all():
            return _cut(integers, lengths)
        parts = zip(_cut(values, lengths), _cut(integers, lengths), _cut(whole, lengths))
        return [integer if is_whole.all() else value for value, integer, is_whole in parts]

    def _whole_numbers(self) -> Optional[np.ndarray]:
        """Which of the image's coordinates were written as integers: bool; None if none."""
        view, column, rows = self._view, self._view.store.container.columns, slice(*self._place[0:5:4])
        written = column['annotation.types'][rows] & (COORDS_INT | COORDS_MIXED)
        if not written.any():
            return None
        coords, bits, at = view._coords[rows], column['annotation.bits'][rows], view._fields(self._row)[_BITS]
        whole = np.repeat(written == COORDS_INT, coords)
        ends = np.cumsum(coords, dtype=np.int64)
        for i in np.flatnonzero(written & COORDS_MIXED).tolist():
            size, count, end = int(bits[i]), int(coords[i]), int(ends[i])
            whole[end - count : end] = np.unpackbits(column['text.bits'][at : at + size], count=count)
            at += size
        return whole


def _cut(values: np.ndarray, lengths: List[int]) -> List[np.ndarray]:
    """``values`` in parts of ``lengths``, as views."""
    parts, at = [], 0
    for length in lengths:
        parts.append(values[at : (at := at + length)])
    return parts


def _proper(polygons: List[np.ndarray]) -> bool:
    """Whether there are polygons, and each is three or more whole points."""
    return bool(polygons) and all(polygon.size >= 6 and not polygon.size & 1 for polygon in polygons)
