"""The part of the package ``panopticapi`` that mmdet's panoptic metric uses, for machines without it.

It is on no package index, so it often is not there; stock and ours then both run on this. Interface: https://github.com/cocodataset/panopticapi;
panoptic quality as defined in "Panoptic Segmentation" (Kirillov et al., 2019): PQ = sum of IoU / (TP + FP/2 + FN/2).
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections import defaultdict
from typing import Any, Dict, Optional, Tuple

import numpy as np

VOID, OFFSET = 0, 1 << 24


class Counts:
    """Matches of one category."""

    def __init__(self) -> None:
        self.iou, self.tp, self.fp, self.fn = 0.0, 0, 0, 0

    def __iadd__(self, other: Counts) -> Counts:
        for name in ('iou', 'tp', 'fp', 'fn'):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class PQStat:
    """Matches by category."""

    def __init__(self) -> None:
        self.pq_per_cat = defaultdict(Counts)

    def __getitem__(self, category: Any) -> Counts:
        return self.pq_per_cat[category]

    def __iadd__(self, other: PQStat) -> PQStat:
        for category, counts in other.pq_per_cat.items():
            self.pq_per_cat[category] += counts
        return self

    def pq_average(self, categories: Dict[Any, dict], isthing: Optional[bool]) -> Tuple[dict, dict]:
        """Mean qualities over the categories that occur, and those of each."""
        each, met = {}, []
        for category, about in categories.items():
            if isthing is not None and (about['isthing'] == 1) != isthing:
                continue
            c = self.pq_per_cat[category]
            size = c.tp + c.fp / 2 + c.fn / 2
            values = {'pq': c.iou / size, 'sq': c.iou / c.tp if c.tp else 0, 'rq': c.tp / size} if size else None
            each[category] = values or {'pq': 0.0, 'sq': 0.0, 'rq': 0.0}
            met += [values] if values else []
        mean = {name: sum(values[name] for values in met) / len(met) for name in ('pq', 'sq', 'rq')}
        return {**mean, 'n': len(met)}, each


def rgb2id(color: np.ndarray) -> np.ndarray:
    """Segment ids, shape (H, W), of a picture, uint8, shape (H, W, 3)."""
    return color.astype(np.int32) @ np.array([1, 1 << 8, 1 << 16], np.int32)


def id2rgb(ids: np.ndarray) -> np.ndarray:
    """The picture of segment ids."""
    return np.stack([ids >> shift & 255 for shift in (0, 8, 16)], axis=-1).astype(np.uint8)


def install() -> None:
    """Stand in for ``panopticapi``, unless that is installed. Before mmdet's metrics are imported."""
    if importlib.util.find_spec('panopticapi') is not None:
        return
    package = types.ModuleType('panopticapi')
    package.__spec__ = importlib.util.spec_from_loader('panopticapi', None)
    parts = {
        'evaluation': {'VOID': VOID, 'OFFSET': OFFSET, 'PQStat': PQStat},
        'utils': {'rgb2id': rgb2id, 'id2rgb': id2rgb},
    }
    sys.modules['panopticapi'] = package
    for name, content in parts.items():
        module = types.ModuleType(f'panopticapi.{name}')
        module.__dict__.update(content)
        setattr(package, name, module)
        sys.modules[module.__name__] = module
