"""The :class:`~.layout.Trait` bits of images: the writer notes them, and a check can work them out again."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columns import I32
from .layout import POLYGONS, Trait


def annotation_traits(rows: Any, keep: np.ndarray, odd: np.ndarray) -> np.ndarray:
    """The bits that each of N annotations gives its image.

    Args:
        rows: their columns by name, such as a structured array.
        keep: bool, shape (N,): mmdet keeps it.
        odd: bool, shape (N,): it, or its image, is kept as text.

    Returns:
        integers, shape (N,).
    """
    traits = np.where(odd, int(Trait.ODD), 0)
    traits |= np.where(rows['types'] != 0, int(Trait.INTEGERS), 0)
    traits |= np.where((rows['kind'] != POLYGONS) | (rows['polygons'] == 0), int(Trait.NO_POLYGONS), 0)
    traits |= np.where(keep, 0, int(Trait.DROPPED))
    traits |= np.where(rows['code'] >= I32 * 8, int(Trait.VARIED), 0)
    traits |= np.where(rows['base'] != 0, int(Trait.BASED), 0)
    return traits


def by_image(traits: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The bits of each image: all that its annotations have.

    Args:
        traits: integers, shape (N,), grouped by image.
        starts: integers, shape (I + 1,): where the annotations of each image begin.

    Returns:
        int64, shape (I,).
    """
    found = np.zeros(starts.size - 1, np.int64)
    some = np.flatnonzero(np.diff(starts))
    if some.size:
        found[some] = np.bitwise_or.reduceat(traits, starts[some])
    return found


def scale_traits(coords: np.ndarray, code: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The scale's code for images whose annotations share one, those without polygons aside; else ``VARIED``.

    Args:
        coords, code: columns of the annotations, shape (N,), grouped by image.
        starts: as for :func:`by_image`.

    Returns:
        int64, shape (I,).
    """
    found, has_some = np.zeros(starts.size - 1, np.int64), coords > 0
    code = code[has_some]
    ends = np.concatenate([[0], np.cumsum(has_some)])[starts]
    some = np.flatnonzero(np.diff(ends))
    if some.size:
        first = ends[some]
        low, high = np.minimum.reduceat(code, first), np.maximum.reduceat(code, first)
        found[some] = np.where(low != high, int(Trait.VARIED), (low & 7).astype(np.int64) << 8)
    return found
