"""LVISFixedAPMetric that holds no ground truth until it evaluates, and works with every numpy."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Dict, List, Optional

import numpy as np
from mmdet.evaluation.metrics.lvis_metric import LVISFixedAPMetric
from mmdet.registry import METRICS
from mmengine.logging import MMLogger

from .backends import BACKENDS
from .collected import Collected, Part
from .columns import ragged
from .empty_file import empty_file
from .federated import FederatedTruth, federated
from .gathered import PickledResults, evaluate_together
from .lvis_metric import evaluate_federated
from .truth_file import TruthFile

_NOTHING = b'{"images": [], "annotations": [], "categories": []}'


@METRICS.register_module()
class SharedLVISFixedAPMetric(TruthFile, LVISFixedAPMetric):
    """mmdet's ``LVISFixedAPMetric``: the same numbers, without the annotations in every rank, and faster.

    Ranks map the file's store for its categories; objects are read on rank 0 while it evaluates. Detections are
    gathered on rank 0 only. Where stock is wrong, this is not: it works with numpy 1.24 and later.

    Args:
        ann_file: path or address of the annotation file.
        *args: as for ``LVISFixedAPMetric``.
        backend, cache_dir: as for :class:`~.coco_metric.SharedCocoMetric`.
        **kwargs: as for ``LVISFixedAPMetric``.

    Raises:
        RuntimeError: the package lvis is not installed.
        ImportError: the backend's package is not installed.
        FileNotFoundError, IsADirectoryError, PermissionError: a local ``ann_file`` cannot be read.
    """

    def __init__(
        self,
        ann_file: str,
        *args: Any,
        backend: str = 'faster_coco_eval',
        cache_dir: Optional[str] = None,
        backend_args: Optional[dict] = None,
        **kwargs: Any,
    ) -> None:
        with empty_file(_NOTHING) as nothing:
            super().__init__(nothing, *args, **kwargs)
        BACKENDS[backend].check_installed(backend)
        self.ann_file, self.backend, self.cache_dir, self.backend_args = ann_file, backend, cache_dir, backend_args
        self._lvis_api = self.img_ids = self._cat_ids = None
        self._check_readable()

    def _look_at_file(self) -> None:
        self._truth().check_federation()

    def _truth(self) -> FederatedTruth:
        return FederatedTruth(self._open_store())

    @property
    def cat_ids(self) -> List[Any]:
        """The category of each label."""
        if self._cat_ids is None:
            self._cat_ids = list({category['id']: None for category in self._open_store().categories})
        return self._cat_ids

    @cat_ids.setter
    def cat_ids(self, cat_ids: Any) -> None:
        self._cat_ids = cat_ids

    def evaluate(self, size: int) -> dict:
        """Evaluate what all ranks have predicted; all must call it. See ``SharedCocoMetric.evaluate``."""
        own = PickledResults()
        if self.results:
            own.append(self.results)
        try:
            return evaluate_together(self, own, _merged)
        finally:
            self.results = {}

    def compute_metrics(self, results: Dict[Any, List[dict]]) -> dict:
        """The metrics of all ranks' detections by category. Raises as ``SharedCocoMetric.compute_metrics``."""
        logger: MMLogger = MMLogger.get_current_instance()
        few = sum(len(found) < self.topk for found in results.values())
        if few:
            logger.info(
                f'{few} classes have less than {self.topk} detections: with {self.topk} for each class AP is higher'
            )
        chosen = [
            detection
            for found in results.values()
            for detection in sorted(found, key=lambda x: x['score'], reverse=True)[: self.topk]
        ]
        if not chosen:
            raise IndexError('There is nothing to evaluate: nothing was detected')  # as in stock
        truth = self._truth()
        self.img_ids, cat_ids = truth.image_ids, self.cat_ids
        found, boxes = _collected(chosen, cat_ids)
        counting = federated(truth, found, cat_ids, boxes)
        summary = evaluate_federated(truth, counting, self, 'bbox', logger, 'bbox')
        self.img_ids, summary.params.max_dets = None, -1
        summary.print_results()
        metrics = {name: value for name, value in summary.results.items() if name.startswith('AP')}
        logger.info(f'mAP_copypaste: {metrics}')
        return metrics


def _merged(parts: List[Part]) -> Dict[Any, List[dict]]:
    results: Dict[Any, List[dict]] = defaultdict(list)
    for categories in PickledResults.ordered(parts, len(parts)):
        for category, found in categories.items():
            results[category].extend(found)
    return results


def _collected(detections: List[dict], cat_ids: List[Any]) -> tuple[Collected, np.ndarray]:
    """The detections by image, in each in the order given, and their boxes (x, y, width, height)."""
    number: Dict[Any, int] = {}
    image = np.array([number.setdefault(d['image_id'], len(number)) for d in detections], np.int64)
    label_of = {key: label for label, key in enumerate(cat_ids)}
    boxes, order = np.array([d['bbox'] for d in detections], np.float64), np.argsort(image, kind='stable')
    counts = np.bincount(image, minlength=len(number))
    rows = order[ragged(np.cumsum(counts) - counts, counts)]
    scores = np.array([d['score'] for d in detections], np.float64)[rows]
    found = Collected(
        ids=list(number),
        id_texts=[],
        counts=counts,
        boxes=boxes[rows],
        scores=scores,
        mask_scores=scores,
        labels=np.array([label_of[d['category_id']] for d in detections], np.int64)[rows],
        masks=None,
        fifth=None,
        truths=None,
        ranks=1,
    )
    return found, boxes[rows]
