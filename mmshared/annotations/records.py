"""The records of a store as they were in the JSON: every key and value, in the order of the file."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterator, List, Tuple

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
    image_record,
)

_BLOCK = 256
_ID, _HEIGHT, _WIDTH, _TRAITS = (INDEX.index(name) for name in ('id', 'height', 'width', 'traits'))


class Offsets:
    """Where the piece of each record lies in a ragged column: ``offsets[i]`` is its start and its stop.

    It keeps 8 bytes for every 256 records, and what was asked for last; running sums of all lengths would take more
    than the column itself where most records are short.

    Args:
        size: how many records there are.
        lengths: ``lengths(rows)`` gives the lengths of the records in the slice ``rows``, as integers.

    Attributes:
        total: elements of all records.
    """

    def __init__(self, size: int, lengths: Callable[[slice], np.ndarray]) -> None:
        self._lengths = lengths
        sums = [np.zeros(1, np.int64)]
        for start in range(0, size, _BLOCK * _BLOCK):
            part = lengths(slice(start, min(start + _BLOCK * _BLOCK, size)))
            sums.append(np.add.reduceat(part, np.arange(0, part.size, _BLOCK), dtype=np.int64))
        self._starts = np.cumsum(np.concatenate(sums))
        self.total = int(self._starts[-1])
        self._last: Tuple[int, List[int]] = (-1, [])

    def __getitem__(self, i: int) -> Tuple[int, int]:
        block, k = divmod(i, _BLOCK)
        number, ends = self._last  # read once: another thread may replace it
        if number != block:
            lengths = self._lengths(slice(block * _BLOCK, (block + 1) * _BLOCK))
            start = int(self._starts[block])
            ends = [start, *(np.cumsum(lengths, dtype=np.int64) + start).tolist()]
            self._last = block, ends
        return ends[k], ends[k + 1]


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


def id_values(container: Container, name: str) -> List[Any]:
    """Values of the coded ids of ``name`` ('image', 'annotation' or 'category'), by code."""
    columns = container.columns
    texts = Texts(columns[f'text.{name}_ids'], columns[f'length.{name}_ids'])
    return [json.loads(texts[i]) for i in range(len(texts))]


class Records:
    """Record by record access to a store. Opening it reads the lengths of all records; it keeps a few bytes an image.

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
        self._starts = np.ascontiguousarray(index[:, 0])
        self._image_texts = {
            'name': Texts(column['text.image_name'], np.diff(index[:, INDEX.index('name')])),
            'raw': Texts(column['text.image_raw'], np.diff(index[:, INDEX.index('image_raw')])),
            'extra': Texts(column['text.image_extra'], column['image.extra']),
        }
        self._superseded = Texts(column['text.superseded'], column['length.superseded'])
        self._ids = {name: id_values(container, name) for name in ('image', 'category')}
        self._annotation_ids = Texts(column['text.annotation_ids'], column['length.annotation_ids'])
        counts, sizes, codes = (column[f'annotation.{name}'] for name in ('polygons', 'coords', 'code'))
        self._polygons = Offsets(counts.size, counts.__getitem__)
        self._coordinates = []
        for width, name in enumerate(('u16', 'i32', 'f64')):
            offsets = Offsets(sizes.size, lambda rows, width=width: sizes[rows] * (codes[rows] >> 3 == width))
            if sizes.size and offsets.total != column[f'text.{name}'].size:
                raise StoreError(f'{container.path}: coordinates and their lengths differ. Delete it')
            self._coordinates.append((column[f'text.{name}'], offsets))

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
            'id': json.loads(self._annotation_ids[key]) if coded & 1 else key,
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
        lengths = column['text.polygons'][slice(*self._polygons[i])].tolist()
        one = slice(i, i + 1)
        code, size = column['annotation.code'][one], column['annotation.coords'][one]
        parts = tuple(numbers[slice(*offsets[i])] for numbers, offsets in self._coordinates)
        values = decode_coordinates(code, column['annotation.base'][one], size, parts).tolist()
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
            self._image_texts['name'][group],
            self._image_texts['extra'][group],
        )

    def image_key(self, group: int) -> Any:
        """The id of the ``group``-th image: an equal one of another type (1.0 for 1) may stand in its record."""
        row = self._columns['index'][group]
        return self._ids['image'][int(row[_ID])] if int(row[_TRAITS]) & 32 else int(row[_ID])

    def images(self) -> Iterator[Dict[str, Any]]:
        """All image records, in the order of the file."""
        for superseded, i in self.image_places():
            yield self.superseded(i) if superseded else self.image(i)

    def image_places(self) -> List[Tuple[bool, int]]:
        """For each image record, in the order of the file, whether it is a superseded one, and its number as such."""
        places = [
            (position, superseded, i)
            for superseded, name in ((True, 'superseded.position'), (False, 'image.position'))
            for i, position in enumerate(self._columns[name].tolist())
        ]
        return [place[1:] for place in sorted(places)]

    def superseded(self, i: int) -> Dict[str, Any]:
        """The ``i``-th image record whose id comes again later in the file."""
        return json.loads(self._superseded[i])

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
