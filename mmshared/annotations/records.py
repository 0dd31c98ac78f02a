"""The records of a store as they were in the JSON: every key and value, in the order of the file."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List

import numpy as np

from .columns import decode_coordinates
from .container import Container
from .errors import StoreError
from .layout import (
    AREA_INT,
    COORDS_INT,
    COORDS_MIXED,
    FLAG_FORMS,
    INDEX,
    MISSING,
    NULL,
    POLYGONS,
    RUN_LENGTH,
    Trait,
    image_record,
)

_ID, _HEIGHT, _WIDTH, _TRAITS = (INDEX.index(name) for name in ('id', 'height', 'width', 'traits'))


class Texts:
    """A ragged uint8 column: the bytes of record ``i``."""

    def __init__(self, data: np.ndarray, lengths: np.ndarray) -> None:
        self._data, self._lengths = memoryview(data), lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)
        if self._ends.size and self._ends[-1] != data.size:
            raise StoreError('a store is inconsistent: texts and their lengths differ. Delete it')

    def __len__(self) -> int:
        return self._lengths.size

    def __getitem__(self, i: int) -> bytes:
        end = int(self._ends[i])
        return bytes(self._data[end - int(self._lengths[i]) : end])


def id_values(container: Container, name: str) -> List[Any]:
    """Values of the coded ids of ``name`` ('image', 'annotation' or 'category'), by code."""
    columns = container.columns
    texts = Texts(columns[f'text.{name}_ids'], columns[f'length.{name}_ids'])
    return [json.loads(texts[i]) for i in range(len(texts))]


class Records:
    """Record by record access to a store; takes 8 bytes a record and ragged column of memory, so open it late.

    Args:
        container: the store's file.
    """

    def __init__(self, container: Container) -> None:
        self._columns, self._scales = container.columns, container.attributes['scales']
        column = self._columns
        self._texts = {
            name: Texts(column[f'text.{name}'], column[f'annotation.{name}'])
            for name in ('bits', 'rle', 'extra', 'raw')
        }
        index = column['index']
        self._starts = index[:, 0]
        self._image_texts = {
            'name': Texts(column['text.image_name'], np.diff(index[:, INDEX.index('name')])),
            'raw': Texts(column['text.image_raw'], np.diff(index[:, INDEX.index('image_raw')])),
            'extra': Texts(column['text.image_extra'], np.diff(index[:, INDEX.index('image_extra')])),
        }
        self._ids = {name: id_values(container, name) for name in ('image', 'annotation', 'category')}
        self._polygon_ends = np.cumsum(column['annotation.polygons'], dtype=np.int64)
        width = column['annotation.code'] >> 3
        sizes = [column['annotation.coords'] * (width == w) for w in range(3)]
        self._coordinate_ends = [np.cumsum(size, dtype=np.int64) for size in sizes]
        for name, ends in zip(('u16', 'i32', 'f64'), self._coordinate_ends):
            if ends.size and ends[-1] != column[f'text.{name}'].size:
                raise StoreError(f'{container.path}: coordinates and their lengths differ. Delete it')

    def annotation(self, i: int) -> Dict[str, Any]:
        """The annotation record at stored position ``i``, which is grouped by image."""
        column = self._columns
        raw = self._texts['raw'][i]
        if raw:
            return json.loads(raw)
        types, flags = int(column['annotation.types'][i]), int(column['annotation.flags'][i])
        coded = int(column['annotation.coded'][i])
        key = int(column['annotation.id'][i])
        record = {
            'id': self._ids['annotation'][key] if coded & 1 else key,
            'image_id': self._image_id(i, coded),
            'category_id': self._ids['category'][int(column['annotation.category'][i])],
        }
        box = self._decimal('bbox', i).tolist()
        record['bbox'] = [int(v) if types >> k & 1 else v for k, v in enumerate(box)]
        area = float(self._decimal('area', i))
        record['area'] = int(area) if types & AREA_INT else area
        for field, form in (('iscrowd', flags & 7), ('ignore', flags >> 3 & 7)):
            if form:
                record[field] = FLAG_FORMS[form]
        kind = int(column['annotation.kind'][i])
        if kind != MISSING:
            record['segmentation'] = {
                POLYGONS: self.polygons,
                NULL: lambda _: None,
                RUN_LENGTH: lambda i: json.loads(self._texts['rle'][i]),
            }[kind](i)
        extra = self._texts['extra'][i]
        if extra:
            record.update(json.loads(extra))
        return record

    def polygons(self, i: int) -> List[List[Any]]:
        """The polygons of the annotation at stored position ``i``: lists of x, y, x, y, ... in pixels."""
        column = self._columns
        count, end = int(column['annotation.polygons'][i]), int(self._polygon_ends[i])
        lengths = column['text.polygons'][end - count : end].tolist()
        one = slice(i, i + 1)
        code, size = column['annotation.code'][one], column['annotation.coords'][one]
        parts = []
        for name, ends in zip(('u16', 'i32', 'f64'), self._coordinate_ends):
            stop = int(ends[i])
            parts.append(column[f'text.{name}'][(int(ends[i - 1]) if i else 0) : stop])
        values = decode_coordinates(code, column['annotation.base'][one], size, tuple(parts)).tolist()
        types = int(column['annotation.types'][i])
        if types & (COORDS_INT | COORDS_MIXED):
            values = as_written(values, types, self._texts['bits'][i])
        polygons, start = [], 0
        for length in lengths:
            polygons.append(values[start : start + length])
            start += length
        return polygons

    def image(self, group: int) -> Dict[str, Any]:
        """The image record of the ``group``-th distinct id: the last one with that id."""
        raw = self._image_texts['raw'][group]
        if raw:
            return json.loads(raw)
        row = self._columns['index'][group]
        return image_record(
            self.image_key(group),
            int(row[_HEIGHT]),
            int(row[_WIDTH]),
            None if int(row[_TRAITS]) & Trait.NAMELESS else self._image_texts['name'][group],
            self._image_texts['extra'][group],
        )

    def image_key(self, group: int) -> Any:
        """The id of the ``group``-th image: an equal one of another type (1.0 for 1) may stand in its record."""
        row = self._columns['index'][group]
        return self._ids['image'][int(row[_ID])] if int(row[_TRAITS]) & 32 else int(row[_ID])

    def images(self) -> Iterator[Dict[str, Any]]:
        """All image records, in the order of the file."""
        column = self._columns
        texts = Texts(column['text.superseded'], column['length.superseded'])
        where = [(int(p), True, i) for i, p in enumerate(column['superseded.position'])]
        where += [(int(p), False, i) for i, p in enumerate(column['image.position'])]
        for _, superseded, i in sorted(where):
            yield json.loads(texts[i]) if superseded else self.image(i)

    def annotations(self) -> Iterator[Dict[str, Any]]:
        """All annotation records, in the order of the file."""
        for i in np.argsort(self._columns['annotation.position'], kind='stable'):
            yield self.annotation(int(i))

    def _decimal(self, field: str, i: int) -> np.ndarray:
        scale = self._scales[field]
        value = self._columns[f'annotation.{field}'][i]
        return value / scale if scale else value

    def _image_id(self, i: int, coded: int) -> Any:
        known = int(self._starts[-1])
        if i >= known:
            key = int(self._columns['orphan.image'][i - known])
        else:
            key = int(self._columns['index'][int(np.searchsorted(self._starts, i, 'right')) - 1][_ID])
        return self._ids['image'][key] if coded & 2 else key


def as_written(values: List[float], types: int, bits: Any) -> List[Any]:
    """Coordinates with those as integers that were written so.

    Args:
        values: the coordinates of one annotation.
        types: its :data:`~.parsing.ingest.COORDS_INT` and :data:`~.parsing.ingest.COORDS_MIXED` bits.
        bits: for a mixed one, a bit a coordinate, packed (bytes or uint8).
    """
    if types & COORDS_INT:
        return list(map(int, values))
    which = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(values)).tolist()
    return [int(v) if is_int else v for v, is_int in zip(values, which)]
