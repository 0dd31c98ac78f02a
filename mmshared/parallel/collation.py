"""``packed_collate``: a collate function after which a batch crosses from worker to main process in one piece."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, Sequence, Union

from mmengine.dataset import default_collate
from mmengine.registry import FUNCTIONS
from torch.utils.data import get_worker_info

from .batch import Parcel
from .stacking import stack_later

Base = Union[str, Dict[str, Any], Callable[[Sequence[Any]], Any]]


@FUNCTIONS.register_module()
def packed_collate(data_batch: Sequence[Any], base: Base = 'pseudo_collate', unpacked: bool = True) -> Any:
    """Collate samples so that a worker hands on one piece of memory for all their tensors and arrays.

    Where there is no worker nothing is to be handed on: the batch is that of ``base``.

    Args:
        data_batch: the samples.
        base: the function that makes the batch: 'pseudo_collate', 'default_collate' or another one of MMEngine's
            registry ``FUNCTIONS``, a dict with its ``type`` and arguments, or the function itself.
        unpacked: whether the main process gets the batch. False: it gets a
            :class:`~mmshared.parallel.PackedBatch`, to be copied to a device in one piece.

    Returns:
        In the main process, what ``base`` returned. In a worker, what its ``DataLoader`` is to send there.

    Raises:
        KeyError: ``base`` is not registered.
        SharedMemoryError: there is not enough shared memory.
        Exception: what ``base`` raises, and what pickling raises of things that are not packed.
    """
    is_worker = get_worker_info() is not None
    batch = _function(base, is_worker)(data_batch)
    return Parcel(batch, unpacked) if is_worker else batch


def without_unpacking(collate_fn: Any) -> Any:
    """``collate_fn`` so that the main process gets packed batches, if it is ``packed_collate``, perhaps with arguments.

    Anything else is returned as it is.
    """
    function = collate_fn.func if isinstance(collate_fn, partial) else collate_fn
    return partial(collate_fn, unpacked=False) if function is packed_collate else collate_fn


def _function(base: Base, is_worker: bool) -> Callable[[Sequence[Any]], Any]:
    if isinstance(base, dict):
        arguments = dict(base)
        return partial(_function(arguments.pop('type'), is_worker), **arguments)
    if isinstance(base, str):
        name, base = base, FUNCTIONS.get(base)
        if base is None:
            raise KeyError(
                f"packed_collate(base={name!r}): there is no such function in MMEngine's registry FUNCTIONS of this "
                'process. Is it spelt as it was registered? With spawn or forkserver, a worker may not have imported '
                "your module: then write base='module.function'."
            )
    return stack_later if base is default_collate and is_worker else base
