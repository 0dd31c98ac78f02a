"""Datasets that read their annotations from a memory-mapped store, and the transform that loads them as arrays."""

from .annotations import SharedAnnotations
from .coco import (
    SharedADE20KInstanceDataset,
    SharedADE20KPanopticDataset,
    SharedCityscapesDataset,
    SharedCocoDataset,
    SharedCocoPanopticDataset,
    SharedDeepFashionDataset,
    SharediSAIDDataset,
    SharedV3DetDataset,
)
from .loading import LoadSharedAnnotations
from .lvis import SharedLVISDataset, SharedLVISV05Dataset, SharedLVISV1Dataset
from .objects365 import SharedObjects365V1Dataset, SharedObjects365V2Dataset
from .video import SharedMOTChallengeDataset, SharedYouTubeVISDataset

__all__ = [
    'LoadSharedAnnotations',
    'SharedADE20KInstanceDataset',
    'SharedADE20KPanopticDataset',
    'SharedAnnotations',
    'SharedCityscapesDataset',
    'SharedCocoDataset',
    'SharedCocoPanopticDataset',
    'SharedDeepFashionDataset',
    'SharediSAIDDataset',
    'SharedLVISDataset',
    'SharedLVISV05Dataset',
    'SharedLVISV1Dataset',
    'SharedMOTChallengeDataset',
    'SharedObjects365V1Dataset',
    'SharedObjects365V2Dataset',
    'SharedV3DetDataset',
    'SharedYouTubeVISDataset',
]
