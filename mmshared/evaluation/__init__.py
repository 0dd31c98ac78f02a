"""Evaluation without a second copy of the annotations: ``COCO``, and the metrics that need ground truth."""

from .coco import SharedCOCO
from .coco_metric import SharedCocoMetric
from .coco_panoptic_metric import SharedCocoPanopticMetric
from .coco_style_metrics import (
    SharedCocoOccludedSeparatedMetric,
    SharedCocoVideoMetric,
    SharedDODCocoMetric,
    SharedgRefCOCOMetric,
    SharedOVCocoMetric,
    SharedRefExpMetric,
)
from .lvis_fixed_ap_metric import SharedLVISFixedAPMetric
from .lvis_metric import SharedLVISMetric

__all__ = [
    'SharedCOCO',
    'SharedCocoMetric',
    'SharedCocoOccludedSeparatedMetric',
    'SharedCocoPanopticMetric',
    'SharedCocoVideoMetric',
    'SharedDODCocoMetric',
    'SharedLVISFixedAPMetric',
    'SharedLVISMetric',
    'SharedOVCocoMetric',
    'SharedRefExpMetric',
    'SharedgRefCOCOMetric',
]
