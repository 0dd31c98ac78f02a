"""Datasets that every process of a node shares, and the transform that loads annotations as arrays."""

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
from .shared import SharedDataset
from .video import SharedMOTChallengeDataset, SharedYouTubeVISDataset

__all__ = [
    'LoadSharedAnnotations',
    'SharedADE20KInstanceDataset',
    'SharedADE20KPanopticDataset',
    'SharedAnnotations',
    'SharedCityscapesDataset',
    'SharedCocoDataset',
    'SharedCocoPanopticDataset',
    'SharedDataset',
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
