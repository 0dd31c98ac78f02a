"""A batch on a device, as a preprocessor would put it there, but from one copy.

MMEngine copies field by field and sample by sample. What ends on the device, and what does not, is decided by many:
data elements, boxes, whatever has a ``to``. So they all are asked as before, and only where one of them copies a tensor
that has been copied already, it gets a view of that.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

import torch
from mmengine.structures import BaseDataElement
from torch.overrides import TorchFunctionMode

from .data_container import is_data_container
from .packing import view_of_bytes
from .scatter import scatter


class DeviceViews(TorchFunctionMode):
    """In this block ``tensor.to(device)`` copies nothing where the device has the tensor's bytes.

    Args:
        made: tensors of the CPU, each with where its bytes begin in ``buffer``, by identity.
        buffer: uint8, of one dimension.
    """

    def __init__(self, made: Dict[int, Tuple[torch.Tensor, int]], buffer: torch.Tensor) -> None:
        super().__init__()
        self._left, self._buffer = dict(made), buffer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What PyTorch calls instead of ``func``."""
        kwargs = kwargs or {}
        if func is torch.Tensor.to and self._is_plain(args[1:], kwargs):
            # One view of each: to copy a tensor twice gives two.
            tensor, offset = self._left.pop(id(args[0]), (None, 0))
            if tensor is not None and not _is_expanded(tensor):
                return view_of_bytes(self._buffer, offset, tensor.dtype, tuple(tensor.shape), tensor.stride())
        return func(*args, **kwargs)

    def _is_plain(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Whether ``to`` is asked for the device, and nothing else."""
        further = {name: value for name, value in kwargs.items() if name not in ('device', 'non_blocking')}
        device = args[0] if args else kwargs.get('device')
        if further or len(args) > 1 or not isinstance(device, (torch.device, str, int)):
            return False
        device = torch.device(device)
        # 'cuda' is the current one.
        return device == self._buffer.device or (device.index is None and device.type == self._buffer.device.type)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements are one in memory: on the device each is to be one of its own."""
    return any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride()))


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """What MMEngine's ``BaseDataPreprocessor.cast_data`` gives; of a DataContainer, what is in it for one device.

    Args:
        batch: whatever a collate function returned.
        device: where to.
        non_blocking: as for ``torch.Tensor.to``.
    """
    if isinstance(batch, (torch.Tensor, BaseDataElement)):
        return batch.to(device, non_blocking=non_blocking)
    if isinstance(batch, Mapping):
        return {key: to_device(batch[key], device, non_blocking) for key in batch}
    if isinstance(batch, (str, bytes)) or batch is None:
        return batch
    if isinstance(batch, Sequence):
        parts = (to_device(part, device, non_blocking) for part in batch)
        return type(batch)(*parts) if hasattr(batch, '_fields') and isinstance(batch, tuple) else type(batch)(parts)
    return scatter(batch, [device])[0] if is_data_container(batch) else batch
