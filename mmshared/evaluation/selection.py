"""Which annotations meet the conditions of ``COCO.getAnnIds``: told by columns wherever these can tell."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np

from mmshared.annotations.layout import FLAG_FORMS

from .annotation_table import AnnotationTable


class Selection:
    """Some annotations, in an order that says nothing.

    Args:
        table: the table.
        rows: int64, shape (N,): their rows; -1 - k for the k-th of ``given``.
        given: records that are not, or no longer, those of the table.
    """

    def __init__(self, table: AnnotationTable, rows: np.ndarray, given: Sequence[dict] = ()) -> None:
        self._table, self._rows, self._given = table, rows, given

    def where(self, of_rows: Callable[[np.ndarray], np.ndarray], of_record: Callable[[dict], Any]) -> Selection:
        """Those for which a condition holds.

        Args:
            of_rows: tells of rows (int64, shape (M,)) that columns speak for whether it holds (bool, shape (M,)).
            of_record: tells the same of any other record.
        """
        exceptions = self._table.exceptions(self._rows)
        if not exceptions.size:
            return Selection(self._table, self._rows[of_rows(self._rows)], self._given)
        plain = np.ones(self._rows.size, bool)
        plain[exceptions] = False
        keep = np.zeros(self._rows.size, bool)
        keep[plain] = of_rows(self._rows[plain])
        for i in exceptions.tolist():
            keep[i] = bool(of_record(self._record(int(self._rows[i]))))
        return Selection(self._table, self._rows[keep], self._given)

    def ids(self) -> List[Any]:
        """Their ids."""
        exceptions = self._table.exceptions(self._rows)
        if not exceptions.size:
            return self._table.ids(self._rows)
        ids = np.empty(self._rows.size, object)
        plain = np.ones(self._rows.size, bool)
        plain[exceptions] = False
        ids[plain] = self._table.ids(self._rows[plain])
        ids = ids.tolist()
        for i in exceptions.tolist():
            ids[i] = self._record(int(self._rows[i]))['id']
        return ids

    def _record(self, row: int) -> dict:
        if row < 0:
            return self._given[-1 - row]
        record = self._table.made(row)
        return self._table.written(row) if record is None else record


def crowd_condition(iscrowd: Any, table: AnnotationTable) -> Callable[[np.ndarray], np.ndarray]:
    """Whether ``annotation['iscrowd'] == iscrowd``, as :meth:`Selection.where` wants it. ``KeyError`` without one."""

    def of_rows(rows: np.ndarray) -> np.ndarray:
        forms = table.crowd_forms(rows)
        equal = np.zeros(len(FLAG_FORMS), bool)
        for form in np.unique(forms).tolist():
            if form == 0:
                raise KeyError('iscrowd')
            equal[form] = bool(FLAG_FORMS[form] == iscrowd)
        return equal[forms]

    return of_rows


def category_condition(category_ids: Any, table: AnnotationTable) -> Callable[[np.ndarray], np.ndarray]:
    """Whether ``annotation['category_id'] in category_ids``."""

    def of_rows(rows: np.ndarray) -> np.ndarray:
        codes = table.category_codes(rows)
        among = np.zeros(len(table.categories), bool)
        for code in np.unique(codes).tolist():
            among[code] = bool(table.categories[code] in category_ids)
        return among[codes]

    return of_rows


def area_condition(area_range: Any, table: AnnotationTable) -> Callable[[np.ndarray], np.ndarray]:
    """Whether ``area_range[0] < annotation['area'] < area_range[1]``, bounds of any kind included."""

    def of_rows(rows: np.ndarray) -> np.ndarray:
        bounds = area_range[:2] if isinstance(area_range, (list, tuple)) else ()
        if len(bounds) == 2 and all(type(b) is float or (type(b) is int and abs(b) <= 1 << 53) for b in bounds):
            areas = table.areas(rows)
            return (areas > bounds[0]) & (areas < bounds[1])
        return np.array([bool(within(area, area_range)) for area in table.areas_written(rows)], bool)

    return of_rows


def within(area: Any, area_range: Any) -> Any:
    """Pycocotools' test of an area."""
    return area > area_range[0] and area < area_range[1]
