"""A category's pairs as the dicts that evaluators read, some at a time."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, NamedTuple

import numpy as np

from mmshared.annotations import AnnotationFileError

from .collected import Collected
from .ground_truth import AREA, BOX, CROWD, GroundTruth
from .pairing import Pairs


class Piece(NamedTuple):
    """Some units of a category.

    Attributes:
        units: their numbers, increasing.
        objects, detections: their records.
    """

    units: List[int]
    objects: List[Dict[str, Any]]
    detections: List[Dict[str, Any]]


class RecordMaker:
    """Makes the records of one category.

    Args:
        source: truth and detections.
        pairs: the category's.
    """

    def __init__(self, source: RecordSource, pairs: Pairs) -> None:
        self._source, self._pairs = source, pairs

    @property
    def are_ordinary(self) -> bool:
        """No number is NaN, no box has a negative side, and every ``iscrowd`` is 0 or 1."""
        return self._source.ordinary_objects[self._pairs.objects].all() and bool(
            self._source.ordinary_detections[self._pairs.detections].all()
        )

    @property
    def have_zero_id(self) -> bool:
        """An object's id is 0."""
        return bool(self._source.truth.objects.zero_id[self._pairs.objects].any())

    def check(self) -> None:
        """Raises AnnotationFileError if an object cannot be evaluated."""
        check_objects(self._source.truth, self._pairs.objects, self._source.iou_type)

    def plan(self) -> Iterator[Pairs]:
        """The pairs in pieces of bounded size."""
        return self._pairs.pieces()

    def pieces(self) -> Iterator[Piece]:
        """The records, a piece at a time."""
        return map(self.make, self.plan())

    def make(self, pairs: Pairs) -> Piece:
        """The records of some pairs."""
        units = np.union1d(pairs.object_unit, pairs.detection_unit).tolist()
        return Piece(units, self._source.objects(pairs), self._source.detections(pairs))


class RecordSource:
    """Truth and detections of one kind of evaluation.

    Args:
        truth: what there is to find.
        found: what was found.
        iou_type: 'bbox' or 'segm'.
    """

    def __init__(self, truth: GroundTruth, found: Collected, iou_type: str) -> None:
        self.truth, self.iou_type, self._found, self._masks = truth, iou_type, found, iou_type == 'segm'
        objects = truth.objects
        self.ordinary_objects = np.isin(objects.crowd, (0, 1)) & ~np.isnan(objects.area)
        scores = found.mask_scores if self._masks else found.scores
        self._scores = scores.astype(np.float64)
        self.ordinary_detections = ~np.isnan(self._scores)
        if not self._masks:
            self._boxes = found.xywh()
            self.ordinary_objects &= _are_ordinary(objects.box)
            self.ordinary_detections &= _are_ordinary(self._boxes)

    def objects(self, pairs: Pairs) -> List[Dict[str, Any]]:
        """The objects' records; ``id`` is the row's number, or 0 where it is 0 in the file."""
        objects, rows = self.truth.objects, pairs.objects
        ids = np.where(objects.zero_id[rows], 0, rows + 1).tolist()
        crowd = objects.crowd[rows]
        flags = (crowd.astype(np.int64) if (crowd == crowd.astype(np.int64)).all() else crowd).tolist()
        areas, units = objects.area[rows].tolist(), pairs.object_unit.tolist()
        if self._masks:
            masks = map(self._rle, rows.tolist(), self.truth.records(rows))
            return [
                {'id': i, 'image_id': u, 'category_id': 1, 'segmentation': m, 'area': a, 'iscrowd': c, 'bbox': _NO_BOX}
                for i, u, m, a, c in zip(ids, units, masks, areas, flags)
            ]
        return [
            {'id': i, 'image_id': u, 'category_id': 1, 'bbox': b, 'area': a, 'iscrowd': c}
            for i, u, b, a, c in zip(ids, units, objects.box[rows].tolist(), areas, flags)
        ]

    def detections(self, pairs: Pairs) -> List[Dict[str, Any]]:
        """The detections' records, with areas as pycocotools' ``loadRes`` computes them."""
        rows = pairs.detections
        ids, units, scores = (rows + 1).tolist(), pairs.detection_unit.tolist(), self._scores[rows].tolist()
        if self._masks:
            from pycocotools import mask as mask_utils

            masks = [json.loads(text) for text in self._found.masks.take(rows).all()]
            areas = [int(mask_utils.area(mask)) for mask in masks]
            return [
                {'id': i, 'image_id': u, 'category_id': 1, 'segmentation': m, 'area': a, 'score': s, **_DETECTION}
                for i, u, m, a, s in zip(ids, units, masks, areas, scores)
            ]
        boxes = self._boxes[rows]
        areas = (boxes[:, 2] * boxes[:, 3]).tolist()
        return [
            {'id': i, 'image_id': u, 'category_id': 1, 'bbox': b, 'area': a, 'score': s, 'iscrowd': 0}
            for i, u, b, a, s in zip(ids, units, boxes.tolist(), areas, scores)
        ]

    def _rle(self, row: int, record: Dict[str, Any]) -> Dict[str, Any]:
        """The object's mask as compressed RLE, made as pycocotools' ``annToRLE`` makes it."""
        from pycocotools import mask as mask_utils

        truth = self.truth
        try:
            segmentation = record['segmentation']
            height, width = truth.size(int(truth.objects.image[row]))
            if isinstance(segmentation, list):
                return mask_utils.merge(mask_utils.frPyObjects(segmentation, height, width))
            if isinstance(segmentation['counts'], list):
                return mask_utils.frPyObjects(segmentation, height, width)
            mask_utils.area(segmentation)
            return segmentation
        except AnnotationFileError:
            raise
        except Exception as error:
            problem = f'cannot be made a mask of ({type(error).__name__}: {error})'
            raise truth.error(row, problem, 'segmentation') from error


def check_objects(truth: GroundTruth, rows: np.ndarray, iou_type: str) -> None:
    """See that these objects can be evaluated.

    Args:
        truth: where they are.
        rows: int64, shape (M,): which they are.
        iou_type: 'bbox' or 'segm'. Masks are not looked at.

    Raises:
        AnnotationFileError: one cannot; names it and the field.
    """
    needs_area = ~(truth.objects.crowd[rows] != 0)  # pycocotools does not look at a crowd's; NaN is no crowd
    needed = CROWD | np.where(needs_area, AREA, 0) | (BOX if iou_type == 'bbox' else 0)
    truth.check(rows, needed.astype(np.uint8))


_NO_BOX = [0.0, 0.0, 0.0, 0.0]
_DETECTION = {'bbox': _NO_BOX, 'iscrowd': 0}


def _are_ordinary(boxes: np.ndarray) -> np.ndarray:
    """No NaN, no negative side: bool, shape (N,)."""
    return ~np.isnan(boxes).any(axis=1) & (boxes[:, 2] >= 0) & (boxes[:, 3] >= 0)
