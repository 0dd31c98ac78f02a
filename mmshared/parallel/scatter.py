"""Hand a batch to devices: chunks of its tensors, the shares of its DataContainers, everything else to all of them.

``mmcv.parallel.scatter`` did so for mmcv 1.x, on private parts of PyTorch that have changed since (with PyTorch 2.1 or
later it fails for every DataContainer that goes to a GPU). This needs no mmcv, and with integers as devices it gives
what mmcv 1.7.2 gave, quirks included. ``torch.device`` s and names have no quirks, and may be mixed.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

from .data_container import is_data_container

Device = Union[int, str, torch.device]

_ATOMS = frozenset((type(None), bool, int, float, str))


class ScatterError(Exception):
    """Something in a batch that cannot be scattered.

    Attributes:
        path: the keys and indices that lead to it, from the outside in.
        root: what they start from, ``'inputs'`` or ``'kwargs'``.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: List[Any] = []
        self.root = 'inputs'

    def __str__(self) -> str:
        return f'{self.root}{"".join(f"[{key!r}]" for key in self.path)}: {self.args[0]}'


class DataError(ScatterError, TypeError):
    """Data of a type that cannot be scattered."""


class DeviceError(ScatterError, RuntimeError):
    """There is no such device, or a tensor that cannot be divided among several."""


class DimensionError(ScatterError, IndexError):
    """A tensor has no such dimension."""


def scatter(inputs: Any, devices: Sequence[Device], dim: int = 0) -> Any:
    """Divide ``inputs`` among ``devices``.

    Tensors are cut into chunks along ``dim``, with their gradients. The data of a DataContainer has to be a list with
    an entry for each device (as :func:`~mmshared.parallel.data_container.collate` makes it), of tensors or lists of
    tensors; if it is ``cpu_only``, that is given out as it is. Each device gets all of a ``BaseDataElement``, moved.
    Everything else, an empty container as well, is given to each. Tuples, also named ones, become tuples, lists become
    lists, dicts are made anew by their own class. The shortest share of a container says for how many devices there
    are results.

    Args:
        inputs: nested in any way.
        devices: for each, its index; or a ``torch.device``, or its name.

            - With nothing but indices, all is as with mmcv 1.7.2. ``[-1]`` stands for the CPU: tensors are made
              contiguous, those on a GPU stay there, and tensors without dimensions are taken.
            - Otherwise nothing is copied that is where it should be. One device gets whole tensors.
        dim: the dimension along which tensors are divided. (Not for one CPU.)

    Returns:
        A list with a result for each device. A tensor or a DataContainer itself gives a tuple; one that is
        ``cpu_only`` gives its data.

    Raises:
        DataError: (a ``TypeError``) a DataContainer holds something else, or the class of a dict takes no pairs.
        DeviceError: (a ``RuntimeError``) there is no such device, or a tensor without dimensions for several.
        DimensionError: (an ``IndexError``) there is no ``dim``.
        TypeError: ``devices`` is no list of devices.
    """
    return _Scatter(devices, dim).share(inputs)


def scatter_kwargs(
    inputs: Any, kwargs: Any, devices: Sequence[Device], dim: int = 0
) -> Tuple[Tuple[Any, ...], Tuple[Any, ...]]:
    """:func:`scatter` for the arguments of a function.

    Args:
        inputs: positional arguments, a tuple. May be empty or None.
        kwargs: keyword arguments, a dict. May be empty or None.
        devices: as for :func:`scatter`.
        dim: as for :func:`scatter`.

    Returns:
        The positional and the keyword arguments for each device, as many of these as of those: where there are none,
        ``()`` and ``{}``.

    Raises:
        Exception: as :func:`scatter`.
        AttributeError: one of them is no container but a tensor or the like, and gives too few results.
    """
    positional = scatter(inputs, devices, dim) if inputs else []
    try:
        keywords = scatter(kwargs, devices, dim) if kwargs else []
    except ScatterError as error:
        error.root = 'kwargs'
        raise
    count = max(len(positional), len(keywords))
    return _filled(positional, count, (), 'inputs'), _filled(keywords, count, {}, 'kwargs')


def _filled(shares: Any, count: int, empty: Union[tuple, dict], name: str) -> Tuple[Any, ...]:
    """``count`` shares. Each that is missing is an empty one of its own."""
    missing = count - len(shares)
    if missing and not hasattr(shares, 'extend'):
        raise AttributeError(
            f'{name} gives {len(shares)} results where {count} are needed, and cannot be extended: '
            f'pass {"a tuple" if name == "inputs" else "a dict"} of arguments, not a single one'
        )
    return (*shares, *(type(empty)() for _ in range(missing)))


class _Scatter:
    """One call of :func:`scatter`."""

    def __init__(self, devices: Sequence[Device], dim: int) -> None:
        if isinstance(devices, (str, Integral, torch.device)) or not isinstance(devices, Iterable):
            raise TypeError(f'devices has to be a list of devices, such as [{devices!r}]')
        given = list(devices)
        self._indices: Optional[List[int]] = None
        if all(isinstance(device, Integral) for device in given):
            self._indices = [int(device) for device in given]
        self._stays = self._indices == [-1]
        self._problem = _problem(given)
        self._devices = [torch.device('cpu')] * len(given) if self._problem else [_device(entry) for entry in given]
        self._dim = dim

    def share(self, item: Any) -> Any:
        """The shares of ``item``: one for each device, if all is well."""
        if type(item) in _ATOMS:
            return [item] * len(self._devices)
        if isinstance(item, Tensor):
            return self._chunks(item)
        if isinstance(item, tuple) and len(item) > 0:
            return _transposed(self._shares(enumerate(item)), range(len(item)))
        if isinstance(item, list) and len(item) > 0:
            return list(map(list, _transposed(self._shares(enumerate(item)), range(len(item)))))
        if isinstance(item, dict) and len(item) > 0:
            return self._dicts(item)
        if is_data_container(item):
            return item.data if item.cpu_only else self._entries(item.data)
        if isinstance(item, BaseDataElement):
            self._check()
            return [item.to(device) for device in self._devices]
        return [item] * len(self._devices)

    def _shares(self, items: Iterable[Tuple[Any, Any]]) -> List[Any]:
        """The shares of each of ``items``, which come with what leads to them in their container."""
        shares = []
        for key, item in items:
            try:
                shares.append(self.share(item))
            except ScatterError as error:
                error.path.insert(0, key)
                raise
        return shares

    def _dicts(self, item: dict) -> List[dict]:
        keys = list(map(self.share, item))
        values = self._shares(item.items())
        pairs = [_transposed(pair, [key] * 2) for key, pair in zip(item, zip(keys, values))]
        kind = type(item)
        try:
            return [kind(entries) for entries in zip(*pairs)]
        except TypeError as error:
            raise DataError(
                f'{kind.__name__} cannot be made of pairs of key and value ({error}); pass a dict instead'
            ) from error

    def _chunks(self, tensor: Tensor) -> Tuple[Tensor, ...]:
        self._check()
        if self._stays:
            return (tensor.contiguous(),)
        if self._indices is None and len(self._devices) == 1:
            return (_moved(tensor, self._devices[0]),)
        dims = max(tensor.dim(), 1)
        if not -dims <= self._dim < dims:
            raise DimensionError(f'a tensor {tuple(tensor.shape)} cannot be divided along dimension {self._dim}')
        if tensor.dim() == 0:
            raise DeviceError('a tensor without dimensions cannot be divided among devices; reshape it to (1,)')
        if self._indices is not None:
            return torch.nn.parallel.scatter(tensor, self._indices, self._dim)
        chunks = tensor.chunk(len(self._devices), self._dim)
        return tuple(_moved(chunk, device) for chunk, device in zip(chunks, self._devices))

    def _entries(self, data: Any) -> Tuple[Any, ...]:
        """The data of a DataContainer: entries in a row go to one device, the same number to each."""
        self._check()
        if not isinstance(data, list):
            return (self._placed(data, self._devices[0]),)
        size = (len(data) - 1) // len(self._devices) + 1
        return tuple(self._placed_each(data, [self._devices[index // size] for index in range(len(data))]))

    def _placed(self, data: Any, device: torch.device) -> Any:
        """Something from a DataContainer, on ``device``."""
        if isinstance(data, list):
            return self._placed_each(data, [device] * len(data))
        if isinstance(data, Tensor):
            data = data if self._indices is None else data.contiguous()
            return data if self._stays else _moved(data, device)
        if isinstance(data, BaseDataElement):
            return data.to(device)
        raise DataError(
            f'a DataContainer that is not cpu_only holds tensors or lists of tensors, and this is '
            f'{type(data).__name__}; what the model takes as it is needs DataContainer(..., cpu_only=True)'
        )

    def _placed_each(self, data: list, devices: List[torch.device]) -> List[Any]:
        placed = []
        for entry, device in zip(data, devices):
            try:
                placed.append(self._placed(entry, device))
            except ScatterError as error:
                error.path.insert(0, len(placed))
                raise
        return placed

    def _check(self) -> None:
        """Raise :class:`DeviceError` if there is nowhere to put something. (What is not moved needs no device.)"""
        if self._problem:
            raise DeviceError(self._problem)


def _device(entry: Device) -> torch.device:
    if isinstance(entry, Integral):
        return torch.device('cpu') if entry == -1 else torch.device('cuda', int(entry))
    if isinstance(entry, (str, torch.device)):
        return torch.device(entry)
    raise TypeError(f'a device is an index, a torch.device or its name, not {entry!r}')


def _problem(given: List[Device]) -> str:
    """Why nothing can be moved to these devices, or an empty string."""
    indices = [device for device in given if isinstance(device, Integral)]
    if not given:
        return 'devices is empty; pass at least one, such as torch.device("cpu")'
    if any(index < -1 for index in indices):
        return f'there is no device {min(indices)}; -1 is the CPU, 0 the first GPU'
    if -1 in indices and len(indices) == len(given) > 1:
        return f'-1, the CPU, stands alone, not in {given!r}; "cpu" can be one of several devices'
    count = torch.cuda.device_count()
    for device in map(_device, given):
        if device.type == 'cuda' and (device.index or 0) >= count:
            return f'there is no device {device}: PyTorch finds {count} CUDA devices (torch.cuda.device_count())'
    return ''


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``: itself if it is there. From pinned memory, the copy does not block."""
    leaves = tensor.device.type == 'cpu' and device.type != 'cpu'
    return tensor.to(device, non_blocking=leaves and tensor.layout is torch.strided and tensor.is_pinned())


def _transposed(shares: Sequence[Any], keys: Sequence[Any]) -> List[Tuple[Any, ...]]:
    """For each device, its share of every item. ``keys`` lead to the items in their container."""
    try:
        return list(zip(*shares))
    except TypeError as error:
        for key, share in zip(keys, shares):
            if not _is_iterable(share):
                problem = DataError(
                    f'cpu_only data of a DataContainer has to be a list with an entry for each device, as collate '
                    f'makes it, and this is {type(share).__name__}'
                )
                problem.path = [key]
                raise problem from error
        raise


def _is_iterable(thing: Any) -> bool:
    try:
        iter(thing)
    except TypeError:
        return False
    return True
