"""Metrics that share ground truth between processes, and hold it only while they evaluate."""

from .coco_metric import SharedCocoMetric
from .lvis_metric import SharedLVISMetric

__all__ = ['SharedCocoMetric', 'SharedLVISMetric']
