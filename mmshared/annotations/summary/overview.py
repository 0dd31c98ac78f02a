"""Counts of what an annotation file holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import numpy as np

from ..errors import AnnotationFileError
from ..records import id_values
from ..store import AnnotationStore
from .blocks import SEGMENTATIONS, Blocks


@dataclass(frozen=True)
class Overview:
    """Counts of what an annotation file holds.

    Attributes:
        images, annotations: distinct image ids; annotation records, those of unknown images included.
        categories: (id, name, annotations of known images) of each category record, in the order of the file.
        per_image: ``min``, ``median``, ``mean``, ``max`` of the annotations of an image; empty without images.
        histogram: (least, most, images): how many images have so many annotations; from 1 on in powers of two.
        segmentation: how many annotations have which kind of it, by name; kinds that do not occur are left out.
        crowd, ignored, kept: annotations with ``iscrowd``, with ``ignore``, and those that mmdet trains on if their
            category is asked for.
    """

    images: int
    annotations: int
    categories: List[Tuple[Any, Any, int]]
    per_image: Dict[str, float]
    histogram: List[Tuple[int, int, int]]
    segmentation: Dict[str, int]
    crowd: int
    ignored: int
    kept: int


def overview(store: AnnotationStore) -> Overview:
    """Count what is in ``store``; reads a few bytes an annotation, and run-length masks whole."""
    kinds, crowd, ignored, kept = np.zeros(len(SEGMENTATIONS), np.int64), 0, 0, 0
    for block in Blocks(store):
        kinds += np.bincount(block.segmentation, minlength=kinds.size)
        crowd, ignored = crowd + int(block.crowd.sum()), ignored + int(block.ignored.sum())
        kept += int(block.kept.sum())
    counts = instances_per_image(store)
    return Overview(
        store.num_images,
        store.num_annotations,
        category_counts(store),
        _statistics(counts),
        _histogram(counts),
        {name: count for name, count in zip(SEGMENTATIONS, kinds.tolist()) if count},
        crowd,
        ignored,
        kept,
    )


def instances_per_image(store: AnnotationStore) -> np.ndarray:
    """How many annotations each image has: int64, shape (I,)."""
    return np.diff(store.container.columns['index'][:, 0].astype(np.int64))


def category_counts(store: AnnotationStore) -> List[Tuple[Any, Any, int]]:
    """(id, name, annotations of known images) of each category; empty if the file has no usable categories."""
    try:
        categories = store.categories
    except AnnotationFileError:
        return []
    columns = store.container.columns
    codes = columns['annotation.category'][: int(columns['index'][-1, 0])].astype(np.int64)
    values = id_values(store.container, 'category')
    counts = dict(zip(values, np.bincount(codes[codes >= 0], minlength=len(values)).tolist()))
    return [(record['id'], record.get('name'), counts.get(record['id'], 0)) for record in categories]


def _statistics(counts: np.ndarray) -> Dict[str, float]:
    if not counts.size:
        return {}
    return {
        'min': int(counts.min()),
        'median': float(np.median(counts)),
        'mean': float(counts.mean()),
        'max': int(counts.max()),
    }


def _histogram(counts: np.ndarray) -> List[Tuple[int, int, int]]:
    if not counts.size:
        return []
    powers = np.zeros(counts.size, np.int64)
    powers[counts > 0] = np.frexp(counts[counts > 0])[1]  # 1 -> 1; 2, 3 -> 2; 4 to 7 -> 3
    images = np.bincount(powers).tolist()
    bins = [(1 << power >> 1, (1 << power) - 1, number) for power, number in enumerate(images)]
    return bins if bins[0][2] else bins[1:]
