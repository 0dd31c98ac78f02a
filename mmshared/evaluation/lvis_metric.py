"""LVISMetric that holds no ground truth until it evaluates, and works with every numpy."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from mmdet.evaluation.metrics import LVISMetric
from mmdet.registry import METRICS
from mmengine.logging import MMLogger
from terminaltables import AsciiTable

from .backends import BACKENDS, Settings
from .coco_evaluation import curves
from .coco_metric import InFile, SharedCocoMetric
from .collected import Collected
from .federated import MAX_DETECTIONS, Federated, FederatedSource, FederatedTruth, federated, restate
from .ground_truth import GroundTruth
from .pairing import Pairing
from .scoring import Scoring, iou_type_of

_PROPOSAL_ITEMS = ('AR@300', 'ARs@300', 'ARm@300', 'ARl@300')
_ITEMS = ('AP', 'AP50', 'AP75', 'APs', 'APm', 'APl', 'APr', 'APc', 'APf')


class LVISScoring(Scoring):
    """As ``LVISMetric`` computes and logs its metrics. The summary is lvis's own."""

    def _evaluate(self, name: str, regardless: bool = False) -> Any:
        metric, found, iou_type = self._metric, self._found, iou_type_of(name)
        scores = (found.mask_scores if iou_type == 'segm' else found.scores).astype(np.float64)
        Pairing(self._truth, found, metric.cat_ids, metric.img_ids)  # refuses what does not fit, counting or not
        counting = federated(self._truth, found, metric.cat_ids, found.xywh(), scores)
        return evaluate_federated(self._truth, counting, metric, iou_type, self._logger, name)

    def _proposal(self) -> Dict[str, float]:
        # LVISMetric asks for an evaluation regardless of categories by a name that lvis does not know.
        summary, items = self._evaluate('proposal'), self._metric.metric_items
        summary.print_results()
        return self._rounded(summary, '', _PROPOSAL_ITEMS if items is None else items)

    def _detection(self, name: str) -> Dict[str, float]:
        metric, summary, results = self._metric, self._evaluate(name), {}
        if metric.classwise:
            results.update(self._classwise(summary))
        results.update(
            self._rounded(summary, f'{name}_', _ITEMS if metric.metric_items is None else metric.metric_items)
        )
        summary.print_results()
        return results

    @staticmethod
    def _rounded(summary: Any, prefix: str, items: Sequence[str]) -> Dict[str, float]:
        return {f'{prefix}{k}': float(f'{float(v):.3f}') for k, v in summary.get_results().items() if k in items}

    def _classwise(self, summary: Any) -> Dict[str, float]:
        records = {category['id']: category for category in self._truth.categories}
        results, cells = {}, []
        for k, key in enumerate(summary.params.cat_ids):
            precision = summary.eval['precision'][:, :, k, 0]
            precision = precision[precision > -1]
            value = np.mean(precision) if precision.size else float('nan')
            name = records[key]['name']
            results[f'{name}_precision'] = round(value, 3)
            cells += [f'{name}', f'{float(value):0.3f}']
        columns = min(6, len(cells))
        rows = [cells[i : i + columns] for i in range(0, len(cells), columns)]
        rows[-1] += [None] * (columns - len(rows[-1]))
        self._logger.info('\n' + AsciiTable([['category', 'AP'] * (columns // 2), *rows]).table)
        return results


def evaluate_federated(
    truth: FederatedTruth, counting: Federated, metric: Any, iou_type: str, logger: MMLogger, title: str
) -> Any:
    """Evaluate detections as LVIS does.

    Args:
        truth: what there is to find.
        counting: the detections that count.
        metric: has ``backend``, ``cat_ids`` (the category of each label) and ``img_ids``.
        iou_type: 'bbox' or 'segm'.
        logger, title: for progress.

    Returns:
        An ``LVISEval`` as it is after ``summarize``.
    """
    from lvis import LVISEval
    from lvis.eval import Params

    summary = LVISEval.__new__(LVISEval)  # its constructor wants the whole file as dicts
    summary.params, summary.results = Params(iou_type), {}
    pairing = Pairing(truth, counting.found, metric.cat_ids, metric.img_ids)
    most = max(int(counting.found.counts.max(initial=0)), MAX_DETECTIONS)  # however many: none is left out any more
    settings = Settings(iou_type, summary.params.iou_thrs, [most])
    source, backend = FederatedSource(truth, counting, iou_type), BACKENDS[metric.backend]()
    precision, recall = curves(pairing, source, backend, settings, logger, title)
    summary.params.img_ids, summary.params.cat_ids = metric.img_ids, pairing.categories
    records = {category['id']: category for category in truth.categories}
    summary.freq_groups = [
        [k for k, key in enumerate(pairing.categories) if records[key]['frequency'] == name]
        for name in summary.params.img_count_lbl
    ]
    summary.eval = {'params': summary.params, 'precision': precision[..., 0], 'recall': recall[..., 0]}
    summary.summarize()
    return summary


@METRICS.register_module()
class SharedLVISMetric(SharedCocoMetric, LVISMetric):
    """mmdet's ``LVISMetric``: the same numbers, without its memory in every rank, and faster.

    What :class:`~.coco_metric.SharedCocoMetric` says holds here. Categories are matched by its backends, since LVIS's
    rules can be said in terms of COCO's (:mod:`~.federated`); the summary is that of the package lvis.

    Where stock is wrong, this is not: it works with numpy 1.24 and later, and with ``classwise`` categories that the
    file does not have sorted by id get their own figures.

    Args:
        ann_file, *args: as for ``LVISMetric``.
        backend, cache_dir: as for ``SharedCocoMetric``.
        **kwargs: as for ``LVISMetric``.

    Raises:
        RuntimeError: the package lvis is not installed.
    """

    _scoring = LVISScoring

    def __init__(self, ann_file: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(ann_file, *args, **kwargs)
        self._lvis_api = None if ann_file is None else InFile()

    def _check_options(self) -> None:
        """Items that lvis does not have are left out, as in stock."""

    def _look_at_file(self) -> None:
        super()._look_at_file()
        if not self.format_only and set(self.metrics) != {'proposal_fast'}:
            self._stored_truth().check_federation()

    def _stored_truth(self) -> FederatedTruth:
        return FederatedTruth(self._open_store())

    def _truth(self, found: Collected, logger: MMLogger) -> GroundTruth:
        truth = super()._truth(found, logger)
        if self.ann_file is None:
            restate(truth)
        return truth

    def _categories_of(self, truth: GroundTruth) -> List[Any]:
        return list({category['id']: None for category in truth.categories})
