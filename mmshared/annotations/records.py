"""The records of a store as they were in the JSON: every key and value, in the order of the file."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Tuple, Union

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
    POLYGONS,
    RUN_LENGTH,
    Trait,
    image_record,
)
from .ragged import BLOCK, Offsets, Texts, gather

#: Records in the order of the file that are made together.
_MANY = 1 << 18
#: Bits of ``annotation.coded``: the id, or the image's id, is a number in a table of texts.
CODED_ID, CODED_IMAGE = 1, 2
_ID, _HEIGHT, _WIDTH, _TRAITS = (INDEX.index(name) for name in ('id', 'height', 'width', 'traits'))


def id_values(container: Container, name: str) -> List[Any]:
    """Values of the coded ids of ``name`` ('image', 'annotation' or 'category'), by code."""
    columns = container.columns
    texts = Texts(columns[f'text.{name}_ids'], columns[f'length.{name}_ids'])
    return [json.loads(texts[i]) for i in range(len(texts))]


def decimals(container: Container, field: str, rows: Union[slice, np.ndarray] = slice(None)) -> np.ndarray:
    """``bbox`` (N, 4) or ``area`` (N,) of these annotations in pixels, float64; 0 for a record that is kept as text."""
    scale = container.attributes['scales'][field]
    values = container.columns[f'annotation.{field}'][rows].astype(np.float64)
    return values / scale if scale else values


class Records:
    """Record by record access to a store. Opening it reads the lengths of all records; it keeps a few bytes an image.

    Args:
        container: the store's file.
    """

    def __init__(self, container: Container) -> None:
        self._container, self._columns = container, container.columns
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
            'extra': Texts(column['text.image_extra'], np.diff(index[:, INDEX.index('image_extra')])),
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
        return self.at(np.array([i]))[0]

    def at(self, rows: np.ndarray) -> List[Dict[str, Any]]:
        """The annotation records at stored positions ``rows`` (int64, shape (N,)). It is fastest on neighbours."""
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind='stable')
            records = np.empty(rows.size, object)
            records[order] = self.at(rows[order])
            return records.tolist()
        blocks = np.split(rows, np.flatnonzero(np.diff(rows // BLOCK)) + 1)
        return [record for block in blocks if block.size for record in self._decode(block)]

    def _decode(self, rows: np.ndarray) -> List[Dict[str, Any]]:
        """The records at ``rows``, which ascend and lie in one block."""
        column = {
            name: self._columns[f'annotation.{name}'][rows] for name in ('id', 'category', 'coded', 'flags', 'kind')
        }
        types = self._columns['annotation.types'][rows].tolist()
        texts = {name: texts.at(rows) for name, texts in self._texts.items()}
        polygons, records = self._outlines(rows, types, texts['bits']), []
        for i, (key, image_id, coded, category, box, area, flags, kind) in enumerate(
            zip(
                column['id'].tolist(),
                self._image_ids(rows, column['coded']),
                column['coded'].tolist(),
                column['category'].tolist(),
                decimals(self._container, 'bbox', rows).tolist(),
                decimals(self._container, 'area', rows).tolist(),
                column['flags'].tolist(),
                column['kind'].tolist(),
            )
        ):
            if texts['raw'][i]:
                records.append(json.loads(texts['raw'][i]))
                continue
            record = {
                'id': json.loads(self._annotation_ids[key]) if coded & CODED_ID else key,
                'image_id': image_id,
                'category_id': self._ids['category'][category],
                'bbox': [int(v) if types[i] >> k & 1 else v for k, v in enumerate(box)] if types[i] & 15 else box,
                'area': int(area) if types[i] & AREA_INT else area,
            }
            if flags & 7:
                record['iscrowd'] = FLAG_FORMS[flags & 7]
            if flags >> 3 & 7:
                record['ignore'] = FLAG_FORMS[flags >> 3 & 7]
            if kind != MISSING:
                record['segmentation'] = (
                    polygons[i] if kind == POLYGONS else json.loads(texts['rle'][i]) if kind == RUN_LENGTH else None
                )
            if texts['extra'][i]:
                record.update(json.loads(texts['extra'][i]))
            records.append(record)
        return records

    def _outlines(self, rows: np.ndarray, types: List[int], bits: List[bytes]) -> List[List[List[Any]]]:
        """The polygons at ``rows``: lists of x, y, x, y, ... in pixels; none for other kinds of segmentation."""
        code, base, sizes = (self._columns[f'annotation.{name}'][rows] for name in ('code', 'base', 'coords'))
        starts, stops = self._polygons.of(rows)
        lengths = gather(self._columns['text.polygons'], starts, stops).tolist()
        parts = tuple(gather(numbers, *offsets.of(rows)) for numbers, offsets in self._coordinates)
        values, first, start = decode_coordinates(code, base, sizes, parts).tolist(), 0, 0
        outlines = []
        for i, (count, size) in enumerate(zip((stops - starts).tolist(), sizes.tolist())):
            mine = values[start : start + size]
            if types[i] & (COORDS_INT | COORDS_MIXED):
                mine = as_written(mine, types[i], bits[i])
            polygons, begin = [], 0
            for length in lengths[first : first + count]:
                polygons.append(mine[begin : begin + length])
                begin += length
            outlines.append(polygons)
            first, start = first + count, start + size
        return outlines

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
        order = np.argsort(self._columns['annotation.position'], kind='stable')
        for start in range(0, order.size, _MANY):
            yield from self.at(order[start : start + _MANY])

    def _image_ids(self, rows: np.ndarray, coded: np.ndarray) -> List[Any]:
        ids = image_keys(self._columns, self._starts, rows).tolist()
        for i in np.flatnonzero(coded & CODED_IMAGE).tolist():
            ids[i] = self._ids['image'][ids[i]]
        return ids


def image_keys(columns: Dict[str, np.ndarray], starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The keys of the images of the annotations at ``rows``.

    Args:
        columns: of the store.
        starts: int, shape (I + 1,), contiguous: where each image's annotations begin.
        rows: int64, shape (N,).
    """
    orphans = rows - int(starts[-1])
    keys, known = np.empty(rows.size, np.int64), orphans < 0
    keys[known] = columns['index'][np.searchsorted(starts, rows[known], 'right') - 1, _ID]
    keys[~known] = columns['orphan.image'][orphans[~known]]
    return keys


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
