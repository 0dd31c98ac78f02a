"""Having the next batch on the device when it is asked for."""

from __future__ import annotations

from typing import Any, ContextManager, Iterable, Iterator, Optional

import torch

from .batch import PackedBatch
from .device import to_device


class Streams:
    """A second stream of a device, for copies, beside the one that computes.

    Args:
        device: one that PyTorch has streams for, as 'cuda'.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, getattr(torch, device.type)
        self.side = self._module.Stream(device)

    @staticmethod
    def are_there(device: torch.device) -> bool:
        """Whether ``device`` has streams."""
        return device.type != 'cpu' and hasattr(getattr(torch, device.type, None), 'Stream')

    def computing(self) -> Any:
        """The stream that computes."""
        return self._module.current_stream(self._device)

    def keep(self, batch: PackedBatch) -> None:
        """Have the second stream done with ``batch`` before its memory is used for anything else."""
        batch.record_stream(self.side)

    def aside(self) -> ContextManager[Any]:
        """What is started in this block is done by the second stream."""
        return self._module.stream(self.side)


class DevicePrefetcher:
    """Iterates over batches, each on the device, and copies the next one while one computes with that before it.

    For :class:`PackedBatch`; any other batch is copied when it is asked for, as a preprocessor would. What is given is
    what ``BaseDataPreprocessor.cast_data`` of MMEngine makes of the batch, which then finds nothing to do. The device
    has two batches at one time, if whoever iterates lets go of one before asking for the next.

    On a CPU batches are passed on, unpacked.

    Args:
        batches: what to iterate over. An error is raised when the batch is asked for that it came instead of.
        device: where to.
        ahead: whether to ask for a batch before it is needed: not if making it depends on what happens until then.
        streams: of the device; None: those of PyTorch, where it has any.
    """

    def __init__(
        self, batches: Iterable[Any], device: Any, ahead: bool = True, streams: Optional[Streams] = None
    ) -> None:
        self._device = torch.device(device)
        if streams is None and ahead and Streams.are_there(self._device):
            streams = Streams(self._device)
        self._batches, self._streams = iter(batches), streams if ahead else None
        self._fetched: Optional[_Fetched] = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._streams is None:
            return _on_device(next(self._batches), self._device)
        fetched, self._fetched = self._fetched or self._fetch(), None
        batch = fetched.take()
        self._fetched = self._fetch()
        return batch

    def _fetch(self) -> _Fetched:
        try:
            return _Fetched(next(self._batches), self._device, self._streams)
        except StopIteration as end:
            return _Failed(end.with_traceback(None))  # its frames would keep the batch that is given now
        except Exception as error:
            return _Failed(error)


class _Fetched:
    """A batch on its way to the device."""

    def __init__(self, batch: Any, device: torch.device, streams: Streams) -> None:
        self._batch, self._device, self._streams, self._copied = batch, device, streams, None
        if isinstance(batch, PackedBatch):
            self._copy()

    def take(self) -> Any:
        """The batch, as soon as the device has it: not the process waits, but the stream that computes."""
        if self._copied is not None:
            self._streams.computing().wait_event(self._copied)
        batch, self._batch = self._batch, None
        return _on_device(batch, self._device)

    def _copy(self) -> None:
        # The memory is of the stream that computes, where that of the batch before the last may have become free; what
        # that stream has to do with it is done when the copy begins. Should nobody ever ask for this batch, its memory
        # must not be used for anything else until the copy is done.
        streams = self._streams
        buffer = torch.empty(self._batch.tensors_nbytes, dtype=torch.uint8, device=self._device)
        streams.side.wait_stream(streams.computing())
        with streams.aside():
            self._batch = self._batch.copied_into(buffer, non_blocking=True)
            streams.keep(self._batch)
            self._copied = streams.side.record_event()


class _Failed:
    """An error instead of a batch."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def take(self) -> Any:
        """Raise it."""
        raise self._error


def _on_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, PackedBatch):
        return batch.to(device, non_blocking=True).unpack()
    return batch if device.type == 'cpu' else to_device(batch, device, non_blocking=True)
