"""Metrics that share ground truth between processes, and hold it only while they evaluate."""

from .coco_metric import SharedCocoMetric

__all__ = ['SharedCocoMetric']
