"""Which single annotations bite, why, and what to do about it.

The consequences are those of mmdet 3.x (``LoadAnnotations``, ``CocoDataset.parse_data_info``) and of pycocotools'
``COCOeval``, which ``CocoMetric`` uses.
"""

from __future__ import annotations

from enum import Enum
from typing import Callable, NamedTuple, Tuple

import numpy as np

from .blocks import ABSENT, EMPTY, NONE, OTHER, POLYGON, RLE_LIST, RLE_STRING, Block


class Level(str, Enum):
    """What an oddity does: stops a job, changes its results without a word, or is only good to know."""

    ERROR = 'error'
    WARNING = 'warning'
    NOTE = 'note'


class Rule(NamedTuple):
    """One kind of annotation that bites.

    Attributes:
        name: for programs.
        level: what it does.
        title: what the annotations are.
        bites: what happens, and what to do.
        applies: ``applies(block, width, height)``: which annotations of the block; width and height of each one's
            image are float64, shape (N,), NaN for an unknown one.
    """

    name: str
    level: Level
    title: str
    bites: str
    applies: Callable[[Block, np.ndarray, np.ndarray], np.ndarray]


def _not_finite(block: Block, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    return ~(np.isfinite(block.box).all(axis=1) & np.isfinite(block.area))


def _outside(block: Block, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    x, y, w, h = block.box.T
    with np.errstate(invalid='ignore', over='ignore'):
        return ((x >= width) | (y >= height) | (x + w <= 0) | (y + h <= 0)) & (w >= 1) & (h >= 1)


def _small(block: Block, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    with np.errstate(invalid='ignore'):
        return (block.box[:, 2:] < 1).any(axis=1)


def _no_area(block: Block, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    with np.errstate(invalid='ignore'):
        return block.area <= 0


def _is(*kinds: int) -> Callable[[Block, np.ndarray, np.ndarray], np.ndarray]:
    """Annotations that mmdet keeps and whose segmentation is of one of ``kinds``."""
    return lambda block, width, height: block.kept & np.isin(block.segmentation, kinds)


_DROPPED = 'mmdet drops them in training, and CocoMetric still expects them to be found'
RULES: Tuple[Rule, ...] = (
    Rule(
        'no_iscrowd',
        Level.ERROR,
        'annotations without "iscrowd"',
        'pycocotools\' evaluation fails: KeyError "iscrowd". Write "iscrowd": 0',
        lambda block, width, height: block.no_crowd,
    ),
    Rule(
        'no_mask',
        Level.ERROR,
        'annotations that train, without a mask (segmentation missing, null or empty)',
        'LoadAnnotations(with_mask=True) fails: KeyError "mask". Fine for boxes only. Give each a polygon or RLE, or '
        '"ignore": 1, which leaves it out of training',
        _is(ABSENT, NONE, EMPTY),
    ),
    Rule(
        'bad_mask',
        Level.ERROR,
        'annotations whose segmentation is neither polygons nor RLE with "counts" and "size"',
        'LoadAnnotations(with_mask=True) ignores the instance or fails. Write polygons or RLE',
        _is(OTHER),
    ),
    Rule(
        'text_id',
        Level.ERROR,
        'annotation ids that are no 64-bit integers',
        "pycocotools' evaluation fails on ids that are no numbers, and rounds large ones. Number them from 1",
        lambda block, width, height: ~block.integer_id,
    ),
    Rule(
        'not_finite',
        Level.ERROR,
        'boxes or areas that are NaN, infinite or no numbers',
        'the loss becomes NaN, or loading fails. Remove these annotations',
        _not_finite,
    ),
    Rule(
        'zero_id',
        Level.WARNING,
        'annotation id 0',
        "pycocotools' evaluation takes a match with it for none: the AP is lower. Number the annotations from 1",
        lambda block, width, height: block.zero_id,
    ),
    Rule(
        'zero_area',
        Level.WARNING,
        'annotations with "area" of zero or less',
        f'{_DROPPED}. Write the area: that of the mask, or width * height',
        _no_area,
    ),
    Rule(
        'small_box',
        Level.WARNING,
        'boxes less than one pixel wide or high',
        f'{_DROPPED}. Remove them, or check whether coordinates are relative (0 to 1)',
        _small,
    ),
    Rule(
        'outside',
        Level.WARNING,
        'boxes outside their image',
        f'{_DROPPED}. Check the sizes of the images, and that boxes are x, y, width, height',
        _outside,
    ),
    Rule(
        'short_polygon',
        Level.WARNING,
        'masks without a polygon of at least three points (six numbers, an even count)',
        'LoadAnnotations(with_mask=True) ignores the instance: no loss, no gain from it. Write polygons, not boxes',
        lambda block, width, height: block.kept & (block.segmentation == POLYGON) & ~block.drawable,
    ),
    Rule(
        'rle_list',
        Level.WARNING,
        'masks that are RLE with "counts" as a list',
        'slow to load: they are compressed each time, and large. With poly2mask=False they are ignored. Write '
        'pycocotools.mask.frPyObjects(segmentation, height, width), its "counts" decoded to text',
        _is(RLE_LIST),
    ),
    Rule(
        'rle',
        Level.NOTE,
        'masks that are RLE, compressed',
        'with LoadAnnotations(with_mask=True, poly2mask=False) the instances are ignored. Use poly2mask=True',
        _is(RLE_STRING),
    ),
    Rule(
        'text_image_id',
        Level.NOTE,
        'annotations whose "image_id" is no 64-bit integer',
        'CocoMetric takes it, some tools do not. Number the images',
        lambda block, width, height: ~block.integer_image_id,
    ),
)
