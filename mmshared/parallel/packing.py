"""Taking a batch apart into one run of bytes and the little that is left, and putting it together again.

What is left is a pickle of the batch in which each array is a note on where its bytes are. So whatever a batch is
nested in comes out as it went in, and one object in two places is one object again. Unlike in what PyTorch sends, two
tensors never share memory afterwards, and a view does not bring along all that it is a view of.
"""

from __future__ import annotations

import io
import math
import pickle
from functools import cache
from multiprocessing.reduction import ForkingPickler
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import numpy as np
import torch

from .stacking import Stack

#: Buffers whose bytes can be read and written: a bytearray, an array of ctypes.
Memory = Any
Shape = Tuple[int, ...]
#: Up to this size, in bytes, tensors and arrays own their memory in the end: metrics keep such things of every batch.
SMALL = 16_384
_ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to where the next array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Layout(NamedTuple):
    """What there is to know about a batch's bytes.

    Attributes:
        head: the pickle of everything else.
        tensors: how many bytes tensors take, at the beginning; arrays of numpy, which never go to a device, follow.
        nbytes: all of it.
        needs_sender: whether the pickle can only be read while who made it is alive: PyTorch sends some tensors itself.
    """

    head: bytes
    tensors: int
    nbytes: int
    needs_sender: bool


class Packing:
    """A batch taken apart, its bytes still where they were.

    Tensors of the CPU are packed, and arrays of numpy that are not small. Sparse, quantized and nested tensors,
    tensors of a device or with a gradient, arrays of objects or in another machine's byte order, and subclasses of both
    stay in the pickle, as :mod:`torch.multiprocessing` has them.

    Args:
        batch: what a collate function returned.

    Attributes:
        layout: of what :meth:`write` writes.

    Raises:
        Exception: whatever pickling raises, where a ``DataLoader`` would only print it and wait forever.
    """

    def __init__(self, batch: Any) -> None:
        file = io.BytesIO()
        packer = _Packer(file)
        packer.dump(batch)
        self._tensors, self._arrays = packer.tensors, packer.arrays
        tensors = aligned(packer.tensors.nbytes)
        nbytes = tensors + packer.arrays.nbytes
        self.layout = Layout(file.getvalue(), tensors, nbytes, packer.needs_sender)

    def write(self, memory: Memory) -> None:
        """Write the bytes of all arrays into ``memory``, which has room for ``layout.nbytes`` of them."""
        self._tensors.write(memory, 0)
        self._arrays.write(memory, self.layout.tensors)


class Views:
    """Arrays over packed bytes, each with a storage of its own, which keeps ``memory`` alive; small tensors are copies.

    Args:
        memory: what was written.
        tensors: of the layout: where the bytes of arrays begin.
    """

    def __init__(self, memory: Memory, tensors: int) -> None:
        self._memory, self._bytes, self._arrays_at = memory, memoryview(memory).cast('B'), tensors

    def tensor(self, offset: int, dtype: torch.dtype, shape: Shape, strides: Optional[Shape] = None) -> torch.Tensor:
        """The tensor at ``offset``, dense in the order of its dimensions unless ``strides`` say otherwise."""
        count = elements(shape, strides)
        if not count:
            return torch.empty(shape, dtype=dtype)
        memory, nbytes = self._memory, count * _itemsize(dtype)
        if nbytes <= SMALL:
            memory, offset = bytearray(self._bytes[offset : offset + nbytes]), 0
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides)

    def array(self, offset: int, dtype: np.dtype, shape: Shape, order: str) -> np.ndarray:
        """The array that begins ``offset`` bytes behind the tensors."""
        return np.ndarray(shape, dtype, self._memory, self._arrays_at + offset, order=order)


class PinnedViews(Views):
    """As :class:`Views`, but tensors are parts of one: of pinned memory PyTorch knows when a copy is done, by storage.

    Args:
        memory, tensors: as for :class:`Views`; of ``memory``, tensors are not read.
        pinned: uint8 tensor of shape (tensors,).
    """

    def __init__(self, memory: Memory, tensors: int, pinned: torch.Tensor) -> None:
        super().__init__(memory, tensors)
        self._pinned = pinned

    def tensor(self, offset: int, dtype: torch.dtype, shape: Shape, strides: Optional[Shape] = None) -> torch.Tensor:
        """See the parent."""
        nbytes = elements(shape, strides) * _itemsize(dtype)
        flat = self._pinned[offset : offset + nbytes].view(dtype)
        # With .data autograd counts changes of each by itself.
        return (flat.view(shape) if strides is None else flat.as_strided(shape, strides, flat.storage_offset())).data


class RecordedViews:
    """Views that are remembered.

    Attributes:
        made: by identity, tensors and where the bytes of each begin.
    """

    def __init__(self, views: Views) -> None:
        self._views, self.array = views, views.array
        self.made: Dict[int, Tuple[torch.Tensor, int]] = {}

    def tensor(self, offset: int, *what: Any) -> torch.Tensor:
        """See :class:`Views`."""
        tensor = self._views.tensor(offset, *what)
        self.made[id(tensor)] = tensor, offset
        return tensor


def elements(shape: Shape, strides: Optional[Shape]) -> int:
    """How many elements a dense tensor has in memory: what was expanded, with stride 0, has each once."""
    return math.prod(shape if strides is None else (size for size, stride in zip(shape, strides) if stride))


def view_of_bytes(flat: torch.Tensor, offset: int, dtype: torch.dtype, shape: Shape, strides: Shape) -> torch.Tensor:
    """The tensor that begins ``offset`` bytes into ``flat``, uint8 of one dimension, with a storage of its own.

    What copies a tensor (``deepcopy``, ``torch.save``) copies its storage, and autograd counts changes by tensor.
    """
    nbytes = elements(shape, strides) * _itemsize(dtype)
    if not nbytes or flat.device.type == 'meta':  # which has nothing to share
        return torch.empty_strided(shape, strides, dtype=dtype, device=flat.device)
    tensor = torch.empty(0, dtype=dtype, device=flat.device)
    return tensor.set_(flat.untyped_storage()[offset : offset + nbytes], 0, shape, strides)


def unpack(head: bytes, views: Any) -> Any:
    """The batch of which ``head`` was left, with arrays from ``views``: :class:`Views`, or what acts like it."""
    return _Unpacker(io.BytesIO(head), views).load()


def tensor_here(*where: Any) -> torch.Tensor:
    """Stands in a pickle for :meth:`Views.tensor`."""
    raise pickle.UnpicklingError('this is a part of a packed batch, which only mmshared.parallel can put together')


def array_here(*where: Any) -> np.ndarray:
    """Stands in a pickle for :meth:`Views.array`."""
    raise pickle.UnpicklingError('this is a part of a packed batch, which only mmshared.parallel can put together')


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, views: Views) -> None:
        super().__init__(file)
        self._here: Dict[str, Any] = {tensor_here.__name__: views.tensor, array_here.__name__: views.array}

    def find_class(self, module: str, name: str) -> Any:
        if module == __name__ and name in self._here:
            return self._here[name]
        return super().find_class(module, name)


class _Region:
    """Arrays and the places that they get, one behind the other."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._parts: List[Tuple[int, Union[np.ndarray, Stack], str]] = []

    def place(self, source: Union[np.ndarray, Stack], order: str = 'C') -> int:
        """Have ``source`` written here, in this memory order ('C' or 'F'); returns the offset in bytes."""
        offset = aligned(self.nbytes)
        self.nbytes = offset + source.nbytes
        self._parts.append((offset, source, order))
        return offset

    def write(self, memory: Memory, begin: int) -> None:
        """Write all of them; the first one ``begin`` bytes into ``memory``."""
        for offset, source, order in self._parts:
            if isinstance(source, Stack):
                source.write(memory, begin + offset)
            else:
                np.copyto(np.ndarray(source.shape, source.dtype, memory, begin + offset, order=order), source)


class _Packer(ForkingPickler):
    """Pickles as between processes, but for what can be packed."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)  # by the same protocol, too: another makes others of read-only or swapped arrays
        self.tensors, self.arrays = _Region(), _Region()
        self.needs_sender = False

    def reducer_override(self, thing: Any) -> Any:
        """What the pickler asks first, for each object; NotImplemented to leave it as it would be."""
        kind = type(thing)
        if kind is torch.Tensor and _can_be_packed(thing):
            return tensor_here, self._tensor(thing)
        if kind is Stack:
            return tensor_here, (self.tensors.place(thing), thing.dtype, thing.shape)
        if kind is np.ndarray and thing.nbytes > SMALL and thing.dtype.isnative and not thing.dtype.hasobject:
            order = 'F' if thing.flags.f_contiguous and not thing.flags.c_contiguous else 'C'
            return array_here, (self.arrays.place(thing, order), thing.dtype, thing.shape, order)
        self.needs_sender |= kind in self._extra_reducers
        return NotImplemented

    def _tensor(self, tensor: torch.Tensor) -> Tuple[Any, ...]:
        dtype, shape, strides = tensor.dtype, tuple(tensor.shape), None
        if tensor.numel() and tensor.stride() != _in_order(shape):
            tensor, strides = _dense(tensor)
        return self.tensors.place(_bytes_of(tensor)), dtype, shape, strides


def _can_be_packed(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == 'cpu'
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def _in_order(shape: Shape) -> Shape:
    """The strides of a tensor whose elements lie in the order of its dimensions."""
    strides, behind = [], 1
    for size in reversed(shape):
        strides.append(behind)
        behind *= size
    return tuple(reversed(strides))


def _dense(tensor: torch.Tensor) -> Tuple[torch.Tensor, Shape]:
    """The elements of ``tensor`` in the order that they have in memory, each once, and the strides to see it again.

    A tensor whose dimensions are in another order (``channels_last``) stays so, as it may be computed with differently;
    and one that was expanded does not grow. Strides are those that PyTorch gives to what it computes from the tensor,
    also of dimensions of size 1, by which it knows an image as ``channels_last`` that has one channel only.
    """
    strides = tensor.stride()
    repeats = [size > 1 and not stride for size, stride in zip(tensor.shape, strides)]
    once = tensor.as_strided([1 if repeat else size for size, repeat in zip(tensor.shape, repeats)], strides)
    dense = torch.empty_like(once, device='meta').stride()
    order = sorted(range(once.dim()), key=lambda dim: -dense[dim])
    return once.permute(order), tuple(0 if repeat else stride for repeat, stride in zip(repeats, dense))


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    """``tensor`` as numpy sees it: as integers of the same size where numpy does not know its type."""
    tensor = tensor.resolve_conj().resolve_neg()
    known = tensor.dtype in _KNOWN_TO_NUMPY
    return (tensor if known else tensor.view(_INTEGERS[tensor.element_size()])).numpy()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KNOWN_TO_NUMPY = {torch.from_numpy(np.empty(0, dtype)).dtype for dtype in '?BbhilefdFD'}


@cache
def _itemsize(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype).element_size()  # dtype.itemsize came with PyTorch 2.1
