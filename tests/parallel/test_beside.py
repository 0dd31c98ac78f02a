"""What is not packed and stays beside, and what packed things are in."""

from __future__ import annotations

import io
import pickle
import random
import threading
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch
from mmengine.structures import InstanceData

from mmshared.parallel.packing import Packing, aligned

from .batches import Pair, data_sample
from .comparison import (
    arrays_in,
    assert_as_stock,
    assert_no_aliasing,
    assert_same,
    crossed_by_stock,
    crossed_packed,
    room,
    without_sockets,  # noqa: F401
)

pytestmark = [
    pytest.mark.usefixtures('without_sockets', 'everything_is_packed'),
    pytest.mark.filterwarnings('ignore:.*(Sparse|prototype|matrix subclass|deprecated)'),
]


class Tensor(torch.Tensor):
    """A class of somebody's own."""


class Array(np.ndarray):
    """A class of somebody's own."""


def own_tensor():
    made = torch.arange(3.0).as_subclass(Tensor)
    made.unit = 'px'
    return made


OF_TORCH = dict(
    sparse=lambda: torch.eye(3).to_sparse(),
    sparse_rows=lambda: torch.eye(3).to_sparse_csr(),
    leaf=lambda: torch.arange(3.0, requires_grad=True),
    parameter=lambda: torch.nn.Parameter(torch.arange(3.0)),
    frozen=lambda: torch.nn.Parameter(torch.arange(3.0), requires_grad=False),
    meta=lambda: torch.ones(2, 3, device='meta'),
    nested=lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
    quantized=lambda: torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.1, 3, torch.quint8),
    subclass=own_tensor,
)


def own_array(cls, flags=True):
    made = np.arange(6.0).reshape(2, 3).view(cls)
    made.flags.writeable = flags
    return made


OF_NUMPY = dict(
    subclass=lambda: own_array(Array),
    matrix=lambda: own_array(np.matrix),
    read_only_matrix=lambda: own_array(np.matrix, False),
    records=lambda: np.rec.array([(1, 2.0)], dtype=[('a', 'i1'), ('b', 'f8')]),
    objects=lambda: np.array([1, 'a', None, [2]], dtype=object),
    records_of_objects=lambda: np.array([(1, [2])], dtype=[('a', 'i1'), ('b', 'O')]),
)


@pytest.mark.parametrize('name', OF_TORCH)
def test_tensors_that_are_not_packed(name):
    batch = [OF_TORCH[name](), torch.ones(3), OF_TORCH[name]()]
    layout = Packing(batch).layout
    assert layout.nbytes == 64 and layout.needs_sender
    assert_same(crossed_packed(batch), crossed_by_stock(batch))


@pytest.mark.parametrize('name', OF_NUMPY)
def test_arrays_that_are_not_packed(name):
    batch = [OF_NUMPY[name](), torch.ones(3), OF_NUMPY[name]()]
    layout = Packing(batch).layout
    assert layout.nbytes == 64 and not layout.needs_sender
    assert_same(crossed_packed(batch), crossed_by_stock(batch))


@pytest.mark.parametrize(
    'make',
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged),
        lambda: np.ma.masked_array([1.0, 2.0], mask=[False, True], fill_value=5),
    ],
    ids=['ragged', 'masked'],
)
def test_plain_parts_of_something_else_are_packed(make):
    batch = [make(), make()]
    layout = Packing(batch).layout
    assert layout.nbytes > 0 and not layout.needs_sender
    assert_same(crossed_packed(batch), crossed_by_stock(batch))


def test_arrays_in_an_array_of_objects_are_packed():
    inner = torch.arange(20.0)
    objects = np.array([inner, np.arange(30), None], dtype=object)
    assert room(objects) == 64 * 2 + 240
    assert_as_stock([objects, inner])


def test_a_mapped_file(tmp_path):
    mapped = np.memmap(tmp_path / 'file', mode='w+', dtype='f4', shape=(2, 3))
    mapped[:] = 7
    packed, stock = crossed_packed(mapped), crossed_by_stock(mapped)
    assert type(packed) is type(stock) is np.memmap
    assert_same(np.asarray(packed), np.asarray(stock))


@pytest.mark.parametrize(
    'make',
    [
        lambda: torch.ones(2, requires_grad=True) * 2,
        lambda: torch.ones(3).to_mkldnn(),
    ],
    ids=['within a graph', 'mkldnn'],
)
def test_what_pytorch_cannot_send_is_refused_as_it_does(make):
    with pytest.raises(Exception) as stock:
        crossed_by_stock([make()])
    with pytest.raises(type(stock.value)) as packed:
        crossed_packed([make()])
    assert str(packed.value).splitlines()[0] == str(stock.value).splitlines()[0]


# ---- what they are in


def test_one_object_in_two_places_is_one_again():
    tensor, array, shared = torch.arange(100.0), np.arange(100), InstanceData(labels=torch.arange(3))
    batch = dict(a=[tensor, array, shared], b=(array, tensor), c=shared, d=shared.labels)
    assert room(batch) == aligned(400) + 64 + 800
    packed = assert_as_stock(batch)
    assert packed['a'][0] is packed['b'][1] and packed['a'][1] is packed['b'][0]
    assert packed['a'][2] is packed['c'] and packed['c'].labels is packed['d']


def test_tensors_of_one_memory_have_their_own_afterwards():
    # PyTorch's still share it, so that to write to one is to write to the other.
    whole = torch.arange(6.0)
    batch = [whole, whole[:3], whole.view(2, 3), whole.numpy()]
    packed = crossed_packed(batch)
    assert all(torch.equal(torch.as_tensor(part), torch.as_tensor(kept)) for part, kept in zip(packed, batch))
    assert_no_aliasing(packed)
    with pytest.raises(AssertionError, match='what was written to one|bytes for'):
        assert_no_aliasing(crossed_by_stock([torch.ones(6)] + batch[:3]))


def test_what_contains_itself():
    batch = [torch.arange(3.0), {}]
    batch[1]['whole'], batch[1]['tensor'] = batch, batch[0]
    packed = assert_as_stock(batch)
    assert packed[1]['whole'] is packed and packed[1]['tensor'] is packed[0]


def test_containers_and_what_is_no_array():
    counts = defaultdict(list, a=[torch.ones(2)])
    containers = [OrderedDict(z=1, a=torch.ones(3)), counts, Pair(np.ones(2), 'ä'), (), [], {}, {1, 2}, frozenset()]
    scalars = [None, b'\0', 2**80, -0.0, 1j, float('nan'), np.float32('nan'), np.str_('x'), 'x' * 100_000, range(3)]
    others = [torch.float16, torch.Size((2, 3)), torch.device('cpu'), np.dtype('>i4'), Pair, len, Ellipsis, slice(1, 2)]
    batch = [*containers, *scalars, *others]
    packed = crossed_packed(batch)
    assert_same(packed, crossed_by_stock(batch))
    assert packed[1].default_factory is list


def test_a_sample_of_mmdetection():
    for seed in range(8):
        sample = data_sample(random.Random(seed))
        packed = assert_as_stock(sample)
        assert packed.metainfo.keys() == sample.metainfo.keys() and set(packed.keys()) == set(sample.keys())
        assert sum(1 for _ in arrays_in(packed)) == sum(1 for _ in arrays_in(sample))
    assert repr(crossed_packed(sample)) and len(packed.gt_instances) == len(sample.gt_instances)


@pytest.mark.parametrize(
    ('thing', 'name'),
    [
        (lambda results: results, '<lambda>'),
        (threading.Lock(), 'lock'),
        ((n for n in ()), 'generator'),
        (io.FileIO(0, closefd=False), 'FileIO'),
    ],
    ids=['function', 'lock', 'generator', 'file'],
)
def test_what_cannot_be_pickled_is_named(thing, name):
    batch = dict(inputs=torch.ones(2), data_samples=[dict(a=thing)])
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match=name):
        Packing(batch)
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match=name):
        crossed_by_stock(batch)
