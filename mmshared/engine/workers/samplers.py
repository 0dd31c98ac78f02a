"""Whether it matters when a sampler is asked."""

from __future__ import annotations

from typing import Any

#: Samplers of PyTorch, MMEngine and mmdet that draw from a generator of their own, or not at all, unless the class is
#: named here.
_OWN_GENERATOR = ('mmengine', 'mmdet')
_GLOBAL_GENERATOR = ('GroupMultiSourceSampler',)
_QUIET = ('SequentialSampler', 'DistributedSampler')


def draws_from_main_process(sampler: Any) -> bool:
    """Whether iterating over ``sampler`` may move the main process's random state, so that the moment matters."""
    kind, inner = type(sampler), getattr(sampler, 'sampler', None)
    package = kind.__module__.split('.')[0]
    if kind.__name__ in _GLOBAL_GENERATOR:
        return True
    if package in _OWN_GENERATOR or (package == 'torch' and kind.__name__ == 'BatchSampler'):
        return inner is not None and draws_from_main_process(inner)
    return not (package == 'torch' and kind.__name__ in _QUIET)
