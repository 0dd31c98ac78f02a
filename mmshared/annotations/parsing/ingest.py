"""Decoded records -> rows and texts on scratch files, in the order of the JSON file.

Everything here is per piece of the file, so that memory does not depend on its size. A record is *plain* when its
values fit the columns; any other is *odd*: its whole text is kept, and its row holds only what groups it.
"""

from __future__ import annotations

import json
from array import array
from itertools import chain, compress, repeat
from operator import is_, not_
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Sequence, Tuple

import msgspec
import numpy as np
from msgspec import UNSET

from ..columns import CoordinateEncoder
from ..errors import AnnotationFileError, shorten
from ..layout import (
    AREA_INT,
    COORDS_INT,
    COORDS_MIXED,
    FLAG_FORMS,
    MISSING,
    NULL,
    ODD,
    PATH_FIELDS,
    POLYGONS,
    RUN_LENGTH,
)
from .ids import CodeTable, IdTable
from .numbers import MARK, MAX_INTEGER, Lists, NotPlain, Numbers, Scalars
from .ranges import DecimalRange
from .rows import ANNOTATION_ROW, IMAGE_ROW
from .schema import ANNOTATION, IMAGE, Schema, object_text
from .spool import Spool
from .stream import Odd

_BLOCK = 1 << 13


class _Ingest:
    """What both tables share: odd records, extras, errors."""

    row: np.dtype
    table: str
    texts: Tuple[str, ...]

    def __init__(self, path: str, schema: Schema, scratch: Callable[[], BinaryIO], ids: IdTable) -> None:
        self.path, self.schema, self.ids, self.count = path, schema, ids, 0
        self.rows = Spool(scratch())
        self.spools: Dict[str, Spool] = {name: Spool(scratch()) for name in self.texts}

    def add(self, elements: List[Any]) -> None:
        """Takes a list of structs of :attr:`schema` and :class:`~.stream.Odd`."""
        odd, plain = {}, elements
        if Odd in set(map(type, elements)):
            odd = {i: e for i, e in enumerate(elements) if type(e) is Odd}
            plain = [e for e in elements if type(e) is not Odd]
        try:
            columns = self._columns(plain)
        except NotPlain:
            for i, element in enumerate(elements):
                if i not in odd and not self._is_plain(element):
                    text = msgspec.json.encode(element)
                    odd[i] = Odd(text, json.loads(text))
            plain = [e for i, e in enumerate(elements) if i not in odd]
            columns = self._columns(plain)
        if odd:
            columns = self._merge(columns, odd, len(elements))
        self.rows.write(columns.view(np.uint8))
        self.count += len(elements)

    def state(self) -> Dict[str, Any]:
        """All that is known of the records taken, but what is on the scratch files; can be written as JSON."""
        spools = {'rows': self.rows, **self.spools}
        for spool in spools.values():
            spool.file.flush()
        return {'count': self.count, 'sizes': {n: s.size for n, s in spools.items()}, 'ids': self.ids.values}

    def restore(self, state: Dict[str, Any]) -> None:
        """Makes an empty table the one that has this :meth:`state`, and wrote the scratch files."""
        self.count = state['count']
        for name, spool in {'rows': self.rows, **self.spools}.items():
            spool.size = state['sizes'][name]
        self.ids.encode(state['ids'])

    def merge(self, other: _Ingest) -> None:
        """Takes all records of ``other``, a table of the same kind, as if they had been added here; empties it."""
        rows = np.frombuffer(other.rows.map(), self.row)
        recode = self._recoding(other)
        for start in range(0, rows.size, _BLOCK):
            block = rows[start : start + _BLOCK].copy()
            recode(block)
            self.rows.write(block.view(np.uint8))
        other.rows.file.close()
        for name, spool in self.spools.items():
            spool.append(other.spools[name])
        self.count += other.count

    def error(self, position: int, value: Any, problem: str, field: Optional[str] = None) -> AnnotationFileError:
        """The error about the record at ``position`` of this table."""
        record = f'{self.table}[{position}]'
        if isinstance(value, dict) and 'id' in value:
            record += f' (id {shorten(value["id"], 40)})'
        return AnnotationFileError(self.path, problem, record, field)

    def _merge(self, columns: np.ndarray, odd: Dict[int, Odd], size: int) -> np.ndarray:
        merged = np.zeros(size, self.row)
        is_plain = np.ones(size, bool)
        is_plain[list(odd)] = False
        merged[is_plain] = columns
        for i, element in sorted(odd.items()):
            position = self.count + i
            if not isinstance(element.value, dict):
                raise self.error(position, None, f'is {shorten(element.value)}, should be an object')
            self._odd_row(merged[i : i + 1], position, element.value)
            merged['raw'][i] = len(element.text)
            self.spools['raw'].write(element.text)
        return merged

    def _key(self, position: int, value: Dict[str, Any], field: str) -> Any:
        """``value[field]``, which has to serve as a key."""
        if field not in value:
            raise self.error(position, value, 'is missing', field)
        try:
            hash(value[field])
        except TypeError:
            raise self.error(position, value, f'is {shorten(value[field])}, cannot serve as a key', field) from None
        return value[field]

    def _extras(self, columns: np.ndarray, records: List[Any]) -> None:
        texts, some = self.schema.extra_text(records)
        if some:
            columns['extra'] = [len(text) for text in texts]
            self.spools['extra'].write(b''.join(texts))

    def _recoding(self, other: Any) -> Callable[[np.ndarray], None]:
        """What turns the codes in rows of ``other`` into those that the same values have here."""
        ids, _ = self.ids.encode(other.ids.values)

        def recode(rows: np.ndarray) -> None:
            _replace(rows['id'], rows['coded'] & 1 != 0, ids)

        return recode

    def _columns(self, records: List[Any]) -> np.ndarray:
        raise NotImplementedError

    def _is_plain(self, record: Any) -> bool:
        raise NotImplementedError

    def _odd_row(self, row: np.ndarray, position: int, value: Dict[str, Any]) -> None:
        raise NotImplementedError


class ImageIngest(_Ingest):
    """The ``images`` table."""

    row, table, texts = IMAGE_ROW, 'images', ('name', 'extra', 'raw')

    def __init__(self, path: str, scratch: Callable[[], BinaryIO], ids: IdTable) -> None:
        super().__init__(path, Schema(IMAGE), scratch, ids)

    def _columns(self, records: List[Any]) -> np.ndarray:
        columns = np.zeros(len(records), self.row)
        columns['id'], coded = self.ids.encode([r.id for r in records])
        columns['coded'] = 0 if coded is None else coded
        columns['height'] = [r.height for r in records]
        columns['width'] = [r.width for r in records]
        for bit, field in enumerate(PATH_FIELDS):
            are_texts = [_is_text(value) for value in self.schema.values(records, field)]
            columns['paths'] |= np.array(are_texts, np.uint8) << bit
        names = [b'' if r.file_name is UNSET else r.file_name.encode() for r in records]
        columns['name'] = [len(name) for name in names]
        self.spools['name'].write(b''.join(names))
        self._extras(columns, records)
        return columns

    def _odd_row(self, row: np.ndarray, position: int, value: Dict[str, Any]) -> None:
        row['id'], coded = self.ids.encode([self._key(position, value, 'id')])
        row['coded'] = 0 if coded is None else coded
        row['paths'] = sum(isinstance(value.get(field), str) << bit for bit, field in enumerate(PATH_FIELDS))


class _Segmentations:
    """The segmentations of some records.

    Attributes:
        texts: all polygons.
        counts: int64, per record: how many polygons it has.
        others: position and value of each segmentation that is no list of polygons.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        is_list = [*map(is_, map(type, values), repeat(list))]
        lists = values if all(is_list) else [*compress(values, is_list)]
        self.texts = Lists([*chain.from_iterable(lists)])
        self.counts = np.frombuffer(array('q', map(len, lists)), np.int64)
        at = [*compress(range(len(values)), map(not_, is_list))]
        self.others = [(i, values[i]) for i in at]
        if at:
            self.counts = np.insert(self.counts, np.array(at) - np.arange(len(at)), 0)


class AnnotationIngest(_Ingest):
    """The ``annotations`` table.

    Attributes:
        categories: codes of the category ids.
        bbox, area: what it takes to store these columns as scaled integers.
        bad_category: error about the first record whose category cannot be looked up, None if all can.
    """

    row, table = ANNOTATION_ROW, 'annotations'
    texts = ('polygons', 'u16', 'i32', 'f64', 'bits', 'rle', 'extra', 'raw')

    def __init__(self, path: str, scratch: Callable[[], BinaryIO], image_ids: IdTable) -> None:
        super().__init__(path, Schema(ANNOTATION), scratch, IdTable())
        self.image_ids, self.categories = image_ids, CodeTable()
        self.bbox, self.area = DecimalRange(), DecimalRange()
        self.bad_category: Optional[AnnotationFileError] = None
        self._encoder = CoordinateEncoder()

    def _columns(self, records: List[Any]) -> np.ndarray:
        columns = np.zeros(len(records), self.row)
        if not records:
            return columns
        # All that touches the records' objects comes first, while the processor's cache still holds them.
        areas, boxes = Scalars([r.area for r in records]), Lists([r.bbox for r in records])
        outlines = _Segmentations([r.segmentation for r in records])
        ids, image_ids = [r.id for r in records], [r.image_id for r in records]
        category_ids = [r.category_id for r in records]
        flags = self._flags(records)

        area, (box, lengths), coordinates = areas.parse(), boxes.parse(), outlines.texts.parse()
        if (lengths != 4).any():
            raise NotPlain('a box without four numbers')
        # Nothing is refused from here on, so what is written now stays.
        columns['flags'], columns['area'], columns['bbox'] = flags, area.values, box.values.reshape(-1, 4)
        self.area.add(area.values)
        self.bbox.add(box.values)
        if box.is_int is not None:
            columns['types'] |= (box.is_int.reshape(-1, 4) @ np.array([1, 2, 4, 8])).astype(np.uint8)
        if area.is_int is not None:
            columns['types'] |= area.is_int.astype(np.uint8) * np.uint8(AREA_INT)
        self._segmentations(columns, outlines, *coordinates)
        columns['id'], coded = self.ids.encode(ids)
        columns['image'], image_coded = self.image_ids.encode(image_ids)
        columns['coded'] = (0 if coded is None else coded) + (0 if image_coded is None else 2 * image_coded)
        columns['category'] = self.categories.encode(category_ids)
        self._extras(columns, records)
        return columns

    def state(self) -> Dict[str, Any]:
        """See the parent."""
        return {
            **super().state(),
            'image_ids': self.image_ids.values,
            'categories': self.categories.values,
            'bbox': self.bbox.state(),
            'area': self.area.state(),
        }

    def restore(self, state: Dict[str, Any]) -> None:
        """See the parent."""
        super().restore(state)
        self.image_ids.encode(state['image_ids'])
        self.categories.encode(state['categories'])
        self.bbox.restore(state['bbox'])
        self.area.restore(state['area'])

    def merge(self, other: AnnotationIngest) -> None:
        """See the parent."""
        super().merge(other)
        self.bbox.merge(other.bbox)
        self.area.merge(other.area)

    def _recoding(self, other: AnnotationIngest) -> Callable[[np.ndarray], None]:
        recode_ids = super()._recoding(other)
        images, _ = self.image_ids.encode(other.image_ids.values)
        categories = self.categories.encode(other.categories.values)

        def recode(rows: np.ndarray) -> None:
            recode_ids(rows)
            _replace(rows['image'], rows['coded'] & 2 != 0, images)
            _replace(rows['category'], rows['category'] >= 0, categories)

        return recode

    @staticmethod
    def _flags(records: List[Any]) -> np.ndarray:
        forms = np.zeros(len(records), np.uint8)
        for shift, values in ((0, [r.iscrowd for r in records]), (3, [r.ignore for r in records])):
            kinds = set(map(type, values))
            if kinds == {int}:
                forms |= _small_flags(values) + np.uint8(1) << shift
            elif kinds != {type(UNSET)}:
                forms |= np.array([_flag_form(value) for value in values], np.uint8) << shift
        return forms

    def _segmentations(
        self, columns: np.ndarray, outlines: _Segmentations, numbers: Numbers, lengths: np.ndarray
    ) -> None:
        if lengths.size:
            self._coordinates(columns, numbers, lengths, outlines.counts)
        columns['polygons'] = outlines.counts
        columns['kind'] = POLYGONS
        for i, value in outlines.others:
            columns['kind'][i] = RUN_LENGTH if type(value) is dict else MISSING if value is UNSET else NULL
            if type(value) is dict:
                text = object_text(value.items())
                columns['rle'][i] = len(text)
                self.spools['rle'].write(text)

    def _coordinates(self, columns: np.ndarray, numbers: Any, lengths: np.ndarray, polygons: np.ndarray) -> None:
        last = np.cumsum(polygons)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        first, last = ends[last - polygons], ends[last]
        counts = last - first
        is_int = numbers.is_int
        encoded = self._encoder.encode(numbers.values, counts, is_int is not None and bool(is_int.all()))
        columns['code'], columns['base'], columns['coords'] = encoded.code, encoded.base, counts
        for name, part in zip(('u16', 'i32', 'f64'), encoded.parts):
            self.spools[name].write(part)
        self.spools['polygons'].write(lengths.astype('<u4'))
        if is_int is None:
            return
        integers = np.concatenate([[0], np.cumsum(is_int)])
        integers = integers[last] - integers[first]
        some = integers > 0
        columns['types'] |= (some & (integers == counts)).astype(np.uint8) * np.uint8(COORDS_INT)
        for i in np.flatnonzero(some & (integers < counts)):
            columns['types'][i] |= COORDS_MIXED
            bits = np.packbits(is_int[first[i] : last[i]])
            columns['bits'][i] = bits.size
            self.spools['bits'].write(bits)

    def _is_plain(self, record: Any) -> bool:
        box, area = json.loads(bytes(record.bbox)), json.loads(bytes(record.area))
        polygons = [json.loads(bytes(p)) for p in record.segmentation] if type(record.segmentation) is list else []
        return (
            all(_is_flag(v) for v in (record.iscrowd, record.ignore))
            and _is_number(area)
            and all(isinstance(p, list) and all(map(_is_number, p)) for p in (box, *polygons))
            and len(box) == 4
        )

    def _odd_row(self, row: np.ndarray, position: int, value: Dict[str, Any]) -> None:
        row['flags'] = ODD
        row['id'], coded = self.ids.encode([self._key(position, value, 'id')])
        row['image'], image_coded = self.image_ids.encode([self._key(position, value, 'image_id')])
        row['coded'] = (0 if coded is None else coded) + (0 if image_coded is None else 2 * image_coded)
        try:
            row['category'] = self.categories.encode([self._key(position, value, 'category_id')])
        except AnnotationFileError as error:
            self.bad_category = self.bad_category or error
            row['category'] = -1


def _replace(codes: np.ndarray, where: np.ndarray, new: np.ndarray) -> None:
    """Replaces each code ``c`` at ``where`` by ``new[c]``, in place."""
    if new.size:
        codes[where] = new[codes[where]]


def _small_flags(values: List[int]) -> np.ndarray:
    try:
        flags = np.frombuffer(bytes(values), np.uint8)
    except ValueError:
        flags = None
    if flags is None or flags.max() > 1:
        raise NotPlain('a flag other than 0 and 1')
    return flags


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is msgspec.Raw and bytes(value)[:1] == b'"')


def _flag_form(value: Any) -> int:
    for form, known in enumerate(FLAG_FORMS):
        if type(value) is type(known) and value == known:
            return form
    raise NotPlain('a flag other than 0 and 1')


def _is_flag(value: Any) -> bool:
    return any(type(value) is type(known) and value == known for known in FLAG_FORMS)


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) <= MAX_INTEGER
    return type(value) is float and abs(value) < float('inf') and value != MARK
