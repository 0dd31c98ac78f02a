"""One kind of evaluation, category by category, and its summary by pycocotools itself."""

from __future__ import annotations

import time
from typing import Any, List, Sequence, Tuple

import numpy as np
from mmdet.datasets.api_wrappers import COCOeval
from mmengine.logging import MMLogger
from terminaltables import AsciiTable

from .backends import Backend, PyCocoTools, Settings
from .memory import without_collections
from .pairing import Pairing
from .records import RecordMaker, RecordSource

PROGRESS_SECONDS = 10.0
"""An evaluation that takes longer says how far it is, this often."""


class _Progress:
    """Says now and then how much is done."""

    def __init__(self, title: str, total: int, logger: MMLogger) -> None:
        self._title, self._total, self._logger, self._done = title, max(total, 1), logger, 0
        self._start = self._said = time.monotonic()

    def add(self, count: int) -> None:
        """So many more objects and detections are done."""
        self._done += count
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            share = 100 * self._done / self._total
            self._logger.info(f'Evaluating {self._title}: {share:.0f}% done after {now - self._start:.0f} s')


def evaluate(
    pairing: Pairing,
    source: RecordSource,
    backend: Backend,
    settings: Settings,
    logger: MMLogger,
    title: str,
    regardless: bool = False,
) -> COCOeval:
    """Evaluate, and print pycocotools' summary.

    Args:
        pairing, source, backend, settings, logger, title, regardless: as for :func:`curves`.

    Returns:
        An evaluation with ``eval`` (its ``precision`` of shape (T, R, K, A, M) and ``recall`` of shape (T, K, A, M))
        and ``stats``, as after ``summarize`` in stock.

    Raises:
        AnnotationFileError: an object cannot be evaluated.
    """
    summary = COCOeval(iouType=settings.iou_type)
    settings.apply(summary.params, [])
    precision, recall = curves(pairing, source, backend, settings, logger, title, regardless)
    summary.params.catIds = [-1] if regardless else pairing.categories
    counts = list(precision.shape)
    summary.eval = {'params': summary.params, 'counts': counts, 'precision': precision, 'recall': recall}
    summary.summarize()
    return summary


def curves(
    pairing: Pairing,
    source: RecordSource,
    backend: Backend,
    settings: Settings,
    logger: MMLogger,
    title: str,
    regardless: bool = False,
) -> Tuple[np.ndarray, np.ndarray]:
    """Precision and recall, category by category.

    Args:
        pairing: who meets whom.
        source: gives the records.
        backend: matches them; a category that it would get wrong is left to pycocotools.
        settings: of the evaluation.
        logger: for progress.
        title: for progress.
        regardless: of categories (pycocotools' ``useCats=0``).

    Returns:
        float64, shapes (T, R, K, A, M) and (T, K, A, M), for T thresholds, R recalls, K categories, A ranges of area
        and M numbers of detections; -1 where there is nothing to find.

    Raises:
        AnnotationFileError: an object cannot be evaluated.
    """
    everything: List[Any] = (
        [pairing.regardless(settings.max_dets)] if regardless else list(pairing.by_category(settings.max_dets))
    )
    params = COCOeval(iouType=settings.iou_type).params
    settings.apply(params, [])
    precision, recall = _empty(params, len(everything))
    progress = _Progress(title, sum(map(len, everything)), logger)
    for category, pairs in enumerate(everything):
        records = RecordMaker(source, pairs)
        records.check()
        if len(pairs):
            chosen = backend if backend.takes(records) else PyCocoTools()
            with without_collections():
                precision[:, :, category], recall[:, category] = chosen.curves(records, settings)
        progress.add(len(pairs))
    return precision, recall


def _empty(params: Any, categories: int) -> Tuple[np.ndarray, np.ndarray]:
    """Precision and recall of nothing."""
    thrs, recalls, areas, dets = (
        len(values) for values in (params.iouThrs, params.recThrs, params.areaRng, params.maxDets)
    )
    return -np.ones((thrs, recalls, categories, areas, dets)), -np.ones((thrs, categories, areas, dets))


def class_table(precisions: np.ndarray, names: Sequence[str], columns: Sequence[int]) -> Tuple[List[float], str]:
    """Precision of each class.

    Args:
        precisions: shape (T, R, K, A, M).
        names: of the classes.
        columns: which of the K categories each class is.

    Returns:
        The classes' mAP, rounded to three digits, and a table of it, by IoU and by area.

    Raises:
        IndexError: there are fewer than six thresholds, so none is 0.75.
    """
    rows = []
    for name, k in zip(names, columns):
        parts: List[np.ndarray] = [precisions[:, :, k, 0, -1]]
        parts += [precisions[t, :, k, 0, -1] for t in (0, 5)]
        parts += [precisions[:, :, k, area, -1] for area in (1, 2, 3)]
        rows.append((name, *(round(_mean(part), 3) for part in parts)))
    headers = ['category', 'mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l']
    table = AsciiTable([headers, *([str(value) for value in row] for row in rows)])
    return [row[1] for row in rows], '\n' + table.table


def _mean(precision: np.ndarray) -> float:
    some = precision[precision > -1]
    return np.mean(some) if some.size else float('nan')
