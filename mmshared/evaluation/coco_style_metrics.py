"""mmdet's further metrics over a COCO-style file, which is parsed once per node instead of in every rank."""

from __future__ import annotations

from typing import Any, List, Optional

from mmdet.evaluation.metrics import (
    CocoMetric,
    CocoOccludedSeparatedMetric,
    CocoVideoMetric,
    DODCocoMetric,
    OVCocoMetric,
    RefExpMetric,
    gRefCOCOMetric,
)
from mmdet.registry import METRICS

from .coco import SharedCOCO
from .collected import Part
from .empty_file import empty_file
from .gathered import GatheredResults, PickledResults
from .quiet import quiet
from .truth_file import TruthFile


class _OnDemand:
    """An attribute in which a metric has its ``COCO``: opened when it is first looked at."""

    def __get__(self, metric: Any, owner: Optional[type] = None) -> Any:
        if metric is None:
            return self
        if metric._api is None and metric.ann_file is not None:
            metric._api = SharedCOCO.from_store(metric._open_store(), metric.cache_dir)
        return metric._api

    def __set__(self, metric: Any, api: Any) -> None:
        metric._api = api


class SharedGroundTruth(TruthFile):
    """Mixed into a metric that parses its ``ann_file`` when it is constructed, before it.

    The metric constructs without that file. Its ``COCO`` is a :class:`~.coco.SharedCOCO` instead, which maps the file's
    store when it is first asked, and gives back what was made of it after each evaluation. The store is looked at on
    rank 0 when the loop hands over ``dataset_meta``, so that a bad file is found when a job starts.

    Args:
        ann_file: path or address of the annotation file.
        *args: as for the metric.
        cache_dir: folder of annotation stores.
        **kwargs: as for the metric.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: a local ``ann_file`` cannot be read.
    """

    _api: Any = None

    def __init__(
        self, ann_file: Optional[str] = None, *args: Any, cache_dir: Optional[str] = None, **kwargs: Any
    ) -> None:
        backend_args = kwargs.pop('backend_args', None)
        with empty_file(b'{}') as nothing, quiet():
            super().__init__(nothing, *args, **kwargs)
        self._api, self.backend_args, self.cache_dir, self.ann_file = None, backend_args, cache_dir, ann_file
        if ann_file is None and not isinstance(self, CocoMetric):  # which can do with the samples' own
            raise TypeError(f'{type(self).__name__} needs an ann_file')
        self._check_readable()

    def _look_at_file(self) -> None:
        self._open_store()

    def compute_metrics(self, results: Any) -> dict:
        """As in stock."""
        try:
            return super().compute_metrics(results)
        finally:
            self._api = None


class _Gathered(GatheredResults, SharedGroundTruth):
    RESULTS = PickledResults

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.results = self.RESULTS()

    def _collected(self, parts: List[Part], size: int) -> List[Any]:
        return PickledResults.ordered(parts, size)


@METRICS.register_module()
class SharedOVCocoMetric(_Gathered, OVCocoMetric):
    """mmdet's ``OVCocoMetric``; see :class:`SharedGroundTruth`."""

    _coco_api = _OnDemand()


@METRICS.register_module()
class SharedCocoOccludedSeparatedMetric(_Gathered, CocoOccludedSeparatedMetric):
    """mmdet's ``CocoOccludedSeparatedMetric``; see :class:`SharedGroundTruth`."""

    _coco_api = _OnDemand()


@METRICS.register_module()
class SharedCocoVideoMetric(SharedGroundTruth, CocoVideoMetric):
    """mmdet's ``CocoVideoMetric``; see :class:`SharedGroundTruth`. Results are collected as in stock."""

    _coco_api = _OnDemand()


@METRICS.register_module()
class SharedDODCocoMetric(_Gathered, DODCocoMetric):
    """mmdet's ``DODCocoMetric``; see :class:`SharedGroundTruth`."""

    _coco_api = _OnDemand()


@METRICS.register_module()
class SharedRefExpMetric(_Gathered, RefExpMetric):
    """mmdet's ``RefExpMetric``; see :class:`SharedGroundTruth`."""

    coco = _OnDemand()


@METRICS.register_module()
class SharedgRefCOCOMetric(_Gathered, gRefCOCOMetric):
    """mmdet's ``gRefCOCOMetric``; see :class:`SharedGroundTruth`."""

    coco = _OnDemand()
