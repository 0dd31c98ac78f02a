"""What it means that two batches are the same: in type, in every bit, in memory, in what is one thing."""

from __future__ import annotations

import pickle
import struct
from multiprocessing.reduction import ForkingPickler
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np
import pytest
import torch

from mmshared.parallel.packing import Packing, Views, unpack

# ---- crossing, without another process


@pytest.fixture(scope='module')
def without_sockets() -> Iterator[None]:
    """Have PyTorch share by names: that is quicker where a process sends to itself."""
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy('file_system')
    yield
    torch.multiprocessing.set_sharing_strategy(strategy)


def crossed_by_stock(batch: Any) -> Any:
    """What the main process gets of ``batch`` from PyTorch. Tensors of ``batch`` are in shared memory afterwards."""
    return pickle.loads(ForkingPickler.dumps(batch))


def crossed_packed(batch: Any) -> Any:
    """``batch`` packed and put together again."""
    packing = Packing(batch)
    memory = bytearray(packing.layout.nbytes)
    packing.write(memory)
    return unpack(packing.layout.head, Views(memory, packing.layout.tensors))


# ---- what is the same


def assert_same(one: Any, two: Any) -> None:
    """Both are equal by type, in every bit, in how they lie in memory, and in what in them is one object."""
    _Comparison().compare(one, two, 'batch')


_SIMPLE = (bool, int, str, bytes, set, frozenset, torch.dtype, torch.device, np.dtype, range, slice, type(Ellipsis))


class _Comparison:
    """One call of :func:`assert_same`; it knows what it has seen, so that a cycle ends."""

    def __init__(self) -> None:
        self._pairs: Dict[int, Tuple[Any, Any]] = {}
        self._partners: Dict[int, Any] = {}

    def compare(self, one: Any, two: Any, where: str) -> None:
        assert type(one) is type(two), f'{where}: {type(one)} and {type(two)}'
        if isinstance(one, (float, complex, np.generic)):
            assert _bits(one) == _bits(two), f'{where}: {one!r} and {two!r}'
        elif one is None or isinstance(one, _SIMPLE) or hasattr(one, '__qualname__'):
            assert one == two, f'{where}: {one!r} and {two!r}'
        elif not self._is_known(one, two, where):
            self._compare_parts(one, two, where)

    def _is_known(self, one: Any, two: Any, where: str) -> bool:
        """Whether these two have been compared. Tuples may be one object where they need not."""
        if isinstance(one, tuple):
            return False
        if id(one) in self._pairs:
            assert self._pairs[id(one)][1] is two, f'{where}: one object that was seen before, and another one'
            return True
        assert id(two) not in self._partners, f'{where}: another object, and one that was seen before'
        self._pairs[id(one)], self._partners[id(two)] = (one, two), two
        return False

    def _compare_parts(self, one: Any, two: Any, where: str) -> None:
        if isinstance(one, torch.Tensor):
            self._compare_tensors(one, two, where)
            if one.is_nested:  # its sizes are symbols, of which no two are the same
                return
        elif isinstance(one, np.ndarray):
            self._compare_arrays(one, two, where)
        elif isinstance(one, dict):
            self._compare_items(list(one), list(two), f'{where}.keys')
            for key in one:
                self.compare(one[key], two[key], f'{where}[{key!r}]')
        elif isinstance(one, (list, tuple)):
            self._compare_items(one, two, where)
        else:
            assert hasattr(one, '__dict__'), f'{where}: {type(one)} cannot be compared'
        if hasattr(one, '__dict__'):
            self.compare(vars(one), vars(two), f'{where}.__dict__')

    def _compare_items(self, one: Any, two: Any, where: str) -> None:
        assert len(one) == len(two), f'{where}: {len(one)} and {len(two)} items'
        for index, (a, b) in enumerate(zip(one, two)):
            self.compare(a, b, f'{where}[{index}]')

    def _compare_tensors(self, one: torch.Tensor, two: torch.Tensor, where: str) -> None:
        for name in ('dtype', 'layout', 'device', 'requires_grad', 'is_nested', 'is_quantized'):
            assert getattr(one, name) == getattr(two, name), f'{where}: {name}'
        if one.is_nested:
            return self._compare_items(one.unbind(), two.unbind(), where)
        assert one.shape == two.shape, f'{where}: {one.shape} and {two.shape}'
        if one.layout is not torch.strided or one.is_quantized:
            return self._compare_items(_parts(one), _parts(two), where)
        one, two = (tensor.detach().as_subclass(torch.Tensor) for tensor in (one, two))
        assert _order(one) == _order(two), f'{where}: strides {one.stride()} and {two.stride()}'
        if one.device.type == 'cpu':
            assert _bits(one) == _bits(two), f'{where}: {one} and {two}'
        return None

    def _compare_arrays(self, one: np.ndarray, two: np.ndarray, where: str) -> None:
        assert one.shape == two.shape and one.dtype == two.dtype, f'{where}: {one!r} and {two!r}'
        assert one.dtype.isnative == two.dtype.isnative, f'{where}: {one.dtype} and {two.dtype}'
        assert one.dtype.metadata == two.dtype.metadata, f'{where}: {one.dtype.metadata} and {two.dtype.metadata}'
        for flag in ('c_contiguous', 'f_contiguous', 'writeable', 'aligned'):
            assert getattr(one.flags, flag) == getattr(two.flags, flag), f'{where}: {flag}'
        if isinstance(one, np.ma.MaskedArray):
            self.compare(np.asarray(one.mask), np.asarray(two.mask), f'{where}.mask')
        one, two = np.asarray(one), np.asarray(two)
        if one.dtype.names:  # bytes between fields mean nothing
            for name in one.dtype.names:
                self._compare_arrays(one[name], two[name], f'{where}[{name!r}]')
        elif one.dtype.hasobject:
            self._compare_items(one.ravel().tolist(), two.ravel().tolist(), where)
        else:
            assert one.tobytes() == two.tobytes(), f'{where}: {one} and {two}'


def _parts(tensor: torch.Tensor) -> List[Any]:
    """What a sparse or a quantized tensor is made of."""
    if tensor.is_quantized:  # PyTorch does not send what its numbers mean
        return [tensor.int_repr()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values(), tensor.is_coalesced()]
    return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]


def _order(tensor: torch.Tensor) -> Tuple[Any, ...]:
    """What of its strides matters: what is computed from ``tensor`` lies so, and which elements it has once only."""
    if not tensor.numel():
        return ()
    once = [size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())]
    return (*torch.empty_like(tensor, memory_format=torch.preserve_format).stride(), *once)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(number: Any) -> bytes:
    if isinstance(number, torch.Tensor):
        number = number.resolve_conj().resolve_neg()
        parts = torch.view_as_real(number) if number.is_complex() else number
        return parts.view(_INTEGERS[parts.element_size()]).numpy().tobytes()
    if isinstance(number, np.generic):
        return number.tobytes()
    return struct.pack('<dd', number.real, number.imag)


def arrays_in(thing: Any, seen: Optional[Dict[int, Any]] = None) -> Iterator[Any]:
    """Every tensor and array in ``thing``, each object once."""
    seen = {} if seen is None else seen
    if thing is None or isinstance(thing, (str, bytes, int, float, type)) or id(thing) in seen:
        return
    seen[id(thing)] = thing
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        yield thing
    is_array = isinstance(thing, np.ndarray) and thing.dtype.hasobject
    inner = thing.values() if isinstance(thing, dict) else thing.ravel().tolist() if is_array else thing
    for part in inner if is_array or isinstance(thing, (dict, list, tuple)) else ():
        yield from arrays_in(part, seen)
    yield from arrays_in(getattr(thing, '__dict__', None), seen)


def assert_no_aliasing(batch: Any) -> None:
    """Each array has its own memory, and a tensor no more than it needs. All their contents are lost."""
    written = []
    for number, array in enumerate(arrays_in(batch)):
        memory = _memory_of(array)
        if memory is not None:
            memory.fill(number % 251 + 1)
            written.append((number % 251 + 1, memory))
    assert all((memory == value).all() for value, memory in written), 'what was written to one array is in another'


def _memory_of(array: Any) -> Optional[np.ndarray]:
    """All bytes that ``array`` keeps, to be written; None if it was not packed."""
    if isinstance(array, torch.Tensor):
        if type(array) is not torch.Tensor or array.layout is not torch.strided or array.device.type != 'cpu':
            return None
        if array.requires_grad or array.is_nested or array.is_quantized:
            return None
        needed = array.element_size()
        for size, stride in zip(array.shape, array.stride()):
            needed *= size if stride or size == 0 else 1
        storage = array.untyped_storage()
        assert storage.nbytes() == needed, f'{storage.nbytes()} bytes for {needed}'
        return torch.empty(0, dtype=torch.uint8).set_(storage).numpy() if needed else None
    if type(array) is not np.ndarray or array.dtype.hasobject or not array.nbytes:
        return None
    return array.reshape(-1, order='F' if array.flags.f_contiguous else 'C').view(np.uint8)


def assert_as_stock(batch: Any) -> Any:
    """Packed, ``batch`` becomes what it becomes when PyTorch sends it; returned is that."""
    packed = crossed_packed(batch)
    assert_same(packed, crossed_by_stock(batch))
    assert_no_aliasing(crossed_packed(batch))
    return packed


def room(thing: Any) -> int:
    """How many bytes it takes, packed."""
    return Packing(thing).layout.nbytes
