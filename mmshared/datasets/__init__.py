"""Datasets that read their annotations from a memory-mapped store."""

from .coco import SharedCocoDataset

__all__ = ['SharedCocoDataset']
