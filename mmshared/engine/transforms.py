"""The transforms of a dataset, wherever they are."""

from __future__ import annotations

import random
from types import FunctionType, ModuleType
from typing import Any, Iterator, List, Set

import numpy as np
import torch

#: Where wrappers keep the datasets they wrap, and datasets their transforms.
_DATASETS = ('dataset', 'datasets')
_PIPELINES = ('pipeline', 'transforms')
_LEAVES = (str, bytes, int, float, complex, bool, type(None), type, ModuleType, FunctionType, np.ndarray, torch.Tensor)
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)


def walk(dataset: Any) -> Iterator[Any]:
    """All objects that make up the transforms of ``dataset`` and of those it wraps, and their generators; each once.

    Follows attributes, lists, tuples, sets and dicts of transforms; of datasets, which are large, their attributes
    only.
    """
    seen: Set[int] = set()
    for one in _datasets(dataset):
        attributes = getattr(one, '__dict__', {})
        for name in _PIPELINES:
            yield from _parts(attributes.get(name), seen)
        for value in [value for value in attributes.values() if isinstance(value, _GENERATORS)]:
            yield from _parts(value, seen)


def transforms_with_state(dataset: Any) -> List[str]:
    """Names of the classes of transforms of ``dataset`` that keep samples for later ones, as ``CachedMosaic`` does."""
    return sorted({type(thing).__name__ for thing in walk(dataset) if hasattr(thing, 'results_cache')})


def _datasets(dataset: Any) -> Iterator[Any]:
    waiting, seen = [dataset], set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, (list, tuple)):
            waiting += one
        elif one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [getattr(one, name, None) for name in _DATASETS]


def _parts(thing: Any, seen: Set[int]) -> Iterator[Any]:
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _LEAVES) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, (list, tuple, set)):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        else:
            yield one
            waiting += getattr(one, '__dict__', {}).values()
