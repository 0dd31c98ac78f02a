"""A packed batch: on its way from a worker, and in the main process."""

from __future__ import annotations

import os
from multiprocessing.reduction import ForkingPickler
from typing import Any, Optional, Tuple, Union

import torch

from .arrivals import Place, claim
from .device import DeviceViews, to_device
from .memory import HAS_MEMORY_WITHOUT_NAMES, OwnMemory, SharedMemoryError
from .packing import Layout, Memory, Packing, PinnedViews, RecordedViews, Views, unpack
from .ring import FREE, ring_of_this_process

#: Batches up to this size, in bytes, travel in the message: a pipe costs less than another look at memory.
INLINE = 250_000


class Parcel:
    """A batch that a worker's ``DataLoader`` sends to the main process, which gets it, or a :class:`PackedBatch`.

    Nothing else can be done with it: its bytes are in memory that is used again as soon as they have been looked at.

    Args:
        batch: what to send.
        unpacked: whether the main process gets the batch itself.

    Raises:
        SharedMemoryError: there is not enough shared memory.
        Exception: whatever pickling raises.
    """

    def __init__(self, batch: Any, unpacked: bool = True) -> None:
        packing = Packing(batch)
        self._layout, self._unpacked = packing.layout, unpacked
        self._pid, self._is_sent = os.getpid(), False
        nbytes = self._layout.nbytes
        self._memory = _shared(nbytes)
        self._bytes = bytearray(nbytes if self._memory is None else 0)
        packing.write(self._bytes if self._memory is None else self._memory.payload(nbytes))

    def send(self) -> Tuple[Any, ...]:
        """What becomes of it, for ``ForkingPickler``."""
        where: Union[bytearray, Place] = self._bytes
        if self._memory is not None:
            if self._is_sent:
                return _sent_twice, ()  # an error here would only be printed, and the main process would wait
            self._is_sent = True
            memory, retired = self._memory, ring_of_this_process().retired
            # One by one, since a thread of the queue's does this, while the next batch may retire more.
            tokens = tuple(retired.pop() for _ in range(len(retired)))
            where = Place(self._pid, memory.fd, memory.nbytes, memory.token, self._layout.nbytes, tokens)
        return receive, (self._layout, where, self._unpacked)

    def __del__(self) -> None:
        if getattr(self, '_memory', None) is not None and not self._is_sent and os.getpid() == self._pid:
            self._memory.state = FREE  # nobody will look at it

    def __reduce__(self) -> Any:
        raise TypeError(
            'a packed batch can only go from a worker to the main process, in a DataLoader. To copy or store what a '
            "collate function returns, use 'pseudo_collate' or 'default_collate' of MMEngine."
        )

    def __getitem__(self, *what: Any) -> Any:
        raise TypeError(
            'this batch is packed, to be sent to the main process. What changes a batch in a worker after it was '
            "collated has to be the 'base' of packed_collate; and where a worker has a loader of its own, that one's "
            "collate function has to be 'pseudo_collate' or 'default_collate' of MMEngine."
        )

    __iter__ = __len__ = __contains__ = __setitem__ = __delitem__ = __getitem__


ForkingPickler.register(Parcel, Parcel.send)


def _sent_twice() -> Any:
    raise RuntimeError('a packed batch can be sent once: what was packed has been overwritten since then')


def receive(layout: Layout, where: Union[bytearray, Place], unpacked: bool) -> Any:
    """What a :class:`Parcel` is when it has arrived.

    Raises:
        SharedMemoryError: its memory is not there any more, or that of a tensor that PyTorch sends itself.
        Exception: whatever unpickling raises.
    """
    memory = claim(where) if isinstance(where, Place) else where
    try:
        return unpack(layout.head, Views(memory, layout.tensors)) if unpacked else PackedBatch(layout, memory)
    except (RuntimeError, FileNotFoundError) as error:
        if 'unable to open shared memory object' not in str(error):
            raise
        raise SharedMemoryError(
            f'A tensor of a batch is gone before it was looked at: {error}. It is of a kind that is not packed, such '
            "as a sparse one, so PyTorch has sent it: with the sharing strategy 'file_system', as a file in /dev/shm. "
            'Something has deleted that file. systemd does so when the user of a job logs out: set RemoveIPC=no in '
            "/etc/systemd/logind.conf, or torch.multiprocessing.set_sharing_strategy('file_descriptor')."
        ) from error


class PackedBatch:
    """A batch whose tensors lie one behind the other, so that one copy takes all of them elsewhere.

    Args:
        layout: of the batch.
        memory: its bytes, which stay as they are while this, or anything unpacked from it, refers to them.
        pinned: uint8 tensor of shape (layout.tensors,) in pinned memory, a copy of their beginning, if there is one.
        on_device: the same on a device.
    """

    def __init__(
        self,
        layout: Layout,
        memory: Memory,
        pinned: Optional[torch.Tensor] = None,
        on_device: Optional[torch.Tensor] = None,
    ) -> None:
        self._layout, self._memory, self._pinned, self._on_device = layout, memory, pinned, on_device
        self._batch: Any = None
        self._is_unpacked = False
        # What PyTorch sends has to be fetched while the worker is alive.
        self._opened = self._open() if layout.needs_sender else None

    def unpack(self) -> Any:
        """The batch that was packed, its arrays views of the memory here; the same one each time.

        On a device, it is what ``BaseDataPreprocessor.cast_data`` of MMEngine would make of the batch: tensors, and
        those of data elements, are there; arrays and whatever else is not for a device are where they were.
        """
        if not self._is_unpacked:
            batch, tensors = self._opened or self._open()
            if self._on_device is not None:
                with DeviceViews(tensors, self._on_device):
                    batch = to_device(batch, self._on_device.device)
            self._batch, self._is_unpacked, self._opened = batch, True, None
        return self._batch

    def pin_memory(self, device: Any = None) -> PackedBatch:
        """This batch with all its tensors in one piece of pinned memory. Arrays of numpy stay, as with PyTorch's.

        Raises:
            RuntimeError: PyTorch's, where there is no device to pin memory for.
        """
        if self._pinned is not None or not self._layout.tensors or self._opened or self._is_unpacked:
            return self
        pinned = torch.empty(self._layout.tensors, dtype=torch.uint8, pin_memory=True)
        pinned.copy_(self._tensors())
        has_arrays = self._layout.nbytes > self._layout.tensors
        return PackedBatch(self._layout, self._memory if has_arrays else b'', pinned)

    def to(self, device: Any, non_blocking: bool = False) -> PackedBatch:
        """This batch with all its tensors in one piece of the device's memory, copied at once.

        Args:
            device: a ``torch.device``, or what names one. The CPU: this batch as it is.
            non_blocking: as for ``torch.Tensor.to``.
        """
        device = torch.device(device)
        if device.type == 'cpu':
            return self
        return self.copied_into(torch.empty(self.tensors_nbytes, dtype=torch.uint8, device=device), non_blocking)

    def copied_into(self, buffer: torch.Tensor, non_blocking: bool = False) -> PackedBatch:
        """This batch with its tensors in ``buffer``, uint8 of shape (``tensors_nbytes``,) on any device."""
        buffer.copy_(self._tensors(), non_blocking=non_blocking)
        batch = PackedBatch(self._layout._replace(needs_sender=False), self._memory, self._pinned, buffer)
        batch._opened = self._opened
        return batch

    @property
    def tensors_nbytes(self) -> int:
        """How many bytes all tensors take together."""
        return self._layout.tensors

    def record_stream(self, stream: Any) -> None:
        """Keep memory on the device from being used for anything else before what ``stream`` has to do now is done."""
        if self._on_device is not None:
            self._on_device.record_stream(stream)

    def _tensors(self) -> torch.Tensor:
        """The bytes of all tensors, uint8 of shape (tensors_nbytes,)."""
        if self._pinned is not None:
            return self._pinned
        if not self.tensors_nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=self.tensors_nbytes)

    def _open(self) -> Tuple[Any, Any]:
        """The batch on the CPU, and its tensors, each with where it begins."""
        if self._pinned is None:
            views = RecordedViews(Views(self._memory, self.tensors_nbytes))
        else:
            views = RecordedViews(PinnedViews(self._memory, self.tensors_nbytes, self._pinned))
        return unpack(self._layout.head, views), views.made


def _shared(nbytes: int) -> Optional[OwnMemory]:
    """Shared memory for a batch; None if it is better sent in the message, or cannot but be."""
    if nbytes <= INLINE or not HAS_MEMORY_WITHOUT_NAMES:
        return None
    try:
        return ring_of_this_process().take(nbytes)
    except OSError:  # no file can be made here: as many batches are held as there may be, or a sandbox forbids it
        return None
