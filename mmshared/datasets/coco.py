"""mmdet's datasets of COCO files, with shared annotations."""

from __future__ import annotations

from mmdet.datasets import (
    ADE20KInstanceDataset,
    ADE20KPanopticDataset,
    CityscapesDataset,
    CocoDataset,
    CocoPanopticDataset,
    DeepFashionDataset,
    V3DetDataset,
    iSAIDDataset,
)
from mmdet.registry import DATASETS

from .annotations import SharedAnnotations
from .samples import Filter


@DATASETS.register_module()
class SharedCocoDataset(SharedAnnotations, CocoDataset):
    """``CocoDataset``: see :class:`~.annotations.SharedAnnotations` for its arguments, and what it does."""


@DATASETS.register_module()
class SharedDeepFashionDataset(SharedAnnotations, DeepFashionDataset):
    """``DeepFashionDataset``."""


@DATASETS.register_module()
class SharediSAIDDataset(SharedAnnotations, iSAIDDataset):
    """``iSAIDDataset``."""


@DATASETS.register_module()
class SharedADE20KInstanceDataset(SharedAnnotations, ADE20KInstanceDataset):
    """``ADE20KInstanceDataset``."""


@DATASETS.register_module()
class SharedV3DetDataset(SharedAnnotations, V3DetDataset):
    """``V3DetDataset``, which reads its classes from ``label_file``."""


@DATASETS.register_module()
class SharedCityscapesDataset(SharedAnnotations, CityscapesDataset):
    """``CityscapesDataset``: with ``filter_empty_gt`` it leaves out images of crowds only, too."""

    STANDS_IN_FOR = CityscapesDataset

    def _filter(self) -> Filter:
        return super()._filter()._replace(crowds=False)


@DATASETS.register_module()
class SharedCocoPanopticDataset(SharedAnnotations, CocoPanopticDataset):
    """``CocoPanopticDataset``."""

    LOADED_WHOLE = 'a store has no columns for the segments of a panoptic annotation'


@DATASETS.register_module()
class SharedADE20KPanopticDataset(SharedAnnotations, ADE20KPanopticDataset):
    """``ADE20KPanopticDataset``."""

    LOADED_WHOLE = SharedCocoPanopticDataset.LOADED_WHOLE
