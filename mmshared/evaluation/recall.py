"""Recall of proposals ("proposal_fast"), image by image.

mmdet's ``eval_recalls`` holds the overlaps of all images at once, in one array, which numpy has refused since 1.24
unless all images have equally many objects and proposals.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
from mmdet.evaluation.functional import bbox_overlaps, print_recall_summary
from mmdet.evaluation.functional.recall import set_recall_param

from .collected import Collected
from .ground_truth import BOX, CROWD, GroundTruth


def proposal_recalls(
    truth: GroundTruth, found: Collected, img_ids: Sequence[Any], proposal_nums: Any, iou_thrs: Any, logger: Any
) -> np.ndarray:
    """Recall of the first proposals of each image, printed as a table.

    Args:
        truth: what there is to find; crowds and what is to be ignored aside.
        found: proposals. As in stock, those of the i-th image are compared with the objects of the i-th of ``img_ids``.
        img_ids: the images, one for each that was predicted.
        proposal_nums: N numbers of proposals per image.
        iou_thrs: one threshold, or T.
        logger: for the table.

    Returns:
        float64, shape (N, T).

    Raises:
        AssertionError: another number of images was predicted.
        AnnotationFileError: an object cannot be compared.
    """
    nums, thrs = set_recall_param(proposal_nums, iou_thrs)
    if len(img_ids) != len(found):
        raise AssertionError(
            f'proposal_fast compares the predicted images with those of {truth.source} one by one, but {len(found)} '
            f'were predicted, and it has {len(img_ids)}'
        )
    boxes, stops = found.boxes, np.cumsum(found.counts).tolist()
    best: List[np.ndarray] = []
    for i, objects in enumerate(_objects(truth, img_ids)):
        mine = slice(stops[i - 1] if i else 0, stops[i])
        proposals = boxes[mine]
        if found.fifth is not None and not np.isnan(found.fifth[mine]).any():
            proposals = proposals[np.argsort(found.fifth[mine])[::-1]]
        if len(objects):
            overlaps = bbox_overlaps(objects, proposals[: nums[-1]])
            best.append(np.stack([_best_overlaps(overlaps[:, :num]) for num in nums]))
    overlaps = np.concatenate([np.zeros((nums.size, 0)), *best], axis=1).astype(np.float32)
    recalls = np.stack([(overlaps >= thr).sum(axis=1) / np.float64(overlaps.shape[1]) for thr in thrs], axis=1)
    print_recall_summary(recalls, nums, thrs, logger=logger)
    return recalls


def _objects(truth: GroundTruth, img_ids: Sequence[Any]) -> List[np.ndarray]:
    """For each image x1, y1, x2, y2 of its objects, float32, shape (G, 4)."""
    objects = truth.objects
    numbers = {key: i for i, key in enumerate(truth.image_ids)}
    order = np.argsort(objects.image, kind='stable')
    starts = np.searchsorted(objects.image[order], np.arange(len(numbers) + 1))
    result = []
    for key in img_ids:
        image = numbers.get(key)
        rows = order[:0] if image is None else objects.resolved[order[starts[image] : starts[image + 1]]]
        rows = rows[~objects.ignore[rows]]
        truth.check(rows, np.full(rows.size, CROWD, np.uint8))
        rows = rows[objects.crowd[rows] == 0]
        truth.check(rows, np.full(rows.size, BOX, np.uint8))
        boxes = objects.box[rows].copy()
        boxes[:, 2:] += boxes[:, :2]
        result.append(boxes.astype(np.float32))
    return result


def _best_overlaps(overlaps: np.ndarray) -> np.ndarray:
    """Overlap of each object with its proposal: the greatest is matched first, each proposal once; 0 without one."""
    left, best = overlaps.copy(), np.zeros(len(overlaps))
    if not left.size:
        return best
    for j in range(len(left)):
        row, column = np.unravel_index(left.argmax(), left.shape)
        best[j] = left[row, column]
        left[row], left[:, column] = -1, -1
    return best
