"""Datasets that every process of a node shares, and the transform that loads annotations as arrays."""

from .coco import SharedCocoDataset
from .loading import LoadSharedAnnotations
from .shared import SharedDataset

__all__ = ['LoadSharedAnnotations', 'SharedCocoDataset', 'SharedDataset']
