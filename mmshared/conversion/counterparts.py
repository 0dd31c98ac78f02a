"""Which type stands in for which: the one table of swaps."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional

from mmengine import registry as registries

_DATASETS = {
    'CocoDataset': 'SharedCocoDataset',
    'LVISV05Dataset': 'SharedLVISV05Dataset',
    'LVISV1Dataset': 'SharedLVISV1Dataset',
    'Objects365V1Dataset': 'SharedObjects365V1Dataset',
    'Objects365V2Dataset': 'SharedObjects365V2Dataset',
    'V3DetDataset': 'SharedV3DetDataset',
    'CocoPanopticDataset': 'SharedCocoPanopticDataset',
    'CityscapesDataset': 'SharedCityscapesDataset',
    'DeepFashionDataset': 'SharedDeepFashionDataset',
    'iSAIDDataset': 'SharediSAIDDataset',
    'ADE20KInstanceDataset': 'SharedADE20KInstanceDataset',
    'ADE20KPanopticDataset': 'SharedADE20KPanopticDataset',
    'YouTubeVISDataset': 'SharedYouTubeVISDataset',
    'MOTChallengeDataset': 'SharedMOTChallengeDataset',
}
_METRICS = {
    'CocoMetric': 'SharedCocoMetric',
    'CocoPanopticMetric': 'SharedCocoPanopticMetric',
    'LVISMetric': 'SharedLVISMetric',
    'LVISFixedAPMetric': 'SharedLVISFixedAPMetric',
    'CocoVideoMetric': 'SharedCocoVideoMetric',
    'OVCocoMetric': 'SharedOVCocoMetric',
    'CocoOccludedSeparatedMetric': 'SharedCocoOccludedSeparatedMetric',
    'DODCocoMetric': 'SharedDODCocoMetric',
    'RefExpMetric': 'SharedRefExpMetric',
    'gRefCOCOMetric': 'SharedgRefCOCOMetric',
}
_LOOPS = {
    'EpochBasedTrainLoop': 'LeanTrainLoop',
    'IterBasedTrainLoop': 'LeanIterTrainLoop',
    'ValLoop': 'LeanValLoop',
    'TestLoop': 'LeanTestLoop',
}

#: What is no swap of one type for another: a wrapper, a collate function around another one, and a hook of our own.
WRAPPER, COLLATE, HOOK = 'SharedDataset', 'packed_collate', 'NodeMemoryHook'


class Swap(NamedTuple):
    """One line of the table.

    Attributes:
        registry: name of MMEngine's registry that the types are built from.
        stock: the stock type, with the scope that it is registered in.
        shared: what stands in for it.
    """

    registry: str
    stock: str
    shared: str


TABLE: List[Swap] = [
    *(Swap('DATASETS', f'mmdet.{stock}', f'mmdet.{shared}') for stock, shared in _DATASETS.items()),
    Swap('TRANSFORMS', 'mmdet.LoadAnnotations', 'mmdet.LoadSharedAnnotations'),
    *(Swap('METRICS', f'mmdet.{stock}', f'mmdet.{shared}') for stock, shared in _METRICS.items()),
    *(Swap('LOOPS', f'mmengine.{stock}', f'mmengine.{shared}') for stock, shared in _LOOPS.items()),
]


class Counterparts:
    """The lines of :data:`TABLE` whose types are registered in this process, as classes.

    Attributes:
        swaps: these lines.
        shared: what stands in for a stock class.
        stock: what one of ours stands in for.
        wrapper: ``SharedDataset``, or None where it is not registered.
    """

    def __init__(self) -> None:
        self.swaps: List[Swap] = []
        self.shared: Dict[Any, Any] = {}
        self.stock: Dict[Any, Any] = {}
        for swap in TABLE:
            stock, shared = registered(swap.registry, swap.stock), registered(swap.registry, swap.shared)
            if stock is not None and shared is not None:
                self.swaps.append(swap)
                self.shared[stock], self.stock[shared] = shared, stock
        self.wrapper = registered('DATASETS', f'mmdet.{WRAPPER}') or registered('DATASETS', f'mmengine.{WRAPPER}')


def is_shared(component: Any) -> bool:
    """Whether a class or function is one of ours or, like a subclass of the user's, derived from one."""
    modules = (getattr(base, '__module__', None) for base in getattr(component, '__mro__', (component,)))
    return any(str(module).partition('.')[0] == 'mmshared' for module in modules)


def registered(registry: str, name: str) -> Optional[Any]:
    """What ``name``, with its scope, is in that registry of MMEngine's; None if there is no such thing."""
    try:
        return getattr(registries, registry).get(name)
    except RuntimeError:  # what `get` raises of a name that looks like a module's
        return None


@cache
def own_arguments(shared: type, stock: type) -> FrozenSet[str]:
    """Names of the arguments that ``shared`` takes and the class that it stands in for does not."""
    ours = (cls for cls in shared.__mro__ if cls not in stock.__mro__)
    return frozenset(_arguments(ours)) - frozenset(_arguments(iter(stock.__mro__)))


def _arguments(classes: Iterator[type]) -> Iterator[str]:
    for cls in classes:
        if '__init__' in vars(cls) and cls is not object:
            for parameter in inspect.signature(cls.__init__).parameters.values():
                if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    yield parameter.name
