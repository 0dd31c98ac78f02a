"""CocoPanopticMetric whose ground truth is parsed once per node, and mapped by every rank."""

from __future__ import annotations

import shutil
from typing import Any, Optional, Sequence

from mmdet.evaluation.metrics import CocoPanopticMetric
from mmdet.registry import METRICS

from mmshared.annotations.cache import Scratchpad
from mmshared.datasets.remote import open_panoptic_annotations

from .gathering import GatheredResults
from .panoptic_api import SharedCOCOPanoptic


@METRICS.register_module()
class SharedCocoPanopticMetric(GatheredResults, CocoPanopticMetric):
    """mmdet's ``CocoPanopticMetric``, equal in its results; what it costs does not grow with ranks.

    The annotation file is parsed once per node when the first image is compared; ranks map it and decode the segments
    of the image at hand. Results come to rank 0 over the process group, so no folder has to be shared between nodes.
    The pictures that stock compares through files lie in the cache's folder for as long as their batch takes, and go
    if the process is killed. With ``outfile_prefix`` they are kept, as in stock.

    Args:
        *args: as for ``CocoPanopticMetric``.
        cache_dir: folder of the stores; see :class:`~mmshared.annotations.StoreCache`.
        **kwargs: as for ``CocoPanopticMetric``.

    Raises:
        RuntimeError: the package ``panopticapi`` is not installed.
        FileNotFoundError: there is no such local annotation file.
    """
