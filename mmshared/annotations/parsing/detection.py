"""Which annotations mmdet's ``CocoDataset`` keeps, on columns and on a single record.

The rule is that of ``CocoDataset.parse_data_info`` (mmdet 3.x): not ``ignore``, a box that overlaps the image, area
above zero, width and height of at least one pixel, and a category that is asked for. All but the last is the same for
every data set that uses the file, so it is worked out once, when the store is built.
"""

from __future__ import annotations

from typing import Any, Dict

import numpy as np


def kept(boxes: np.ndarray, area: np.ndarray, width: np.ndarray, height: np.ndarray) -> np.ndarray:
    """Which of N annotations are kept, ``ignore`` and category aside.

    Args:
        boxes: float64, shape (N, 4): x, y, width, height in pixels.
        area: float64, shape (N,).
        width, height: size of each annotation's image in pixels, shape (N,).

    Returns:
        bool, shape (N,).
    """
    x, y, w, h = boxes.T
    with np.errstate(over='ignore', invalid='ignore', under='ignore'):
        inside_w = np.maximum(0, np.minimum(x + w, width) - np.maximum(x, 0))
        inside_h = np.maximum(0, np.minimum(y + h, height) - np.maximum(y, 0))
        return (inside_w * inside_h != 0) & (area > 0) & (w >= 1) & (h >= 1)


def is_kept(annotation: Dict[str, Any], width: Any, height: Any) -> bool:
    """The same for one record with values of any type, ``ignore`` included; raises what such values raise."""
    if annotation.get('ignore', False):
        return False
    x, y, w, h = annotation['bbox']
    inside_w = max(0, min(x + w, width) - max(x, 0))
    inside_h = max(0, min(y + h, height) - max(y, 0))
    if inside_w * inside_h == 0:
        return False
    return not (annotation['area'] <= 0 or w < 1 or h < 1)
