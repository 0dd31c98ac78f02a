"""The annotations of a store as arrays, some at a time, whether they were stored plain or as text."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import msgspec
import numpy as np

from ..layout import FLAG_FORMS, INDEX, KEPT, MISSING, NULL, POLYGONS, RUN_LENGTH
from ..records import Texts, decimals, id_values
from ..store import AnnotationStore

#: Kinds of ``segmentation``, as :attr:`Block.segmentation` numbers them.
SEGMENTATIONS = ('polygons', 'rle_string', 'rle_list', 'empty', 'null', 'missing', 'other')
POLYGON, RLE_STRING, RLE_LIST, EMPTY, NONE, ABSENT, OTHER = range(len(SEGMENTATIONS))
_BLOCK = 1 << 16
_TRUE = np.array([(*FLAG_FORMS, None, None)[form] in (1, True) for form in range(8)])


class Block(NamedTuple):
    """Some annotations, in stored order (grouped by image, those of unknown images at the end).

    Attributes:
        position: int64, shape (N,): place in the file's ``annotations``.
        image: int64, shape (N,): number of the image in the store; the number of images for an unknown one.
        category: int64, shape (N,): code of the category, -1 for an unusable one.
        box: float64, shape (N, 4): x, y, width, height in pixels; NaN for what is no number.
        area: float64, shape (N,); NaN for what is no number.
        kept: bool, shape (N,): mmdet keeps it in training, if its category is asked for.
        crowd, ignored, no_crowd: bool, shape (N,): ``iscrowd`` or ``ignore`` is true; there is no ``iscrowd``.
        segmentation: uint8, shape (N,): see :data:`SEGMENTATIONS`.
        drawable: bool, shape (N,): of polygons, at least one has three points, as mmdet requires.
        integer_id, integer_image_id: bool, shape (N,): the id is written as an integer of 64 bits.
        zero_id: bool, shape (N,): the id equals 0.
    """

    position: np.ndarray
    image: np.ndarray
    category: np.ndarray
    box: np.ndarray
    area: np.ndarray
    kept: np.ndarray
    crowd: np.ndarray
    ignored: np.ndarray
    no_crowd: np.ndarray
    segmentation: np.ndarray
    drawable: np.ndarray
    integer_id: np.ndarray
    integer_image_id: np.ndarray
    zero_id: np.ndarray


class _RunLength(msgspec.Struct):
    counts: msgspec.Raw
    size: msgspec.Raw


class Blocks:
    """Iterating over it gives the store's annotations as :class:`Block`; takes 8 bytes an annotation and text column.

    Args:
        store: the store.
    """

    def __init__(self, store: AnnotationStore) -> None:
        store.check_lengths()
        self._store, self._column = store, store.container.columns
        column = self._column
        self._texts = {name: Texts(column[f'text.{name}'], column[f'annotation.{name}']) for name in ('rle', 'raw')}
        self._polygon_ends = np.cumsum(column['annotation.polygons'], dtype=np.int64)

    def __iter__(self) -> Iterator[Block]:
        total = self._store.num_annotations
        for start in range(0, total, _BLOCK):
            yield self._block(slice(start, min(start + _BLOCK, total)))

    def id_of(self, row: int) -> Any:
        """The id of the annotation in stored place ``row`` (for people: ``1`` may stand for an equal ``1.0``)."""
        key = int(self._column['annotation.id'][row])
        if not self._column['annotation.coded'][row] & 1:
            return key
        return id_values(self._store.container, 'annotation')[key]

    def _block(self, rows: slice) -> Block:
        column = self._column
        flags, coded = column['annotation.flags'][rows], column['annotation.coded'][rows]
        image = np.searchsorted(column['index'][:, 0], np.arange(rows.start, rows.stop), 'right') - 1
        crowd, ignore = flags & 7, flags >> 3 & 7
        segmentation, drawable = self._segmentations(rows)
        ids = column['annotation.id'][rows]
        block = Block(
            position=column['annotation.position'][rows].astype(np.int64),
            image=image.astype(np.int64),
            category=column['annotation.category'][rows].astype(np.int64),
            box=decimals(self._store.container, 'bbox', rows),
            area=decimals(self._store.container, 'area', rows),
            kept=(flags & KEPT != 0) & (image < self._store.num_images),
            crowd=_TRUE[crowd],
            ignored=_TRUE[ignore],
            no_crowd=crowd == 0,
            segmentation=segmentation,
            drawable=drawable,
            integer_id=coded & 1 == 0,
            integer_image_id=coded & 2 == 0,
            zero_id=(ids == 0) & (coded & 1 == 0),
        )
        for i in np.flatnonzero(column['annotation.raw'][rows]).tolist():
            _fill(block, i, json.loads(self._texts['raw'][rows.start + i]))
        return block

    def _segmentations(self, rows: slice) -> Tuple[np.ndarray, np.ndarray]:
        column = self._column
        kind, counts = column['annotation.kind'][rows], column['annotation.polygons'][rows].astype(np.int64)
        found = np.full(kind.size, OTHER, np.uint8)
        found[kind == MISSING], found[kind == NULL] = ABSENT, NONE
        found[kind == POLYGONS] = np.where(counts[kind == POLYGONS] > 0, POLYGON, EMPTY)
        for i in np.flatnonzero(kind == RUN_LENGTH).tolist():
            found[i] = _run_length_kind(self._texts['rle'][rows.start + i])
        ends = self._polygon_ends[rows]
        first = int(ends[0] - counts[0])
        lengths = column['text.polygons'][first : int(ends[-1])]
        good = np.concatenate([[0], np.cumsum((lengths >= 6) & (lengths % 2 == 0))])
        return found, good[ends - first] > good[ends - counts - first]


def _run_length_kind(text: bytes) -> int:
    try:
        record = msgspec.json.decode(text, type=_RunLength)
    except msgspec.DecodeError:  # not what mmdet takes for an RLE, or JSON that only Python takes
        return _segmentation_kind(json.loads(text))
    return {b'"': RLE_STRING, b'[': RLE_LIST}.get(bytes(record.counts)[:1], OTHER)


def _segmentation_kind(value: Any) -> int:
    if value is None:
        return NONE
    if not value:
        return EMPTY
    if isinstance(value, list):
        return POLYGON
    counts = value.get('counts') if isinstance(value, dict) and value.get('size') is not None else None
    return RLE_STRING if isinstance(counts, str) else RLE_LIST if isinstance(counts, list) else OTHER


def _fill(block: Block, i: int, record: Dict[str, Any]) -> None:
    """Put the values of a record that is kept as text into row ``i`` of ``block``."""
    box = record.get('bbox')
    numbers = [_number(value) for value in box] if isinstance(box, list) else []
    block.box[i] = numbers if len(numbers) == 4 else math.nan
    block.area[i] = _number(record.get('area'))
    block.crowd[i], block.ignored[i] = bool(record.get('iscrowd')), bool(record.get('ignore'))
    block.no_crowd[i] = 'iscrowd' not in record
    segmentation = record.get('segmentation')
    block.segmentation[i] = _segmentation_kind(segmentation) if 'segmentation' in record else ABSENT
    polygons = segmentation if isinstance(segmentation, list) else []
    block.drawable[i] = any(isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0 for p in polygons)
    block.integer_id[i] &= type(record.get('id')) is int
    block.integer_image_id[i] &= type(record.get('image_id')) is int


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:  # an integer beyond all doubles
        return math.inf if value > 0 else -math.inf


def image_sizes(store: AnnotationStore) -> Tuple[np.ndarray, np.ndarray]:
    """Width and height of each image in pixels, float64, shape (I,); NaN for what is no number."""
    column = store.container.columns
    width, height = (column['index'][:-1, INDEX.index(name)].astype(np.float64) for name in ('width', 'height'))
    starts = column['index'][:, INDEX.index('image_raw')]
    for i in np.flatnonzero(np.diff(starts)).tolist():
        record = json.loads(column['text.image_raw'][int(starts[i]) : int(starts[i + 1])].tobytes())
        width[i], height[i] = _number(record.get('width')), _number(record.get('height'))
    return width, height
