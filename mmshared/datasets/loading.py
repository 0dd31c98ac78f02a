"""mmdet's LoadAnnotations, without a detour through a Python object per number."""

from __future__ import annotations

from typing import Any, Iterable, List, Optional

import numpy as np
import torch
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.registry import TRANSFORMS
from mmdet.structures.bbox import HorizontalBoxes, get_box_type

from .deferred import DeferredInstances, unread


@TRANSFORMS.register_module()
class LoadSharedAnnotations(LoadAnnotations):
    """mmdet's ``LoadAnnotations``: same arguments, same results, bit for bit.

    A :class:`~.coco.SharedCocoDataset` with this in its pipeline hands on samples whose instances are made only when
    somebody reads them. If nobody did before this transform, boxes, labels, flags and polygons come as arrays straight
    from the store. If somebody did (``InstaBoost``, a transform of yours that reads or replaces
    ``results['instances']``), or with any other dataset, this is its parent.

    ``results['instances']`` is there afterwards as with ``LoadAnnotations``: a list of dicts, in which ``ignore_flag``
    is 1 where a mask was of no use.

    Polygons of one image are views of one array, so ``ndarray.resize`` in place does not work on them; all other
    changes in place do, and stay their own.

    Args:
        *args, **kwargs: as for ``LoadAnnotations``.

    Raises:
        AnnotationFileError: ``with_mask`` is set and an annotation has no mask (where the parent raises a KeyError).
    """

    @classmethod
    def among(cls, transforms: Iterable[Any]) -> bool:
        """Whether one of ``transforms`` is of this class."""
        return any(isinstance(transform, cls) for transform in transforms)

    def transform(self, results: dict) -> dict:
        """Add what ``LoadAnnotations`` adds to ``results``, and return them. See the class for what is raised."""
        deferred = unread(results) if self.with_mask else None
        try:
            return super().transform(results)
        except KeyError as error:
            if deferred is None or error.args != ('mask',):
                raise
            without = next(i for i, instance in enumerate(deferred.list()) if 'mask' not in instance)
            raise deferred.without_mask(without) from None

    def _load_bboxes(self, results: dict) -> None:
        deferred = _with_arrays(results)
        if deferred is None or not self._takes_arrays():
            super()._load_bboxes(results)
            return
        boxes = deferred.arrays.boxes()
        results['gt_bboxes'] = boxes if self.box_type is None else _boxes(boxes)
        results['gt_ignore_flags'] = deferred.ignore_flags()

    def _takes_arrays(self) -> bool:
        """Whether boxes of that type are the same made of an array. torch first rounds a list to its default dtype."""
        if self.box_type is None:
            return True
        return get_box_type(self.box_type)[1] is HorizontalBoxes and torch.get_default_dtype() in _EXACT

    def _load_labels(self, results: dict) -> None:
        deferred = _with_arrays(results)
        if deferred is None:
            super()._load_labels(results)
        else:
            results['gt_bboxes_labels'] = deferred.arrays.labels()

    def _process_masks(self, results: dict) -> List[Any]:
        deferred = _with_arrays(results)
        if deferred is None:
            return super()._process_masks(results)
        masks, improper = deferred.arrays.masks()
        flags = deferred.ignore_flags()
        if improper:
            self._apply_rules(deferred, improper, masks, flags)
            deferred.set_ignore_flags(flags)
        results['gt_ignore_flags'] = flags
        return masks

    def _apply_rules(
        self, deferred: DeferredInstances, improper: List[int], masks: List[Any], flags: np.ndarray
    ) -> None:
        """Have the parent judge the ``improper`` ones of ``masks``, and change these and their ``flags`` in place."""
        # Without poly2mask the parent does not look into a dict, so none is decoded.
        run_lengths = deferred.arrays.run_lengths() if self.poly2mask else {}
        instances = []
        for i in improper:
            if not masks[i] and not deferred.arrays.has_run_length(i):
                raise deferred.without_mask(i)
            instances.append({'mask': masks[i] or run_lengths.get(i, {}), 'ignore_flag': bool(flags[i])})
        judged = {'instances': instances}
        changed = super()._process_masks(judged)
        for i, mask, flag in zip(improper, changed, judged['gt_ignore_flags'].tolist()):
            masks[i], flags[i] = mask, flag


_EXACT = (torch.float32, torch.float64)


def _boxes(array: np.ndarray) -> HorizontalBoxes:
    """Boxes of ``array``, float32, shape (N, 4); they share its memory.

    Made as pickle makes them: their constructor takes longer than all the arithmetic, to look at what is known here.
    """
    boxes = HorizontalBoxes.__new__(HorizontalBoxes)
    boxes.tensor = torch.from_numpy(array)
    return boxes


def _with_arrays(results: dict) -> Optional[DeferredInstances]:
    deferred = unread(results)
    return None if deferred is None or deferred.arrays is None else deferred
