"""Results of pipelines as plain Python, so that :func:`.oracle.difference` can compare them strictly."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from typing import Any, Callable, List, Optional

import numpy as np
import torch
from mmdet.structures.bbox import BaseBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.structures import BaseDataElement

from mmshared.datasets.deferred import DeferredInstances, LazyResults

from .oracle import attempt, difference


class SetShape:
    """What LoadImageFromFile says of the image, without an image."""

    def __call__(self, results: dict) -> dict:
        height, width = results['height'], results['width']
        usable = all(type(side) is int and 0 < side < 2000 for side in (height, width))
        results['ori_shape'] = results['img_shape'] = (height, width) if usable else (20, 30)
        return results


def is_deferred(results: dict) -> bool:
    """Whether the storage of ``results`` holds no list of instances."""
    return type(results) is LazyResults and type(dict.get(results, 'instances')) is DeferredInstances


def plain(value: Any) -> Any:
    """``value`` in lists, tuples, dicts and numbers: types, dtypes, shapes and bits of all arrays in it.

    A :class:`LazyResults` is as good as a dict here; what it holds is not.
    """
    if type(value) in (dict, LazyResults):
        return {key: plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, np.ndarray):
        return 'ndarray', value.dtype.str, value.shape, value.tobytes(), value.flags.writeable, value.flags.c_contiguous
    if isinstance(value, torch.Tensor):
        return 'tensor', str(value.dtype), plain(value.numpy())
    if isinstance(value, BaseBoxes):
        return type(value).__name__, plain(vars(value))
    if isinstance(value, (BitmapMasks, PolygonMasks)):
        return type(value).__name__, value.height, value.width, plain(value.masks)
    if isinstance(value, BaseDataElement):
        parts = {**dict(value.metainfo_items()), **dict(value.items())}
        return type(value).__name__, {key: plain(parts[key]) for key in sorted(parts)}
    return value


def items(dataset: Any, seed: int = 0) -> List[Any]:
    """What the dataset's pipeline makes of each sample, as :func:`plain`; an exception stands for itself."""
    found = []
    for index in range(len(dataset)):
        random.seed(seed + index)
        np.random.seed(seed + index)
        torch.manual_seed(seed + index)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter('ignore')  # numbers beyond float32: both warn, or one
            found.append(attempt(lambda i=index: plain(dataset[i])))
    return found


def compare_items(stock: Any, ours: Any, same_error: Callable[[Exception, Exception], bool]) -> Optional[str]:
    """Say where the results of two datasets first differ; ``same_error`` judges a pair of exceptions."""
    pairs = list(zip(items(stock), items(ours)))
    assert len(pairs) == len(stock) == len(ours)
    for index, (a, b) in enumerate(pairs):
        if isinstance(a, Exception) and isinstance(b, Exception):
            if not same_error(a, b):
                return f'[{index}]: {a!r} != {b!r}'
        elif found := difference(a, b, f'[{index}]'):
            return found
    return None
