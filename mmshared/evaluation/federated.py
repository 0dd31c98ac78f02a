"""LVIS's rules on which detections count, said in terms of COCO's evaluation.

In LVIS an image is annotated for some categories only: those that were found in it, and those that were looked for and
not found (``neg_category_ids``). Detections of other categories do not count. Where a category was not annotated
exhaustively (``not_exhaustive_category_ids``), a detection without a match is no mistake.

COCO's evaluation does the rest: it does not count objects, nor unmatched detections, whose area is outside the range
that is looked at. So what LVIS ignores gets the area -1, which is outside all of them.

Source: "LVIS: A Dataset for Large Vocabulary Instance Segmentation" (Gupta et al., 2019), section 3.3, and lvis 0.5.3.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from mmshared.annotations import AnnotationFileError, AnnotationStore
from mmshared.annotations.errors import shorten

from .collected import Collected
from .ground_truth import CROWD, GroundTruth, StoredTruth
from .pairing import Pairs, check_labels
from .records import RecordSource

MAX_DETECTIONS = 300
"""Detections of an image, whatever their categories: those with the highest scores."""
IGNORED = -1.0
"""The area of what is ignored."""
FREQUENCIES = ('r', 'c', 'f')
"""How often a category occurs: rarely, commonly, frequently."""


class FederatedTruth(StoredTruth):
    """The objects of an LVIS file.

    Args:
        store: the file's store.

    Attributes:
        negative, not_exhaustive: for each image, the ids of these categories.

    Raises:
        AnnotationFileError: the file has no usable categories or images.
    """

    def __init__(self, store: AnnotationStore) -> None:
        super().__init__(store)
        restate(self)

    def check_federation(self) -> None:
        """See that LVIS's own fields are there.

        Raises:
            AnnotationFileError: one is not; names record and field.
        """
        for field in ('neg_category_ids', 'not_exhaustive_category_ids'):
            self.federation(field)
        for record in {category['id']: category for category in self.categories}.values():
            if record.get('frequency') not in FREQUENCIES:
                where = f'the category with id {shorten(record["id"], 40)}'
                raise AnnotationFileError(
                    self.source,
                    f'is {shorten(record.get("frequency"))}, should be one of {FREQUENCIES}',
                    where,
                    'frequency',
                )

    def federation(self, field: str) -> List[List[Any]]:
        """For each image what its record has in ``field``; AnnotationFileError if one has nothing there."""
        records, lists = self._reader(), []
        for number in range(len(self.image_ids)):
            record = records.image(number)
            if not isinstance(record.get(field), list):
                where = f'images[{number}] (id {shorten(record["id"], 40)})'
                problem = f'is {shorten(record[field])}, should be a list' if field in record else 'is missing'
                raise AnnotationFileError(
                    self.source,
                    f'{problem}. Is it an LVIS file? Others are evaluated by SharedCocoMetric',
                    where,
                    field,
                )
            lists.append(record[field])
        return lists


def restate(truth: GroundTruth) -> None:
    """Say what LVIS ignores by areas. It knows no crowds, and leaves out objects without an area."""
    objects = truth.objects
    objects.crowd[:] = 0
    objects.usable |= np.uint8(CROWD)
    objects.image[~((objects.area > 0) & (objects.area < np.inf))] = -1
    objects.area[objects.ignore] = IGNORED
    objects.ignore[:] = False


class Federated(NamedTuple):
    """Detections that count.

    Attributes:
        found: these.
        boxes: float64, shape (N, 4): x, y, width, height in pixels.
        areas: float64, shape (N,): :data:`IGNORED` for those that are no mistake without a match.
    """

    found: Collected
    boxes: np.ndarray
    areas: np.ndarray


def federated(
    truth: FederatedTruth,
    found: Collected,
    cat_ids: Sequence[Any],
    boxes: np.ndarray,
    scores: Optional[np.ndarray] = None,
) -> Federated:
    """Leave out the detections that do not count.

    Args:
        truth: the LVIS file.
        found: all detections.
        cat_ids: the category of each label.
        boxes: float64, shape (N, 4): x, y, width, height in pixels.
        scores: float64, shape (N,): by which the first :data:`MAX_DETECTIONS` of an image are chosen; None: all are.
    """
    labels, image = check_labels(found, cat_ids), found.image_rows
    number_of: Dict[Any, int] = {}
    category = np.array([number_of.setdefault(key, len(number_of)) for key in cat_ids], np.int64)[labels]
    images = {key: i for i, key in enumerate(truth.image_ids)}
    rows = np.array([images.get(key, -1) for key in found.ids], np.int64)[image]
    size = max(len(number_of), 1)
    pair = rows * size + category
    asked = [_present(truth, number_of), _pairs(truth.federation('neg_category_ids'), number_of)]
    areas = boxes[:, 2] * boxes[:, 3]
    counts = (areas > 0) & (areas < np.inf) & (np.isin(pair, np.concatenate(asked)) | (rows < 0))
    if scores is not None:
        counts &= _among_the_first(image, scores)
    forgiven = np.isin(pair, _pairs(truth.federation('not_exhaustive_category_ids'), number_of)) & (rows >= 0)
    return Federated(found.keep(counts), boxes[counts], np.where(forgiven, IGNORED, areas)[counts])


def _present(truth: GroundTruth, number_of: Dict[Any, int]) -> np.ndarray:
    """Pairs of image and category of the objects, as one number each."""
    objects = truth.objects
    numbers = np.array([*(number_of.get(key, -1) for key in truth.category_ids), -1], np.int64)[objects.category]
    rows = objects.resolved[(objects.image >= 0) & (numbers >= 0)]
    rows = rows[(objects.image[rows] >= 0) & (numbers[rows] >= 0)]
    return np.unique(objects.image[rows] * max(len(number_of), 1) + numbers[rows])


def _pairs(lists: List[List[Any]], number_of: Dict[Any, int]) -> np.ndarray:
    size = max(len(number_of), 1)
    return np.array(
        [i * size + number_of[key] for i, keys in enumerate(lists) for key in keys if key in number_of], np.int64
    )


def _among_the_first(image: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether a detection is one of the first of its image by score: bool, shape (N,)."""
    order = np.lexsort((-scores, image))
    starts = np.searchsorted(image[order], image[order])
    first = np.empty(image.size, bool)
    first[order] = np.arange(image.size) - starts < MAX_DETECTIONS
    return first


class FederatedSource(RecordSource):
    """Records whose areas say what is ignored; those of detections are their boxes', as in lvis.

    Args:
        truth: what there is to find.
        counting: the detections that count.
        iou_type: 'bbox' or 'segm'.
    """

    def __init__(self, truth: GroundTruth, counting: Federated, iou_type: str) -> None:
        super().__init__(truth, counting.found, iou_type)
        self._boxes, self._areas = counting.boxes, counting.areas

    def detections(self, pairs: Pairs) -> List[Dict[str, Any]]:
        """See the parent."""
        records = super().detections(pairs)
        for record, area in zip(records, self._areas[pairs.detections].tolist()):
            record['area'] = area
        return records
