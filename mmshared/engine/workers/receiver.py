"""What becomes of a batch between its arrival and the model."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Union

import torch
from mmengine.model import BaseDataPreprocessor, is_model_wrapper

from mmshared.parallel import DevicePrefetcher, PackedBatch, to_device
from mmshared.parallel.collation import without_unpacking
from mmshared.parallel.data_container import holds_data_containers

Choice = Union[bool, str]


class Receiver:
    """Puts batches where the model computes, before its preprocessor would.

    Args:
        runner: whose model computes.
        scatter: True, False or 'auto', which is True but where the model's preprocessor has a way of its own to move
            data (``cast_data``), or none. On a CPU, 'auto' only takes data out of DataContainers.
        prefetch: True, False or 'auto', which is True: copy the next batch to the device while the model computes.

    Raises:
        ValueError: for anything else.
    """

    def __init__(self, runner: Any, scatter: Choice = 'auto', prefetch: Choice = 'auto') -> None:
        for name, choice in ('scatter', scatter), ('prefetch_to_device', prefetch):
            if not isinstance(choice, bool) and choice != 'auto':
                raise ValueError(f"{name} is {choice!r}, should be True, False or 'auto'")
        self._runner, self._scatter, self._prefetch = runner, scatter, bool(prefetch)

    def collate(self, collate_fn: Any) -> Any:
        """``collate_fn`` for a worker: with :meth:`receive` nobody else unpacks batches."""
        return collate_fn if self._device() is None else without_unpacking(collate_fn)

    def receive(self, batches: Iterator[Any], ahead: bool = False) -> Iterator[Any]:
        """``batches`` of workers, each when it is asked for, where the model computes.

        Args:
            batches: collated by :meth:`collate`, or as they are.
            ahead: whether a batch may be asked for before it is needed.
        """
        device = self._device()
        if device is not None:
            return DevicePrefetcher(batches, device, ahead=ahead and self._prefetch)
        return batches if self._scatter is False else map(self._opened, batches)

    def _device(self) -> Optional[torch.device]:
        """Where to put batches; None: they stay on the CPU, or that is left to the model."""
        if self._scatter is False:
            return None
        model = getattr(self._runner, 'model', None)
        model = model.module if is_model_wrapper(model) else model
        preprocessor = getattr(model, 'data_preprocessor', None)
        device = getattr(preprocessor, 'device', None)
        own = getattr(type(preprocessor), 'cast_data', None) is not BaseDataPreprocessor.cast_data
        if device is None or (own and self._scatter == 'auto'):
            return None
        device = torch.device(device)
        return None if device.type == 'cpu' else device

    @staticmethod
    def _opened(batch: Any) -> Any:
        if isinstance(batch, PackedBatch):  # the model has left its device since workers were started
            batch = batch.unpack()
        return to_device(batch, torch.device('cpu')) if holds_data_containers(batch) else batch
