"""CocoMetric that holds no ground truth until it evaluates, and no dict per annotation or detection at any time."""

from __future__ import annotations

import inspect
import logging
from typing import Any, Dict, List, Optional

import numpy as np
from mmdet.datasets.api_wrappers import COCO
from mmdet.evaluation import CocoMetric
from mmdet.registry import METRICS
from mmengine.logging import MMLogger, print_log

from mmshared.datasets.classes import category_ids, names

from .backends import BACKENDS
from .collected import Collected, Part
from .gathered import GatheredResults
from .ground_truth import GroundTruth, SampleTruth, StoredTruth
from .predictions import Predictions
from .records import check_objects
from .result_files import write_truth
from .scoring import STATS, Scoring, iou_type_of
from .truth_file import TruthFile


@METRICS.register_module()
class SharedCocoMetric(GatheredResults, TruthFile, CocoMetric):
    """mmdet's ``CocoMetric``: the same numbers, without its memory in every rank, and faster.

    ``CocoMetric`` parses the annotation file in every rank when it is constructed and keeps the dicts as long as the
    job runs, though only rank 0 evaluates. Here nothing is parsed then. When the loop hands over ``dataset_meta`` at
    the start of the job, rank 0 looks whether the file can be evaluated against; when it evaluates, it maps the file's
    store (the one that :class:`~mmshared.datasets.SharedCocoDataset` uses), and lets go of it afterwards. Predictions
    are kept as a few arrays and gathered on rank 0 without a directory that all nodes share.

    Where stock is wrong, this is not: with ``classwise``, categories that the file does not have sorted by id get their
    own figures; ``proposal_fast`` works where images differ in their number of objects, and what other metrics are
    evaluated with it makes no difference; ``iou_thrs`` may be a float.

    Args:
        ann_file: path or address of the annotation file; None: the ground truth is that of the samples.
        *args: as for ``CocoMetric``.
        backend: what matches detections with objects: 'faster_coco_eval', 'pycocotools', or 'ultrafast' (the package
            ultrafast-pycocotools). The first is some ten times faster than pycocotools. Categories that a backend
            would get wrong are left to pycocotools.
        cache_dir: folder of annotation stores; as for ``SharedCocoDataset``.
        collect_dir: accepted, as ``BaseMetric`` does; nothing is written there.
        **kwargs: as for ``CocoMetric``. ``use_mp_eval`` starts no processes.

    Attributes:
        results: the predictions of this rank; see :class:`~.predictions.Predictions`.

    Raises:
        ImportError: the backend's package is not installed.
        ValueError: there is no such backend.
        FileNotFoundError, IsADirectoryError, PermissionError: a local ``ann_file`` cannot be read.
    """

    RESULTS = Predictions
    _scoring = Scoring

    def __init__(
        self,
        ann_file: Optional[str] = None,
        *args: Any,
        backend: str = 'faster_coco_eval',
        cache_dir: Optional[str] = None,
        collect_dir: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(None, *args, **kwargs)
        options = inspect.signature(CocoMetric.__init__).bind(self, ann_file, *args, **kwargs).arguments
        self._sort_categories = bool(options.get('sort_categories', False))
        self._check_options()
        if collect_dir is not None and self.collect_device != 'cpu':
            raise ValueError("`collect_dir` can only be given with `collect_device='cpu'`")
        if backend not in BACKENDS:
            raise ValueError(f'backend is {backend!r}, should be one of {", ".join(map(repr, BACKENDS))}')
        BACKENDS[backend].check_installed(backend)
        self.ann_file, self.backend, self.cache_dir, self.collect_dir = ann_file, backend, cache_dir, collect_dir
        self.results = self.RESULTS()
        if ann_file is not None:
            self._coco_api = InFile()
            self._check_readable()

    def _check_options(self) -> None:
        """Refuse now what stock refuses when the first epoch is over."""
        if self.format_only or set(self.metrics) <= {'proposal_fast'}:
            return
        for item in self.metric_items or ():
            if item not in STATS:
                raise KeyError(f'metric item "{item}" is not supported, only: {", ".join(STATS)}')

    # ---- the start of a job
    def _look_at_file(self) -> None:
        """Find now what would otherwise be found when the first epoch is over."""
        truth = self._stored_truth()
        cat_ids, classes = self._categories_of(truth), self.dataset_meta['classes']
        if len(cat_ids) != len(classes):
            print_log(
                f'{truth.source}: {len(cat_ids)} of its categories are among the {len(classes)} classes, so labels '
                f'from {len(cat_ids)} on have no category, and others may have a wrong one. Classes: {names(classes)}',
                logger='current',
                level=logging.WARNING,
            )
        if self.format_only:
            return
        asked = np.isin(truth.objects.category, [i for i, key in enumerate(truth.category_ids) if key in cat_ids])
        rows = np.flatnonzero(asked & (truth.objects.image >= 0))
        for iou_type in sorted({iou_type_of(metric) for metric in self.metrics if metric != 'proposal_fast'}):
            check_objects(truth, truth.objects.resolved[rows], iou_type)

    # ---- evaluation
    def _collected(self, parts: List[Part], size: int) -> Collected:
        return Collected.of(parts, size)

    def compute_metrics(self, results: Any) -> Dict[str, float]:
        """Compute the metrics.

        Args:
            results: all ranks' predictions, or a list as stock has it.

        Returns:
            The metrics by name.

        Raises:
            AnnotationFileError: an annotation cannot be evaluated.
            AssertionError: there are detections of an image that is not in the annotation file.
            IndexError: a label has no category.
            KeyError: 'segm' is asked for, and there are no masks.
        """
        found = results if isinstance(results, Collected) else Collected.of_results(results)
        logger = MMLogger.get_current_instance()
        truth = self._truth(found, logger)
        given = self.img_ids
        if self.cat_ids is None:
            self.cat_ids = self._categories_of(truth)
        try:
            if given is None:
                self.img_ids = truth.image_ids
            return self._scoring(self, truth, found, logger).run()
        finally:
            self.img_ids = given

    def _truth(self, found: Collected, logger: MMLogger) -> GroundTruth:
        if self.ann_file is not None:
            return self._stored_truth()
        logger.info('Converting ground truth to coco format...')
        truth = SampleTruth(found.ids, found.truths.all(), self.dataset_meta['classes'])
        if self.outfile_prefix is not None:
            write_truth(truth, self.outfile_prefix)
        return truth

    def _stored_truth(self) -> StoredTruth:
        return StoredTruth(self._open_store())

    def _categories_of(self, truth: GroundTruth) -> List[Any]:
        if self._sort_categories and self.ann_file is not None:
            truth.categories = sorted(truth.categories, key=lambda category: category['id'])
        return category_ids(truth.source, truth.categories, self.dataset_meta['classes'], COCO)


class InFile:
    """Stands where stock has the parsed file; whether there is one is all that ``CocoMetric.process`` asks."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f'{name!r}: {self!r}; for a COCO of your own: mmshared.evaluation.SharedCOCO(metric.ann_file)'
        )

    def __repr__(self) -> str:
        return 'the ground truth is in a file, which is read for an evaluation'
