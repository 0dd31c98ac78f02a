"""Who meets whom: objects and detections of one category, image by image, in pycocotools' order.

Evaluation never looks across categories, so one category at a time is enough to hold as Python objects. And within one,
most images of a data set with many categories have no object of it. Their detections are all false: such images, as
long as together they have no more detections than the smallest of ``max_dets``, give the same numbers evaluated as one
image, as do all images without detections. (Detections are compared across images by score only, and in the order of
the images where scores are equal; both stay.)
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

import numpy as np

from mmshared.annotations.errors import shorten

from .collected import Collected
from .ground_truth import GroundTruth

RECORDS = 100_000
"""Records at a time that are Python objects."""


class Pairs(NamedTuple):
    """Objects and detections that can meet, in units (images, or images taken together) in increasing order.

    Attributes:
        objects: int64, shape (G,): rows of the ground truth.
        object_unit: int64, shape (G,).
        detections: int64, shape (D,): rows of the detections.
        detection_unit: int64, shape (D,).
    """

    objects: np.ndarray
    object_unit: np.ndarray
    detections: np.ndarray
    detection_unit: np.ndarray

    def __len__(self) -> int:
        return self.objects.size + self.detections.size

    def pieces(self) -> Iterator[Pairs]:
        """Consecutive units with about :data:`RECORDS` records together, at least one unit."""
        units = max(self.object_unit[-1:].max(initial=-1), self.detection_unit[-1:].max(initial=-1)) + 1
        counts = np.bincount(self.object_unit, minlength=units) + np.bincount(self.detection_unit, minlength=units)
        piece = np.maximum(np.cumsum(counts) - 1, 0) // RECORDS
        cuts = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), units]
        for start, stop in zip(cuts[:-1], cuts[1:]):
            mine = slice(*np.searchsorted(self.object_unit, [start, stop]))
            found = slice(*np.searchsorted(self.detection_unit, [start, stop]))
            yield Pairs(self.objects[mine], self.object_unit[mine], self.detections[found], self.detection_unit[found])


class Pairing:
    """Sorts objects and detections by category and image, once for all metrics.

    Args:
        truth: what there is to find.
        found: what was found.
        cat_ids: the category of each label.
        img_ids: the images to evaluate.

    Attributes:
        categories: the different ones of ``cat_ids``, in the order in which pycocotools has them.

    Raises:
        AssertionError: there are detections of an image that the ground truth does not have.
        IndexError: a label has no category.
    """

    def __init__(self, truth: GroundTruth, found: Collected, cat_ids: Sequence[Any], img_ids: Sequence[Any]) -> None:
        self._cat_ids = list(cat_ids)
        self.categories: List[Any] = np.unique(self._cat_ids).tolist()
        self._number = {key: i for i, key in enumerate(self.categories)}
        _check_images(truth, found)
        images = {key: i for i, key in enumerate(np.unique(img_ids).tolist())}
        self._place_detections(found, images)
        self._place_objects(truth, images)

    def _place_detections(self, found: Collected, images: Dict[Any, int]) -> None:
        image = np.array([images.get(key, -1) for key in found.ids], np.int64)[found.image_rows]
        labels = check_labels(found, self._cat_ids)
        # Categories that np.unique has made something else of are never looked up by pycocotools either.
        numbers = np.array([self._number.get(key, -1) for key in self._cat_ids], np.int64)
        category = numbers[labels] if labels.size else np.zeros(0, np.int64)
        rows = np.flatnonzero((image >= 0) & (category >= 0))
        self._detections = _Sorted(rows, image[rows], category[rows], len(self.categories))

    def _place_objects(self, truth: GroundTruth, images: Dict[Any, int]) -> None:
        objects = truth.objects
        image_of = np.array([*(images.get(key, -1) for key in truth.image_ids), -1], np.int64)
        category_of = np.array([*(self._number.get(key, -1) for key in truth.category_ids), -1], np.int64)
        image, category = image_of[objects.image], category_of[objects.category]
        listed = np.flatnonzero(image >= 0)
        listed = listed[np.lexsort((objects.position[listed], image[listed]))]
        resolved = objects.resolved[listed]

        def placed(keep: np.ndarray) -> _Sorted:
            rows = resolved[keep & (image[resolved] >= 0) & (category[resolved] >= 0)]
            return _Sorted(rows, image[rows], category[rows], len(self.categories))

        self._objects = placed(category[listed] >= 0)
        # Without categories pycocotools does not ask for those of the annotation whose id it looks up.
        same = (resolved == listed).all()
        self._any_objects = self._objects if same else placed(np.ones(listed.size, bool))

    def by_category(self, max_dets: Sequence[int]) -> Iterator[Pairs]:
        """The pairs of each of :attr:`categories`."""
        for category in range(len(self.categories)):
            yield _paired(*self._objects.of(category), *self._detections.of(category), min(max_dets))

    def regardless(self, max_dets: Sequence[int]) -> Pairs:
        """All pairs, whatever the categories."""
        order = [self._number[key] for key in self._cat_ids if key in self._number]
        return _paired(*self._any_objects.of_all(order), *self._detections.of_all(order), min(max_dets))


class _Sorted:
    """Rows by category, then image; in the order given where these are equal."""

    def __init__(self, rows: np.ndarray, image: np.ndarray, category: np.ndarray, categories: int) -> None:
        order = np.lexsort((image, category))
        self._rows, self._image = rows[order], image[order]
        self._ends = np.searchsorted(category[order], np.arange(categories + 1))

    def of(self, category: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and images of one."""
        mine = slice(self._ends[category], self._ends[category + 1])
        return self._rows[mine], self._image[mine]

    def of_all(self, order: List[int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows and images of these categories by image; in one image, category after category."""
        nothing = np.zeros(0, np.int64)
        rows = np.concatenate([nothing, *(self.of(category)[0] for category in order)])
        image = np.concatenate([nothing, *(self.of(category)[1] for category in order)])
        by_image = np.argsort(image, kind='stable')
        return rows[by_image], image[by_image]


def _paired(
    objects: np.ndarray, object_image: np.ndarray, detections: np.ndarray, detection_image: np.ndarray, limit: int
) -> Pairs:
    images, counts = np.unique(detection_image, return_counts=True)
    has_objects = np.isin(images, object_image)
    unit = _units(counts.tolist(), has_objects.tolist(), limit)
    last = unit[-1] + 1 if unit else 0  # of all images without detections
    unit_of = np.append(np.array(unit, np.int64), last)
    at = np.minimum(np.searchsorted(images, object_image), max(images.size - 1, 0))
    known = images[at] == object_image if images.size else np.zeros(object_image.size, bool)
    object_unit = np.where(known, unit_of[at], last)
    order = np.argsort(object_unit, kind='stable')
    return Pairs(
        objects[order],
        object_unit[order],
        detections,
        np.repeat(unit_of[:-1], counts),
    )


def _units(counts: List[int], alone: List[bool], limit: int) -> List[int]:
    """The unit of each image with detections: consecutive ones without objects share one up to ``limit``."""
    units, unit, room = [], -1, 0
    for count, is_alone in zip(counts, alone):
        if is_alone or count > room:
            unit += 1
            room = 0 if is_alone else limit
        room = max(room - count, 0)
        units.append(unit)
    return units


def _check_images(truth: GroundTruth, found: Collected) -> None:
    known = set(truth.image_ids)
    unknown = [i for i, key in enumerate(found.ids) if found.counts[i] and key not in known]
    if unknown:
        examples = ', '.join(shorten(found.ids[i], 40) for i in unknown[:3])
        raise AssertionError(
            f'Results do not correspond to current coco set: there are detections of {len(unknown)} images that '
            f'{truth.source} does not have, such as {examples} (rank {unknown[0] % found.ranks}). Is it the annotation '
            'file of the dataset that was predicted?'
        )


def check_labels(found: Collected, cat_ids: Sequence[Any]) -> np.ndarray:
    """The labels as int64, as numbers of ``cat_ids``; -1 is the last, as stock has it.

    Raises:
        IndexError: a label has no category.
    """
    labels = found.labels.astype(np.int64)
    wrong = np.flatnonzero((labels >= len(cat_ids)) | (labels < -len(cat_ids)))
    if wrong.size:
        image = int(found.image_rows[wrong[0]])
        raise IndexError(
            f'label {labels[wrong[0]]} of image {shorten(found.ids[image], 40)} (rank {image % found.ranks}) is out of '
            f'range: only {len(cat_ids)} of the classes are among the categories of the ground truth'
        )
    return labels
