"""CocoPanopticMetric whose ground truth is parsed once per node, and mapped by every rank."""

from __future__ import annotations

import os
import shutil
from typing import Any, List, Optional, Sequence

from mmdet.evaluation.metrics import CocoPanopticMetric
from mmdet.registry import METRICS

from mmshared.annotations import StoreCache
from mmshared.datasets.remote import open_panoptic_annotations

from .collected import Part
from .gathered import GatheredResults, PickledResults
from .panoptic_api import SharedCOCOPanoptic
from .truth_file import TruthFile


@METRICS.register_module()
class SharedCocoPanopticMetric(GatheredResults, TruthFile, CocoPanopticMetric):
    """mmdet's ``CocoPanopticMetric``: the same numbers, without its memory in every rank.

    The annotation file is parsed once per node when the loop hands over ``dataset_meta`` at the start of the job; ranks
    map it, and decode the segments of the image that they compare. Results come to rank 0 over the process group, so
    no folder has to be shared between nodes. The pictures through which stock compares lie in the cache's folder for
    as long as their batch takes, and go if the process is killed; with ``outfile_prefix`` they are kept, as in stock.

    Args:
        ann_file: path or address of the annotation file; None: the ground truth is that of the samples.
        *args: as for ``CocoPanopticMetric``.
        cache_dir: folder of the stores; see :class:`~mmshared.annotations.StoreCache`.
        **kwargs: as for ``CocoPanopticMetric``.

    Raises:
        RuntimeError: the package panopticapi is not installed.
        FileNotFoundError, IsADirectoryError, PermissionError: a local ``ann_file`` cannot be read.
    """

    RESULTS = PickledResults
    _api: Any = None
    tmp_dir: Any = None  # stock looks at it when an object goes whose constructor failed

    def __init__(
        self, ann_file: Optional[str] = None, *args: Any, cache_dir: Optional[str] = None, **kwargs: Any
    ) -> None:
        self.ann_file, self.cache_dir = None, cache_dir
        super().__init__(None, *args, **kwargs)
        if self.tmp_dir is not None:  # it stays as the mark that results are compared batch by batch
            self.tmp_dir.cleanup()
        self.ann_file, self.results = ann_file or None, self.RESULTS()
        self._check_readable()

    # ---- ground truth
    @property
    def _coco_api(self) -> Any:
        if self._api is None and self.ann_file:
            store = open_panoptic_annotations(self.ann_file, self.backend_args, self.cache_dir)
            self._api = SharedCOCOPanoptic(store)
        return self._api

    @_coco_api.setter
    def _coco_api(self, api: Any) -> None:
        self._api = api

    @property
    def categories(self) -> Any:
        """The categories by id."""
        if self._categories is None and self.ann_file:
            self._categories = self._coco_api.cats
        return self._categories

    @categories.setter
    def categories(self, categories: Any) -> None:
        self._categories = categories

    def _look_at_file(self) -> None:
        self._coco_api  # noqa: B018  it stays: ranks need it while they predict

    # ---- evaluation
    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Compare a batch's predictions with the ground truth, as in stock."""
        if self.tmp_dir is None:
            super().process(data_batch, data_samples)
            return
        with StoreCache(self.cache_dir).workplace() as folder:
            self.seg_out_dir = os.path.join(folder, 'results.panoptic')
            try:
                super().process(data_batch, data_samples)
            finally:
                shutil.rmtree(self.seg_out_dir, ignore_errors=True)

    def _collected(self, parts: List[Part], size: int) -> List[Any]:
        return PickledResults.ordered(parts, size)
