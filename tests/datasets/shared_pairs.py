"""A dataset made by stock and by SharedDataset, and whether a caller can tell them apart."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, Optional

import numpy as np
from mmdet.registry import DATASETS
from mmengine.dataset import Compose
from mmengine.registry import DATASETS as ALL_DATASETS

from .oracle import attempt

OWN = {'_sharing', 'data_bytes', 'data_address', 'data_list'}


def build(config: Dict[str, Any], seed: int = 0) -> Any:
    """Build from a config, with NumPy's generator in a known state."""
    np.random.seed(seed)
    return DATASETS.build(config)


def sharing(config: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    """Return the config of the same dataset, shared."""
    return {'type': 'SharedDataset', 'dataset': config, **more}


def import_other(folder: Path, monkeypatch: Any) -> Any:
    """Import ``other_package`` from ``folder``, for this test only."""
    monkeypatch.setattr(ALL_DATASETS, '_module_dict', dict(ALL_DATASETS.module_dict))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, 'other_package', raising=False)
    return importlib.import_module('other_package')


def unlike(a: Any, b: Any, where: str = '') -> Optional[str]:
    """Return None if the two are the same (types, arrays' dtypes and dict orders included), else where they differ."""
    if type(a) is not type(b):
        return f'{where}: {type(a)} and {type(b)}'
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == 'f')
        return None if same else f'{where}: {a} and {b}'
    if isinstance(a, dict):
        return unlike(list(a), list(b), f'{where} keys') or _first(unlike(a[k], b[k], f'{where}[{k!r}]') for k in a)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f'{where}: {len(a)} and {len(b)} items'
        return _first(unlike(x, y, f'{where}[{i}]') for i, (x, y) in enumerate(zip(a, b)))
    if isinstance(a, Compose):
        return unlike(repr(a), repr(b), where)
    return None if a == b else f'{where}: {a!r} and {b!r}'


def unlike_datasets(stock: Any, ours: Any) -> Optional[str]:
    """Return None if the datasets show a caller the same, else where they first differ."""
    for dataset in (stock, ours):
        np.random.seed(0)  # they may be loaded only now
        count = len(dataset)
    names = [sorted(set(vars(d)) - OWN) for d in (stock, ours)]
    return (
        unlike(*names, 'attributes')
        or _first(unlike(getattr(stock, n), getattr(ours, n), n) for n in names[0])
        or unlike(stock.metainfo, ours.metainfo, 'metainfo')
        or unlike(len(stock), count, 'len')
        or unlike(hasattr(stock, 'data_bytes'), hasattr(ours, 'data_bytes'), 'data_bytes')
        or (hasattr(stock, 'data_bytes') and unlike(stock.data_address, np.array(ours.data_address), 'data_address'))
        or unlike(*(list(getattr(d, 'data_list', [])) for d in (stock, ours)), 'data_list')
        or _first(
            unlike(*(_result(lambda d=d, i=i: d.get_data_info(i)) for d in (stock, ours)), f'get_data_info({i})')
            for i in [*range(count), *range(-count, 0), count, -count - 1]
        )
        or _first(
            unlike(*(_result(lambda d=d, i=i: d.get_cat_ids(i)) for d in (stock, ours)), f'get_cat_ids({i})')
            for i in range(count)
        )
        or _first(unlike(stock[i], ours[i], f'[{i}]') for i in range(count))
        or None
    )


def _result(call: Any) -> Any:
    result = attempt(call)
    return type(result) if isinstance(result, Exception) else result


def _first(differences: Iterable[Optional[str]]) -> Optional[str]:
    return next((difference for difference in differences if difference), None)
