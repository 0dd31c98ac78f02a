"""The records of a store as pycocotools' ``COCO`` holds them: a dict each, the same one whenever it is asked for."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Dict, List, Optional, Sequence

import numpy as np

from mmshared.annotations import AnnotationStore
from mmshared.annotations.layout import AREA_INT, INDEX, Trait
from mmshared.annotations.lookup import Lookup
from mmshared.annotations.ragged import Texts
from mmshared.annotations.records import CODED_ID, CODED_IMAGE, Records, id_values, image_keys

_ID, _TRAITS, _IMAGE_RAW = (INDEX.index(name) for name in ('id', 'traits', 'image_raw'))
_OPENED = ('_records', '_raw', '_odd', '_starts', '_annotation_ids', '_image_ids', 'categories')


class AnnotationTable:
    """Images and annotations of a store: values from its columns, records from its texts.

    Rows are those of the store, where annotations are grouped by image. Records that were handed out are kept until
    :meth:`release`, since whoever has them may change them.

    Args:
        store: the store.
        cache_dir: as for ``open_store``.

    Attributes:
        lookup: rows by id and by image.
    """

    def __init__(self, store: AnnotationStore, cache_dir: Optional[str] = None) -> None:
        self.store, self.lookup = store, Lookup(store, cache_dir)
        self._made: Dict[int, dict] = {}
        self._images: Dict[int, dict] = {}
        self._column, self._scale = store.container.columns, store.container.attributes['scales']['area']

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name not in (*_OPENED, '_column')}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state, _column=state['store'].container.columns)

    def release(self) -> None:
        """Forgets every record that was handed out, and whatever it takes to make them."""
        self._made, self._images = {}, {}
        self.lookup = Lookup(self.store, self.lookup.cache_dir)
        for name in _OPENED:
            self.__dict__.pop(name, None)

    # --- records
    def record(self, row: int) -> dict:
        """The annotation record at ``row``."""
        record = self._made.get(row)
        return self._made.setdefault(row, self._records.annotation(row)) if record is None else record

    def records(self, rows: Sequence[int]) -> List[dict]:
        """The annotation records at ``rows``; faster than one by one."""
        made = self._made
        missing = sorted({row for row in rows if row not in made})
        for row, record in zip(missing, self._records.at(np.array(missing, np.int64))):
            made.setdefault(row, record)
        return [made[row] for row in rows]

    def image(self, number: int) -> dict:
        """The record of the ``number``-th image: of several with one id, the last of the file."""
        record = self._images.get(number)
        return self._images.setdefault(number, self._records.image(number)) if record is None else record

    def images(self) -> List[dict]:
        """All image records, in the order of the file."""
        return [
            self._records.superseded(i) if superseded else self.image(i)
            for superseded, i in self._records.image_places()
        ]

    def written(self, row: int) -> Any:
        """The record at ``row``, which is kept as text, as the file has it; not kept."""
        return json.loads(self._raw[row])

    def made(self, row: int) -> Optional[dict]:
        """The record at ``row`` if it was handed out before."""
        return self._made.get(row)

    def exceptions(self, rows: np.ndarray) -> np.ndarray:
        """Places in ``rows`` (int64, shape (N,)) where the columns do not tell what the record has.

        That is where its text is kept, where it was handed out, and where the number is negative.
        """
        odd = rows < 0
        if self._odd is not None:
            odd |= self._odd[np.maximum(rows, 0)] > 0
        if self._made:
            odd |= np.fromiter(map(self._made.__contains__, rows.tolist()), bool, rows.size)
        return np.flatnonzero(odd)

    # --- values of plain records
    def category_codes(self, rows: np.ndarray) -> np.ndarray:
        """Places in :attr:`categories` of the category ids at ``rows``."""
        return self._column['annotation.category'][rows]

    def areas(self, rows: np.ndarray) -> np.ndarray:
        """Areas at ``rows`` in square pixels, float64, those written as integers included: they are exact."""
        areas = self._column['annotation.area'][rows]
        return areas / self._scale if self._scale else areas

    def areas_written(self, rows: np.ndarray) -> List[Any]:
        """The same as the file has them: ``int`` or ``float``."""
        is_int = self._column['annotation.types'][rows] & AREA_INT
        return [int(v) if i else v for v, i in zip(self.areas(rows).tolist(), is_int.tolist())]

    def crowd_forms(self, rows: np.ndarray) -> np.ndarray:
        """Places in :data:`~mmshared.annotations.layout.FLAG_FORMS` of ``iscrowd`` at ``rows``."""
        return self._column['annotation.flags'][rows] & 7

    @cached_property
    def categories(self) -> List[Any]:
        """The category ids that annotations have."""
        return id_values(self.store.container, 'category')

    # --- values of any records, as the file has them
    def ids(self, rows: np.ndarray) -> List[Any]:
        """Annotation ids at ``rows``."""
        coded = self._column['annotation.coded'][rows] & CODED_ID
        ids = self._column['annotation.id'][rows].tolist()
        for i in np.flatnonzero(coded).tolist():
            ids[i] = json.loads(self._annotation_ids[ids[i]])
        return self._as_written(ids, rows, 'id')

    def image_ids(self, rows: np.ndarray) -> List[Any]:
        """Image ids at ``rows``."""
        ids = image_keys(self._column, self._starts, rows).tolist()
        for i in np.flatnonzero(self._column['annotation.coded'][rows] & CODED_IMAGE).tolist():
            ids[i] = self._image_ids[ids[i]]
        return self._as_written(ids, rows, 'image_id')

    def category_id(self, row: int) -> Any:
        """The category id at ``row``."""
        values = [self.categories[int(self._column['annotation.category'][row])]]
        return self._as_written(values, np.array([row]), 'category_id')[0]

    def rows_of_category(self, code: int) -> np.ndarray:
        """Rows of the annotations with the ``code``-th of :attr:`categories`, in the order of the file."""
        rows = np.flatnonzero(self._column['annotation.category'] == code)
        return rows[np.argsort(self._column['annotation.position'][rows], kind='stable')]

    def first_of_categories(self) -> Dict[int, int]:
        """For each code in :attr:`categories` its first row in the order of the file; in that order."""
        rows = np.asarray(self.lookup.rows, np.int64)
        codes, first = np.unique(self._column['annotation.category'][rows], return_index=True)
        order = np.argsort(first)
        return dict(zip(codes[order].tolist(), rows[first[order]].tolist()))

    def image_keys(self) -> List[Any]:
        """The id of every image as the first record with it has it."""
        index = self._column['index'][:-1]
        keys = index[:, _ID].tolist()
        for i in np.flatnonzero(index[:, _TRAITS] & int(Trait.CODED)).tolist():
            keys[i] = self._image_ids[keys[i]]
        for i in np.flatnonzero(np.diff(self._column['index'][:, _IMAGE_RAW])).tolist():
            keys[i] = self._records.image(i)['id']
        groups = self._column['superseded.group'].tolist()
        for i, group in reversed(list(enumerate(groups))):
            keys[group] = self._records.superseded(i)['id']
        return keys

    def _as_written(self, values: List[Any], rows: np.ndarray, field: str) -> List[Any]:
        """``values`` with those of records that are kept as text as these have them: 1.0 is not 1."""
        if self._odd is not None:
            for i in np.flatnonzero(self._odd[rows]).tolist():
                values[i] = self.written(int(rows[i]))[field]
        return values

    # --- opened when needed
    @cached_property
    def _records(self) -> Records:
        return Records(self.store.container)

    @cached_property
    def _raw(self) -> Texts:
        return Texts(self._column['text.raw'], self._column['annotation.raw'])

    @cached_property
    def _odd(self) -> Optional[np.ndarray]:
        lengths = self._column['annotation.raw']
        return lengths if lengths.any() else None

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.ascontiguousarray(self._column['index'][:, 0])

    @cached_property
    def _annotation_ids(self) -> Texts:
        return Texts(self._column['text.annotation_ids'], self._column['length.annotation_ids'])

    @cached_property
    def _image_ids(self) -> List[Any]:
        return id_values(self.store.container, 'image')
