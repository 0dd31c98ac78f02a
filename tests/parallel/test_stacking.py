"""Tensors that are stacked only where they are to be: as MMEngine's ``default_collate``, errors included."""

from __future__ import annotations

import datetime
from collections import OrderedDict, UserDict, UserList, defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.registry import FUNCTIONS
from mmengine.structures import InstanceData
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from mmshared.parallel import packed_collate
from mmshared.parallel.collation import without_unpacking
from mmshared.parallel.packing import Packing
from mmshared.parallel.stacking import Stack, stack_later

from .batches import STACKABLE, Pair, Record, Row
from .comparison import assert_no_aliasing, assert_same, crossed_packed


@pytest.mark.parametrize('dtype', STACKABLE, ids=str)
@pytest.mark.parametrize('size', [(), (3,), (1, 2), (3, 4, 5), (2, 0)], ids=str)
def test_tensors_of_one_shape_are_stacked_where_they_are_to_be(dtype, size):
    batch = [torch.randint(0, 2, size).to(dtype) for _ in range(3)]
    stacked = stack_later(batch)
    assert (type(stacked) is Stack) == (0 not in size)
    packing = Packing(stacked)
    assert packing.layout.tensors - 64 < torch.stack(batch).nbytes <= packing.layout.tensors
    packed = crossed_packed(stacked)
    assert_same(packed, default_collate(batch))
    assert packed.is_contiguous()


@pytest.mark.parametrize(
    'image',
    [torch.rand(4, 5, 3).permute(2, 0, 1), torch.rand(3, 4, 10)[..., ::2], torch.rand(3, 1, 1).expand(3, 4, 5)],
    ids=['permuted', 'sliced', 'expanded'],
)
def test_tensors_in_any_order_become_one_in_order(image):
    packed = crossed_packed(stack_later([image, image + 1]))
    assert_same(packed, default_collate([image, image + 1]))
    assert packed.stride() == (60, 20, 5, 1)


def test_one_sample_is_a_batch_too():
    batch = [dict(image=torch.rand(3, 2), label=3)]
    assert_same(crossed_packed(stack_later(batch)), default_collate(batch))


def test_a_stack_in_two_places():
    stacked = stack_later([torch.ones(3), torch.zeros(3)])
    packed = crossed_packed([stacked, stacked])
    assert packed[0] is packed[1] and packed[0].tolist() == [[1] * 3, [0] * 3]


class Unmakeable(UserList):
    """A sequence that cannot be made of its items."""

    def __init__(self, *items):
        super().__init__(items)


BATCHES = dict(
    integers=[1, 2**40, -1],
    truth=[True, False],
    floats=[1.0, float('nan'), -0.0],
    complex=[np.complex64(1j), np.complex64(2)],
    scalars=[np.float32(0.5), np.float32('nan')],
    scalars_of_integers=[np.int8(1), np.int8(-3)],
    texts=['a', 'ä'],
    bytes=[b'a', b''],
    arrays=[np.arange(6, dtype='i2').reshape(2, 3), np.zeros((2, 3), 'i2')],
    fortran=[np.asfortranarray(np.ones((2, 3)))] * 2,
    tuples=[(1, torch.ones(2), 'a'), (2, torch.zeros(2), 'b')],
    lists=[[1, [2.0]], [3, [4.0]]],
    lists_of_a_class=[Row([1, torch.ones(2)]), Row([2, torch.ones(2)])],
    empty_lists=[[], []],
    empty_dicts=[{}, {}],
    named=[Pair(torch.ones(2), 1), Pair(torch.zeros(2), 2)],
    dicts=[dict(a=1, b=dict(c=torch.ones(1))), dict(b=dict(c=torch.ones(1)), a=2)],
    dicts_of_a_class=[Record(a=torch.ones(2)), Record(a=torch.ones(2))],
    ordered=[OrderedDict(b=1, a=2), OrderedDict(a=1, b=2)],
    user_dicts=[UserDict(a=torch.ones(2)), UserDict(a=torch.zeros(2))],
    ranges=[range(2), range(2)],
    sizes=[torch.Size((2, 3)), torch.Size((4, 5))],
    user_lists=[UserList([1, 2]), UserList([3, 4])],
    unmakeable=[Unmakeable(1, 2), Unmakeable(3, 4)],
    elements=[InstanceData(a=torch.ones(2)), InstanceData(a=torch.ones(3))],
    samples=[dict(inputs=torch.ones(3, 2), data_samples=InstanceData(a=torch.ones(n))) for n in range(3)],
    more_keys=[dict(a=1), dict(a=2, b=3)],
)


@pytest.mark.parametrize('name', BATCHES)
def test_batches_of_everything(name):
    packed, stock = crossed_packed(stack_later(BATCHES[name])), default_collate(BATCHES[name])
    assert_same(packed, stock)
    assert_no_aliasing(crossed_packed(stack_later(BATCHES[name])))


REJECTED = dict(
    shapes=[torch.ones(2), torch.ones(3)],
    array_shapes=[np.ones(2), np.ones(3)],
    lists=[[1, 2], [1]],
    tuples=[(1, 2), (1,)],
    nested=[dict(a=[torch.ones(1)]), dict(a=[])],
    missing=[dict(a=1, b=2), dict(a=1)],
    nothing=[None, None],
    set=[{1}, {2}],
    objects=[np.array([None]), np.array([None])],
    words=[np.array(['a']), np.array(['b'])],
    dates=[datetime.date(2020, 1, 1)] * 2,
    sparse=[torch.eye(2).to_sparse()] * 2,
    nested_tensors=[torch.nested.nested_tensor([torch.ones(2)])] * 2,
    tensor_and_number=[torch.ones(()), 1.0],
    number_and_text=[1.0, 'a'],
    defaults=[defaultdict(int, a=1), defaultdict(int, a=2)],
    no_samples=[],
)


@pytest.mark.parametrize('name', REJECTED)
def test_what_stock_rejects_is_rejected(name):
    with pytest.raises(Exception) as stock:
        default_collate(REJECTED[name])
    with pytest.raises(type(stock.value)) as ours:
        crossed_packed(stack_later(REJECTED[name]))
    assert type(ours.value) is type(stock.value)


@pytest.mark.parametrize(
    'batch',
    [
        [torch.ones(2, requires_grad=True), torch.ones(2)],
        [torch.ones(2), torch.ones(2, dtype=torch.int64)],
        [torch.ones(2), torch.ones(2).as_subclass(type('Own', (torch.Tensor,), {}))],
        [torch.ones(2, device='meta'), torch.ones(2, device='meta')],
        [torch.nn.Parameter(torch.ones(2))] * 2,
    ],
    ids=['gradient', 'types', 'classes', 'device', 'parameters'],
)
def test_what_is_no_plain_stack_is_made_by_pytorch(batch):
    stacked, stock = stack_later(batch), default_collate(batch)
    assert (
        type(stacked) is type(stock) and stacked.dtype == stock.dtype and stacked.requires_grad == stock.requires_grad
    )
    assert stacked.device.type == 'meta' or torch.equal(stacked, stock)


def test_functions_that_a_program_adds_to_pytorchs_count(monkeypatch):
    # As its documentation has it. (After mmshared was imported.)
    monkeypatch.setitem(default_collate_fn_map, datetime.date, lambda batch, **_: [day.year for day in batch])
    assert stack_later([dict(day=datetime.date(2020, 1, 1))] * 2) == default_collate(
        [dict(day=datetime.date(2020, 1, 1))] * 2
    )

    def halved(batch, *, collate_fn_map=None):
        return collate_tensor_fn([tensor / 2 for tensor in batch], collate_fn_map=collate_fn_map)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, halved)
    batch = [(torch.ones(2), np.ones(2)), (torch.ones(2), np.ones(2))]
    assert_same(crossed_packed(stack_later(batch)), default_collate(batch))


# ---- what the batch is made by, in the main process


def doubled(batch, times=2):
    """A collate function of somebody's own."""
    return pseudo_collate(batch * times)


@pytest.mark.parametrize(
    ('base', 'expected'),
    [
        ('pseudo_collate', pseudo_collate),
        ('default_collate', default_collate),
        ('mmengine.pseudo_collate', pseudo_collate),
        (pseudo_collate, pseudo_collate),
        (doubled, doubled),
        (dict(type='default_collate'), default_collate),
        (dict(type=doubled, times=3), partial(doubled, times=3)),
        (partial(doubled, times=1), partial(doubled, times=1)),
        (f'{__name__}.doubled', doubled),
    ],
    ids=range(9),
)
def test_any_base(base, expected):
    batch = [dict(a=torch.ones(2), b='x'), dict(a=torch.zeros(2), b='y')]
    assert_same(packed_collate(batch, base=base), expected(batch))
    assert not isinstance(base, dict) or 'type' in base  # a config's dict is used again


def test_a_base_of_the_registry():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FUNCTIONS._module_dict, 'doubled', doubled)
        assert len(packed_collate([1, 2], base='doubled')) == 4
        assert len(packed_collate([1, 2], base=dict(type='doubled', times=3))) == 6
    with pytest.raises(KeyError, match=r"packed_collate\(base='doubled'\).*FUNCTIONS.*'module.function'"):
        packed_collate([1, 2], base='doubled')


def test_packed_collate_and_not_another_one_leaves_packing_to_be_undone_later():
    assert without_unpacking(packed_collate).keywords == dict(unpacked=False)
    assert without_unpacking(partial(packed_collate, base=doubled)).keywords == dict(base=doubled, unpacked=False)
    assert without_unpacking(pseudo_collate) is pseudo_collate
    other = partial(doubled, times=3)
    assert without_unpacking(other) is other
