"""Datasets that read their annotations from a memory-mapped store, and the transform that loads them as arrays."""

from .coco import SharedCocoDataset
from .loading import LoadSharedAnnotations

__all__ = ['LoadSharedAnnotations', 'SharedCocoDataset']
