"""Annotations by image: which image each belongs to, and the order in which those of one image lie together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .ids import join_keys


class Groups(NamedTuple):
    """The distinct image ids, in order of first appearance, and the annotations of each.

    Attributes:
        first: int64, shape (I,): position in the file of the first image record with each id.
        last: int64, shape (I,): of the last one, which is the one that counts.
        order: int64, shape (A,): positions of the annotations, grouped by image, those of unknown images at the end;
            within a group in order of the file.
        starts: int64, shape (I + 1,): where in ``order`` each image's annotations begin.
        image: int64, shape (A,): the group of each annotation of ``order``; I for unknown images.
        of_record: int64, shape (R,): the group of each image record.
    """

    first: np.ndarray
    last: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    image: np.ndarray
    of_record: np.ndarray

    @property
    def count(self) -> int:
        """How many distinct image ids there are."""
        return self.first.size


def group_by_image(
    images: np.ndarray, images_coded: np.ndarray, annotations: np.ndarray, annotations_coded: np.ndarray
) -> Groups:
    """Groups annotations by the keys (of one :class:`~.ids.IdTable`) of their images.

    Args:
        images, images_coded: key of each image record (int64, shape (R,)), and whether it is coded (bool).
        annotations, annotations_coded: the same of each annotation's image, shape (A,).
    """
    images, annotations = join_keys(images, images_coded, annotations, annotations_coded)
    unique, first, inverse = np.unique(images, return_index=True, return_inverse=True)
    appearance = np.argsort(first, kind='stable')
    group = np.empty_like(appearance)
    group[appearance] = np.arange(unique.size)
    of_record = group[inverse]
    last = np.zeros(unique.size, np.int64)
    np.maximum.at(last, of_record, np.arange(images.size))
    of = _lookup(unique, group, annotations)
    if (of[1:] >= of[:-1]).all():
        order = np.arange(of.size)
    else:
        order = np.argsort(of, kind='stable')
        of = of[order]
    starts = np.searchsorted(of, np.arange(unique.size + 1))
    return Groups(first[appearance], last, order, starts, of, of_record)


def _lookup(unique: np.ndarray, group: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The group of each key, ``unique.size`` where there is none."""
    if not unique.size:
        return np.zeros(keys.size, np.int64)
    low, span = int(unique[0]), int(unique[-1]) - int(unique[0])
    if span < 32 * unique.size + 1024:  # a table beats a search where the ids are dense
        table = np.full(span + 2, unique.size)
        table[unique - low] = group
        inside = (keys >= low) & (keys <= int(unique[-1]))
        return table[np.where(inside, keys - low, span + 1)]
    at = np.minimum(np.searchsorted(unique, keys), unique.size - 1)
    return np.where(unique[at] == keys, group[at], unique.size)
