"""Evaluation without a second copy of the annotations."""

from .coco import SharedCOCO

__all__ = ['SharedCOCO']
