"""What the columns of a store are called and mean: the agreement between writer and reader.

====================  =============================================================================================
``annotation.*``      a row an annotation, grouped by image; those of unknown images at the end
``orphan.*``          further values of those at the end
``image.*``           a row a distinct image id, in order of first appearance
``superseded.*``      image records whose id comes again later in the file
``index``             a row an image, and one more: where its data begin in every other column
``text.*``            texts and numbers of varying length, one after the other; their lengths are in the rows
``top.*``             the other members of the file's object, as JSON
====================  =============================================================================================
"""

from __future__ import annotations

import json
from enum import IntFlag
from typing import Any, Dict, Optional, Tuple

import numpy as np
from msgspec import UNSET

#: Columns of ``index``: offsets in elements of the column of that name, then plain values.
INDEX = (
    'annotation',
    'polygons',
    'u16',
    'i32',
    'f64',
    'bits',
    'rle',
    'raw',
    'name',
    'image_raw',
    'image_extra',
    'id',
    'height',
    'width',
    'traits',
)
#: Columns of varying length per annotation, and their dtypes.
RAGGED: Dict[str, np.dtype] = {
    'polygons': np.dtype('<u4'),
    'u16': np.dtype('<u2'),
    'i32': np.dtype('<i4'),
    'f64': np.dtype('<f8'),
    'bits': np.dtype('u1'),
    'rle': np.dtype('u1'),
    'extra': np.dtype('u1'),
    'raw': np.dtype('u1'),
}

#: Offsets of the index, and the column each points into ('annotation': rows of ``annotation.*``).
OFFSETS: Dict[str, str] = {
    'annotation': '',
    **{name: f'text.{name}' for name in INDEX[1:8]},
    'name': 'text.image_name',
    'image_raw': 'text.image_raw',
    'image_extra': 'text.image_extra',
}
#: Columns that every store has.
COLUMNS = (
    'index',
    'orphan.image',
    'image.position',
    'superseded.position',
    'superseded.group',
    'text.superseded',
    'length.superseded',
    *(
        f'annotation.{name}'
        for name in (
            'id',
            'category',
            'base',
            'polygons',
            'coords',
            'rle',
            'extra',
            'raw',
            'bits',
            'code',
            'types',
            'kind',
            'coded',
            'position',
            'bbox',
            'area',
            'flags',
        )
    ),
    *(f'text.{name}' for name in RAGGED),
    *filter(None, OFFSETS.values()),
    *(f'{part}.{name}_ids' for part in ('text', 'length') for name in ('image', 'annotation', 'category')),
)


#: The fields of an image's record that may say where the image lies: that of COCO, and that of LVIS v1.
PATH_FIELDS = ('file_name', 'coco_url')
#: Kinds of ``segmentation``.
MISSING, POLYGONS, RUN_LENGTH, NULL = range(4)
#: How ``iscrowd`` and ``ignore`` were written; the row's flags hold ``iscrowd``'s form + 8 * that of ``ignore``.
FLAG_FORMS = (UNSET, 0, 1, False, True, None)
#: Further bits of the row's flags.
KEPT, ODD = 64, 128
#: Bits of the row's ``types``: the four numbers of the box, the area, all coordinates, or some, are integers.
AREA_INT, COORDS_INT, COORDS_MIXED = 16, 32, 64


class Trait(IntFlag):
    """What an image or one of its annotations has, so that the usual case is one test. Bits 8-10: the scale's code."""

    ODD = 1  #: a record kept as text
    INTEGERS = 2  #: a number written as an integer
    VARIED = 4  #: coordinates not all in two bytes with one scale
    NO_POLYGONS = 8  #: a segmentation that is not a list with at least one polygon
    DROPPED = 16  #: an annotation that mmdet does not keep, whatever the categories
    CODED = 32  #: an image id that is not an integer
    BASED = 64  #: two-byte coordinates that are offsets from a base
    NAMELESS = 128  #: an image record without a ``file_name``


def image_record(key: Any, height: int, width: int, name: Optional[bytes], extra: bytes) -> Dict[str, Any]:
    """The image record as in the JSON, of a plain one's columns; ``name`` is None where it has no ``file_name``."""
    record = {'id': key, 'height': height, 'width': width}
    if name is not None:
        record['file_name'] = name.decode()
    if extra:
        record.update(json.loads(extra))
    return record


def json_list(texts: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Texts as one uint8 column and the length of each (int64)."""
    return np.frombuffer(b''.join(texts), np.uint8), np.array([len(text) for text in texts], np.int64)
