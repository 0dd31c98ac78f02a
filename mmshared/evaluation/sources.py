"""What the dicts of a ``COCO`` are made of, when they are looked up."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from mmshared.annotations.lookup import Rows

from .annotation_table import AnnotationTable

_BLOCK = 1 << 16


def _numbers(rows: Rows) -> List[int]:
    return rows.tolist() if isinstance(rows, np.ndarray) else list(rows)


class _Source:
    def __init__(self, table: AnnotationTable) -> None:
        self._table = table

    def prepare(self, numbers: List[Any]) -> None:
        """Makes what it takes to make many values."""


class Annotations(_Source):
    """``anns``: annotation id -> record, the last one of several."""

    def __len__(self) -> int:
        return self._table.lookup.num_ids

    def entries(self) -> Iterator[Tuple[Any, int]]:
        """Ids and rows, in the order of the file."""
        table = self._table
        repeated = len(self) < table.store.num_annotations
        rows = table.lookup.first_rows()
        for start in range(0, len(rows), _BLOCK):
            block = np.asarray(rows[start : start + _BLOCK], np.int64)
            ids = table.ids(block)
            yield from zip(ids, map(table.lookup.annotation, ids) if repeated else block.tolist())

    def find(self, key: Any) -> Optional[int]:
        """Its row."""
        return self._table.lookup.annotation(key)

    def make(self, row: int) -> dict:
        """The record."""
        return self._table.record(row)

    def prepare(self, rows: List[int]) -> None:
        """Makes many."""
        self._table.records(rows)


class Images(_Source):
    """``imgs``: image id -> record, the last one of several."""

    def __len__(self) -> int:
        return self._table.store.num_images

    def entries(self) -> Iterator[Tuple[Any, int]]:
        """Ids and numbers, in order of first appearance."""
        return zip(self._table.image_keys(), range(len(self)))

    def find(self, key: Any) -> Optional[int]:
        """Its number."""
        number = self._table.lookup.image(key)
        return None if number is None or number >= len(self) else number

    def make(self, number: int) -> dict:
        """The record."""
        return self._table.image(number)


class ByImage(_Source):
    """``imgToAnns``: image id -> list of records, of the images that have some."""

    def __len__(self) -> int:
        return self._table.lookup.annotated_images()[0].size

    def entries(self) -> Iterator[Tuple[Any, int]]:
        """Image ids and numbers, in the order in which annotations name them."""
        images, rows = self._table.lookup.annotated_images()
        return zip(self._table.image_ids(rows), images.tolist())

    def find(self, key: Any) -> Optional[int]:
        """The image's number."""
        number = self._table.lookup.image(key)
        return None if number is None or not len(self._table.lookup.rows_of(number)) else number

    def make(self, number: int) -> List[dict]:
        """The records, in the order of the file."""
        return self._table.records(_numbers(self._table.lookup.rows_of(number)))

    def prepare(self, numbers: List[int]) -> None:
        """Makes the records of many."""
        lookup = self._table.lookup
        self._table.records([row for number in numbers for row in _numbers(lookup.rows_of(number))])


class ByCategory(_Source):
    """``catToImgs``: category id -> the image id of each of its annotations, if the file has categories."""

    @cached_property
    def _first(self) -> Dict[int, int]:
        listed = 'top.categories' in self._table.store.container.columns
        return self._table.first_of_categories() if listed else {}

    @cached_property
    def _codes(self) -> Dict[Any, int]:
        listed = 'top.categories' in self._table.store.container.columns
        return {value: code for code, value in enumerate(self._table.categories)} if listed else {}

    def __len__(self) -> int:
        return len(self._codes)

    def entries(self) -> Iterator[Tuple[Any, int]]:
        """Category ids and codes, in the order in which annotations name them."""
        return ((self._table.category_id(row), code) for code, row in self._first.items())

    def find(self, key: Any) -> Optional[int]:
        """Its code."""
        return self._codes.get(key)

    def make(self, code: int) -> List[Any]:
        """Image ids, in the order of the file."""
        return self._table.image_ids(self._table.rows_of_category(code))


class Members(_Source):
    """``dataset``: the members of the file's object."""

    def __len__(self) -> int:
        return len(self._names)

    def entries(self) -> Iterator[Tuple[str, str]]:
        """Their names."""
        return ((name, name) for name in self._names)

    def find(self, key: Any) -> Optional[str]:
        """The name."""
        return self._names.get(key)

    def make(self, name: str) -> Any:
        """The value; of ``images`` and ``annotations`` the list of the records that the other dicts have, too."""
        table = self._table
        if not table.store.container.attributes['sections'].get(name):
            return json.loads(table.store.container.columns[f'top.{name}'].tobytes())
        if name == 'images':
            return table.images()
        return table.records(_numbers(table.lookup.rows))

    @cached_property
    def _names(self) -> Dict[str, str]:
        container = self._table.store.container
        names = [name[len('top.') :] for name in container.columns if name.startswith('top.')]
        names += [name for name, there in container.attributes['sections'].items() if there]
        return {name: name for name in names}
