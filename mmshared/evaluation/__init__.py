"""Metrics that share ground truth between processes, and hold it only while they evaluate."""

from .coco_metric import SharedCocoMetric
from .coco_panoptic_metric import SharedCocoPanopticMetric
from .lvis_metric import SharedLVISMetric

__all__ = ['SharedCocoMetric', 'SharedCocoPanopticMetric', 'SharedLVISMetric']
