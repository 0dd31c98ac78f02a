"""MMEngine's ``default_collate`` in a worker, whose tensors are stacked only where they are to be in the end.

PyTorch's own stacks each into a new file in shared memory, from where it would have to be copied.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import torch
from mmengine.structures import BaseDataElement
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map


class Stack:
    """What ``torch.stack(tensors)`` would give, for tensors of one shape and type; it is made by :meth:`write`.

    Attributes:
        dtype, shape: of the result.
        nbytes: its size.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        first = tensors[0]
        self._tensors = tensors
        self.dtype = first.dtype
        self.shape: Tuple[int, ...] = (len(tensors), *first.shape)
        self.nbytes = len(tensors) * first.numel() * first.element_size()

    def write(self, memory: Any, offset: int) -> None:
        """Stack the tensors ``offset`` bytes into ``memory``."""
        count = len(self._tensors) * self._tensors[0].numel()
        out = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=offset).view(self.shape)
        torch.stack(self._tensors, out=out)


def stack_later(batch: Sequence[Any]) -> Any:
    """What ``mmengine.dataset.default_collate(batch)`` gives, with a :class:`Stack` wherever that can be."""
    first = batch[0]
    kind = type(first)
    if isinstance(first, (BaseDataElement, str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return kind({key: stack_later([sample[key] for sample in batch]) for key in first})
    if not isinstance(first, Sequence):
        return collate(batch, collate_fn_map=_functions())
    if isinstance(first, tuple) and hasattr(first, '_fields'):
        return kind(*map(stack_later, zip(*batch)))
    if len({len(sample) for sample in batch}) > 1:
        sizes = ', '.join(str(len(sample)) for sample in batch)
        raise RuntimeError(f'the samples of a batch have lists of different lengths in one place: {sizes}')
    parts = list(map(stack_later, zip(*batch)))
    if isinstance(first, tuple):
        return parts
    try:
        return kind(parts)
    except TypeError:  # a sequence that cannot be made of its items, as a range
        return parts


def _stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    first = batch[0]
    if (
        all(type(tensor) is torch.Tensor for tensor in batch)
        and len({(tensor.dtype, tensor.shape, tensor.layout, tensor.device) for tensor in batch}) == 1
        and first.layout is torch.strided
        and first.device.type == 'cpu'
        and first.numel() > 0
        and not any(tensor.requires_grad or tensor.is_quantized or tensor.is_nested for tensor in batch)
    ):
        return Stack(batch)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _functions() -> Dict[Any, Any]:
    """What PyTorch's ``default_collate`` goes by now: programs may add functions, or have their own for tensors."""
    if default_collate_fn_map.get(torch.Tensor) is not collate_tensor_fn:
        return default_collate_fn_map
    return {**default_collate_fn_map, torch.Tensor: _stack}
