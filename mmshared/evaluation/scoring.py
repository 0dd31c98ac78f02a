"""The metrics of one evaluation, and what is written and logged about them, as ``CocoMetric`` does it."""

from __future__ import annotations

import functools
import os.path as osp
from collections import OrderedDict
from typing import TYPE_CHECKING, Dict, List

import numpy as np
from mmdet.datasets.api_wrappers import COCOeval
from mmengine.logging import MMLogger

from .backends import BACKENDS, Settings
from .coco_evaluation import class_table, evaluate
from .collected import Collected
from .ground_truth import GroundTruth
from .pairing import Pairing, check_labels
from .recall import proposal_recalls
from .records import RecordSource
from .result_files import result_files, write_results

if TYPE_CHECKING:
    from .coco_metric import SharedCocoMetric

STATS = {
    'mAP': 0,
    'mAP_50': 1,
    'mAP_75': 2,
    'mAP_s': 3,
    'mAP_m': 4,
    'mAP_l': 5,
    'AR@100': 6,
    'AR@300': 7,
    'AR@1000': 8,
    'AR_s@1000': 9,
    'AR_m@1000': 10,
    'AR_l@1000': 11,
}
"""Where pycocotools' ``stats`` have what mmdet calls so."""
_PROPOSAL_ITEMS = ('AR@100', 'AR@300', 'AR@1000', 'AR_s@1000', 'AR_m@1000', 'AR_l@1000')
_ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


def iou_type_of(metric: str) -> str:
    """pycocotools' name for what is compared: 'bbox' or 'segm'."""
    return 'bbox' if metric == 'proposal' else metric


class Scoring:
    """Computes the metrics.

    Args:
        metric: has the options, and ``cat_ids`` and ``img_ids``.
        truth: what there is to find.
        found: what was found.
        logger: for tables.
    """

    def __init__(self, metric: SharedCocoMetric, truth: GroundTruth, found: Collected, logger: MMLogger) -> None:
        self._metric, self._truth, self._found, self._logger = metric, truth, found, logger

    def run(self) -> Dict[str, float]:
        """Compute all that are asked for; see ``SharedCocoMetric.compute_metrics`` for what is raised."""
        metric, results = self._metric, OrderedDict()
        check_labels(self._found, metric.cat_ids)
        if metric.outfile_prefix is not None:
            write_results(self._found, metric.cat_ids, metric.outfile_prefix)
        if metric.format_only:
            self._logger.info(f'results are saved in {osp.dirname(metric.outfile_prefix)}')
            return results
        kinds = result_files(self._found, '')
        for name in metric.metrics:
            self._logger.info(f'Evaluating {name}...')
            if name == 'proposal_fast':
                results.update(self._proposal_fast())
                continue
            if name not in kinds:
                raise KeyError(f'{name} is not in results: the first image that was predicted has no masks')
            if not self._found.labels.size:
                self._logger.error('The testing results of the whole dataset is empty.')
                break
            results.update(self._proposal() if name == 'proposal' else self._detection(name))
        return results

    @functools.cached_property
    def _pairing(self) -> Pairing:
        return Pairing(self._truth, self._found, self._metric.cat_ids, self._metric.img_ids)

    def _evaluate(self, name: str, regardless: bool = False) -> COCOeval:
        metric, iou_type = self._metric, iou_type_of(name)
        thrs = [metric.iou_thrs] if np.ndim(metric.iou_thrs) == 0 else metric.iou_thrs
        settings = Settings(iou_type, thrs, sorted(metric.proposal_nums))
        source = RecordSource(self._truth, self._found, iou_type)
        backend = BACKENDS[metric.backend]()
        return evaluate(self._pairing, source, backend, settings, self._logger, name, regardless)

    def _proposal_fast(self) -> Dict[str, float]:
        metric = self._metric
        recalls = proposal_recalls(
            self._truth, self._found, metric.img_ids, metric.proposal_nums, metric.iou_thrs, self._logger
        )
        values = {f'AR@{num}': value for num, value in zip(metric.proposal_nums, recalls.mean(axis=1))}
        self._logger.info(''.join(f'\n{name}\t{value:.4f}' for name, value in values.items()))
        return values

    def _proposal(self) -> Dict[str, float]:
        stats = self._evaluate('proposal', regardless=True).stats
        items = self._metric.metric_items
        return {item: float(f'{stats[STATS[item]]:.3f}') for item in (_PROPOSAL_ITEMS if items is None else items)}

    def _detection(self, name: str) -> Dict[str, float]:
        metric, evaluation = self._metric, self._evaluate(name)
        results: Dict[str, float] = {}
        if metric.classwise:
            results.update(self._classwise(evaluation.eval['precision']))
        for item in _ITEMS if metric.metric_items is None else metric.metric_items:
            results[f'{name}_{item}'] = float(f'{round(evaluation.stats[STATS[item]], 3)}')
        values = ' '.join(f'{value:.3f}' for value in evaluation.stats[:6])
        self._logger.info(f'{name}_mAP_copypaste: {values}')
        return results

    def _classwise(self, precisions: np.ndarray) -> Dict[str, float]:
        records = {category['id']: category for category in self._truth.categories}
        names: List[str] = [records[key]['name'] for key in self._metric.cat_ids]
        numbers = {key: k for k, key in enumerate(self._pairing.categories)}
        values, table = class_table(precisions, names, [numbers[key] for key in self._metric.cat_ids])
        self._logger.info(table)
        return {f'{name}_precision': value for name, value in zip(names, values)}
