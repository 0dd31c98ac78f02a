"""DataContainer as mmcv 1.x had it, for pipelines that still make them, and the collate function that knows it.

mmcv 2 dropped the class; pipelines written for mmcv 1.x wrap each field of a sample in one, to say how that field
is batched: stacked with padding, as a list, or left on the CPU. They train as they are, with
``collate_fn=dict(type='data_container_collate')`` in a dataloader and :func:`mmshared.parallel.scatter.scatter` in
front of the model. Results equal those of ``mmcv.parallel`` 1.7.2; ``tests/parallel/mmcv_table.json`` has what it gave.

A container is known by its attributes (:func:`is_data_container`), so mmcv 1.x's own class will do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Iterator, List, Optional, Tuple, Union

import torch.nn.functional as F
from mmengine.registry import FUNCTIONS
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.utils.data import default_collate

_MARKS = ('cpu_only', 'pad_dims', 'padding_value', 'stack', 'data')
_PLAIN = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class CollateError(TypeError, AttributeError, RecursionError):
    """A batch of something that has no batches. (mmcv 1.x raises one of these three, two of them by accident.)"""


class DataContainer:
    """A field of a sample, or of a batch, and how it is to be batched.

    Args:
        data: anything; a tensor if ``stack``.
        stack: whether the samples' tensors become one, padded where they differ. Otherwise they become a list.
        padding_value: what they are padded with.
        cpu_only: whether scattering leaves ``data`` as it is.
        pad_dims: how many of the last dimensions are padded: 1, 2, 3, or None if all tensors have one shape.

    Raises:
        AssertionError: if ``pad_dims`` is something else.
    """

    def __init__(
        self,
        data: Any,
        stack: bool = False,
        padding_value: float = 0,
        cpu_only: bool = False,
        pad_dims: Optional[int] = 2,
    ) -> None:
        if pad_dims not in (None, 1, 2, 3):
            raise AssertionError(f'pad_dims of a DataContainer is 1, 2, 3 or None, not {pad_dims!r}')
        self._data = data
        self._stack = stack
        self._padding_value = padding_value
        self._cpu_only = cpu_only
        self._pad_dims = pad_dims

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.data!r})'

    def __len__(self) -> int:
        return len(self._data)

    @property
    def data(self) -> Any:
        """What it holds."""
        return self._data

    @property
    def datatype(self) -> Union[type, str]:
        """PyTorch's name for the type of a tensor (``'torch.FloatTensor'``), the type of anything else."""
        return self.data.type() if isinstance(self.data, Tensor) else type(self.data)

    @property
    def stack(self) -> bool:
        """Whether the samples' tensors become one."""
        return self._stack

    @property
    def padding_value(self) -> float:
        """What they are padded with."""
        return self._padding_value

    @property
    def cpu_only(self) -> bool:
        """Whether scattering leaves it as it is."""
        return self._cpu_only

    @property
    def pad_dims(self) -> Optional[int]:
        """How many of the last dimensions are padded."""
        return self._pad_dims

    def size(self, *args: Any, **kwargs: Any) -> Any:
        """As ``Tensor.size``. Raises ``AttributeError`` if it holds no tensor."""
        return _tensor_of(self, 'size').size(*args, **kwargs)

    def dim(self) -> int:
        """As ``Tensor.dim``. Raises ``AttributeError`` if it holds no tensor."""
        return _tensor_of(self, 'dim').dim()


def is_data_container(thing: Any) -> bool:
    """Whether ``thing`` is a DataContainer of ours, of mmcv 1.x, or of anybody else: it has the five attributes.

    They are looked up where they are defined, in the class and the instance. ``hasattr`` would also be true of objects
    that make up attributes when asked, such as addict's dicts.
    """
    if isinstance(thing, DataContainer):
        return True
    if isinstance(thing, (Tensor, tuple, list, dict, type, BaseDataElement)):
        return False
    own = getattr(thing, '__dict__', None)
    own = own if isinstance(own, dict) else {}
    return all(hasattr(type(thing), mark) or mark in own for mark in _MARKS)


def holds_data_containers(batch: Any) -> bool:
    """Whether there is a DataContainer anywhere in nested dicts, lists and tuples.

    Every element of a list is looked at: the fields of a sample are a list, too, and the first says nothing of others.
    """
    if isinstance(batch, dict):
        return any(map(holds_data_containers, batch.values()))
    if isinstance(batch, (list, tuple)):
        return any(map(holds_data_containers, batch))
    return is_data_container(batch)


def collate(batch: Sequence, samples_per_gpu: int = 1) -> Any:
    """Make a batch of samples; what is in DataContainers as those say, anything else by PyTorch's ``default_collate``.

    ``data`` of a resulting container is a list with an entry for each GPU: a tensor ``(samples_per_gpu, ...)`` if
    stacked, else a list of ``samples_per_gpu`` items. Mappings become dicts, sequences lists. What mmcv 1.x does not
    know, ``BaseDataElement`` s, becomes a list.

    Args:
        batch: the samples.
        samples_per_gpu: how many of them are for one GPU. If they cannot be divided, the last gets fewer.

    Raises:
        CollateError: for a batch that is no sequence, and for text outside of a DataContainer.
        AssertionError: if containers cannot be stacked: no tensors, or shapes that differ where nothing is padded.
        Exception: what PyTorch raises for the rest. All say where in the sample the problem is.
    """
    return _collate(batch, samples_per_gpu, ())


@FUNCTIONS.register_module()
def data_container_collate(batch: Sequence, samples_per_gpu: Optional[int] = None) -> Any:
    """:func:`collate` for ``collate_fn=dict(type='data_container_collate')`` in a dataloader of MMEngine.

    Args:
        batch: the samples.
        samples_per_gpu: as for :func:`collate`, but all of the batch by default. Every process of MMEngine has one
            GPU and a loader of its own, so that scattering to it must not find the batch in parts.

    Raises:
        Exception: as :func:`collate`.
    """
    return collate(batch, len(batch) or 1 if samples_per_gpu is None else samples_per_gpu)


_Where = Tuple[Any, ...]


def _collate(batch: Any, samples_per_gpu: int, where: _Where) -> Any:
    if not isinstance(batch, Sequence):
        raise CollateError(f'{_place(where)}: {type(batch).__name__} is no sequence of samples, as a batch is made of')
    if not len(batch):
        raise IndexError(f'{_place(where)}: there are no samples to make a batch of')
    first = batch[0]
    if is_data_container(first):
        return _collate_containers(batch, samples_per_gpu, where)
    if isinstance(first, BaseDataElement):
        return list(batch)
    if isinstance(first, Sequence):
        if all(isinstance(sample, str) and sample for sample in batch):
            raise CollateError(f'{_place(where)}: text ({first!r}) has no batches; DataContainer(cpu_only=True) has')
        with _explained(where):
            fields = list(zip(*batch))
        return [_collate(samples, samples_per_gpu, (*where, index)) for index, samples in enumerate(fields)]
    if isinstance(first, Mapping):
        return {key: _collate(_field(batch, key, where), samples_per_gpu, (*where, key)) for key in first}
    with _explained(where):
        return default_collate(batch)


def _field(batch: Sequence, key: Any, where: _Where) -> List[Any]:
    """``key`` of each sample."""
    try:
        with _explained((*where, key)):
            return [sample[key] for sample in batch]
    except KeyError as error:
        raise KeyError(f'{_place((*where, key))}: the first sample has that key, another one has not') from error


def _collate_containers(batch: Sequence, samples_per_gpu: int, where: _Where) -> DataContainer:
    """The data of each ``samples_per_gpu`` containers, in one. The first of the batch says how."""
    first = batch[0]
    make = _stacked if first.stack and not first.cpu_only else _listed
    with _explained(where, batch):
        data = [make(batch[start : start + samples_per_gpu]) for start in range(0, len(batch), samples_per_gpu)]
        return DataContainer(data, first.stack, first.padding_value, cpu_only=bool(first.cpu_only))


def _listed(group: Sequence) -> List[Any]:
    return [sample.data for sample in group]


def _stacked(group: Sequence) -> Tensor:
    """The tensors of ``group`` as one, ``(len(group), ...)``, padded at the end of the last ``pad_dims`` dimensions."""
    first, pad_dims = group[0], group[0].pad_dims
    if not isinstance(first.data, Tensor):
        raise AssertionError(f'stack=True is for tensors, and this is {type(first.data).__name__}')
    if pad_dims is None:
        return default_collate(_listed(group))
    shape = first.data.shape
    fixed = len(shape) - pad_dims
    if fixed <= 0:
        raise AssertionError(f'a tensor of {len(shape)} dimensions has no {pad_dims} to pad: one has to be left')
    longest = [0] * pad_dims  # of the last dimension first
    for sample in group:
        size = _tensor_of(sample, 'size').shape
        try:
            if any(size[dim] != shape[dim] for dim in range(fixed)):
                raise AssertionError(f'shapes differ before the last {pad_dims} dimensions, which are padded')
            longest = [max(length, size[-dim]) for dim, length in enumerate(longest, 1)]
        except IndexError:
            raise IndexError(f'a tensor of {len(shape)} dimensions cannot be stacked with one of {len(size)}') from None
    return default_collate([_padded(sample, longest) for sample in group])


def _padded(sample: Any, longest: List[int]) -> Tensor:
    """The tensor of ``sample``, padded up to the sizes ``longest``, last dimension first."""
    data, value = sample.data, sample.padding_value
    missing = [length - data.size(-dim) for dim, length in enumerate(longest, 1)]
    return F.pad(data, [pad for count in missing for pad in (0, count)], value=value) if any(missing) else data


def _tensor_of(container: Any, asked: str) -> Tensor:
    """The tensor in ``container``. Raises ``AttributeError`` if there is something else in it."""
    data = container.data
    if not isinstance(data, Tensor):
        raise AttributeError(f'a {type(container).__name__} of {type(data).__name__} has no {asked}: it is no tensor')
    return data


def _place(where: _Where) -> str:
    return 'batch' + ''.join(f'[{key!r}]' for key in where)


@contextlib.contextmanager
def _explained(where: _Where, containers: Sequence = ()) -> Iterator[None]:
    """Let errors say where they were, and what was there."""
    try:
        yield
    except _PLAIN as error:
        if type(error) not in _PLAIN:  # a subclass may be made in another way, and somebody may look for it
            raise
        about = ''.join(f'\n  sample {index}: {_described(sample)}' for index, sample in enumerate(containers))
        raise type(error)(f'{_place(where)}: {error}{about}') from error


def _described(sample: Any) -> str:
    if not is_data_container(sample):
        return f'{type(sample).__name__}, no DataContainer'
    shape = f' {tuple(sample.data.shape)}' if isinstance(sample.data, Tensor) else ''
    return f'{type(sample.data).__name__}{shape}, stack={sample.stack}, pad_dims={sample.pad_dims}'
