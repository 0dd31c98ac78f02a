"""scatter, DataContainer and its collate function: as mmcv 1.7.2's, of which ``mmcv_table.json`` has the results."""

from __future__ import annotations

import builtins
import json
import math
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import ConfigDict
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch.nn.parallel import scatter as torch_scatter

from mmshared.parallel.data_container import (
    DataContainer,
    collate,
    data_container_collate,
    holds_data_containers,
    is_data_container,
)
from mmshared.parallel.scatter import DataError, DeviceError, DimensionError, scatter, scatter_kwargs

from .make_mmcv_table import TABLE, Missing, Pair, Refused, run

API = {'DataContainer': DataContainer, 'collate': collate, 'scatter': scatter, 'scatter_kwargs': scatter_kwargs}
CASES = json.loads(TABLE.read_text(encoding='utf-8'))
CPU = torch.device('cpu')

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason='needs two GPUs')


class Foreign:
    """A DataContainer of somebody else: the attributes, and nothing more."""

    def __init__(self, data, stack=False, padding_value=0, cpu_only=False, pad_dims=2):
        self.data, self.stack, self.padding_value = data, stack, padding_value
        self.cpu_only, self.pad_dims = cpu_only, pad_dims


class Obliging:
    """Has every attribute that is asked for."""

    def __getattr__(self, name):
        return 0


def equal(result: Any, expected: Any, itself: bool = False) -> bool:
    """Whether it is of the same structure, with equal tensors on the same devices, or these very tensors ``itself``."""
    if type(result) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(result) == list(expected) and all(equal(result[key], expected[key], itself) for key in expected)
    if isinstance(expected, (list, tuple)):
        return len(result) == len(expected) and all(equal(*pair, itself) for pair in zip(result, expected))
    if not isinstance(expected, torch.Tensor):
        return result == expected
    if itself:
        return result is expected
    return (result.device, result.dtype) == (expected.device, expected.dtype) and torch.equal(result, expected)


def same(result: Any, expected: Any) -> bool:
    """Whether it is of the same structure, and has the very same tensors."""
    return equal(result, expected, itself=True)


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(math.prod(shape))).reshape(shape)


# As mmcv 1.7.2.


def test_the_table_is_whole():
    calls = {case['call'] for case in CASES}
    assert len(CASES) > 250 and calls == {'scatter', 'scatter_kwargs', 'collate', 'about', 'size', 'dim'}
    assert sum('raises' in case for case in CASES) > 60


@pytest.mark.parametrize(
    ('call', 'container'),
    [
        *((call, kind) for call in ('scatter', 'scatter_kwargs', 'collate') for kind in (DataContainer, Foreign)),
        *((call, DataContainer) for call in ('about', 'size', 'dim')),
    ],
)
def test_as_mmcv(call, container):
    for case in (case for case in CASES if case['call'] == call):
        try:
            result, encode = run(case, {**API, 'DataContainer': container})
        except Refused as refused:
            error = refused.__cause__
            assert 'raises' in case and isinstance(error, getattr(builtins, case['raises'])), (case, error)
            assert len(str(error)) > 20
        else:
            assert json.loads(json.dumps(encode(result))) == case.get('gives', 'nothing'), case


def test_container_is_read_only_and_travels():
    container = DataContainer(numbers(2, 3), stack=True, padding_value=5, pad_dims=1)
    for name in ('data', 'stack', 'padding_value', 'cpu_only', 'pad_dims', 'datatype'):
        with pytest.raises(AttributeError):
            setattr(container, name, 1)
    again = pickle.loads(pickle.dumps(container))
    assert torch.equal(again.data, container.data)
    assert (again.stack, again.padding_value, again.cpu_only, again.pad_dims) == (True, 5, False, 1)


def test_what_is_a_container():
    marks = {'data': [], 'stack': False, 'cpu_only': True, 'padding_value': 0, 'pad_dims': None}
    containers = [DataContainer(1), Foreign(1), SimpleNamespace(**marks)]
    assert all(map(is_data_container, containers))
    less = {name: value for name, value in marks.items() if name != 'pad_dims'}
    others = [None, 1, 'a', numbers(2), [], {}, Missing(), ConfigDict(marks), DataContainer, SimpleNamespace(**less)]
    others += [Obliging(), BaseDataElement(**{**marks, 'data': 1})]
    assert not any(map(is_data_container, others))
    for container in containers:
        nested = [{'a': [1, 'b', (None, numbers(2), Pair(1, [container]))]}, [container], (1, container), container]
        assert all(map(holds_data_containers, nested))
    assert not holds_data_containers([others, {'a': (InstanceData(), [others])}])


# Without mmcv's quirks.

tensors = st.sampled_from(
    [
        numbers(3, 2),
        numbers(3, 2).t(),
        numbers(1, 2, 2, 2).contiguous(memory_format=torch.channels_last),
        numbers(2).expand(3, 2),
        torch.tensor(3),
        torch.zeros(0, 4),
        numbers(2, 2).requires_grad_(),
    ]
)
atoms = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=2), tensors)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda items: st.one_of(
            st.lists(items, max_size=3),
            st.lists(items, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2), items, max_size=3),
        ),
        max_leaves=12,
    )


def contained(kind):
    """Pairs: a container as collate makes it for one device, and what that device gets."""
    return st.one_of(
        nested(atoms).map(lambda item: (kind([item], cpu_only=True), item)),
        tensors.map(lambda tensor: (kind([tensor], stack=True), tensor)),
        st.lists(tensors, max_size=3).map(lambda items: (kind([items]), list(items))),
    )


@settings(max_examples=150, deadline=None)
@given(inputs=nested(atoms), device=st.sampled_from([CPU, 'cpu']))
def test_one_cpu_gets_what_is_there(inputs, device):
    assert same(scatter(inputs, [device])[0], inputs)
    positional, keywords = scatter_kwargs((inputs,), {'a': inputs}, [device])
    assert same(positional, ((inputs,),)) and same(keywords, ({'a': inputs},))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(contained(DataContainer), contained(Foreign)), min_size=1, max_size=4), nested(atoms))
def test_one_cpu_gets_the_data_of_containers(fields, plain):
    batch = {index: container for index, (container, _) in enumerate(fields)}
    expected = {index: data for index, (_, data) in enumerate(fields)}
    assert same(scatter({'x': [batch], 'y': plain}, ['cpu'])[0], {'x': [expected], 'y': plain})
    assert same(scatter(tuple(batch.values()), ['cpu'])[0], tuple(expected.values()))


@settings(max_examples=100, deadline=None)
@given(length=st.integers(0, 9), count=st.integers(2, 5), dim=st.sampled_from([0, 1, -1]))
def test_several_devices_get_chunks(length, count, dim):
    shape = (length, 3) if dim == 0 else (3, length)
    chunks = numbers(*shape).chunk(count, dim)
    shares = scatter([numbers(*shape), {'a': 1}], ['cpu'] * count, dim)
    assert len(shares) == len(chunks)
    assert all(equal(share, [chunk, {'a': 1}]) for share, chunk in zip(shares, chunks))


@settings(max_examples=60, deadline=None)
@given(groups=st.integers(1, 6), count=st.integers(1, 6))
def test_several_devices_get_entries(groups, count):
    data = [[numbers(2)] for _ in range(groups)]
    assert same(scatter(DataContainer(data), ['cpu'] * count), tuple(data))
    meta = DataContainer(list(range(groups)), cpu_only=True)
    both = scatter({'a': DataContainer(data), 'b': meta, 'c': 0}, ['cpu'] * count)
    assert same(both, [{'a': data[index], 'b': index, 'c': 0} for index in range(min(groups, count))])


def test_elements_move_as_a_whole():
    element = InstanceData(boxes=numbers(2, 4), metainfo={'id': 3})
    for devices in ([-1], ['cpu'], [CPU, 'cpu']):
        shares = scatter({'a': [element, 1], 'b': DataContainer([[element]] * len(devices))}, devices)
        assert len(shares) == len(devices)
        for share in shares:
            for moved in (share['a'][0], share['b'][0]):
                assert type(moved) is InstanceData and moved is not element
                assert moved.boxes is element.boxes and moved.id == 3
    to_meta = scatter([element], ['meta'])[0][0]
    assert to_meta.boxes.device.type == 'meta'


def test_tensors_move():
    batch = {'a': [numbers(2, 2)], 'b': DataContainer([[numbers(3)], [numbers(4)]]), 'c': numbers(4)}
    first, second = scatter(batch, ['meta', CPU])
    assert [first['a'][0].device.type, first['b'][0].device.type, first['c'].device.type] == ['meta'] * 3
    assert equal(second, {'a': [numbers(2, 2)[1:]], 'b': [numbers(4)], 'c': numbers(4)[2:]})


def test_gradients_pass():
    weight = numbers(4).requires_grad_()
    first, second = scatter(weight * 1, ['cpu', 'cpu'])
    (first.sum() + 2 * second.sum() + 3 * scatter(DataContainer([weight * 1]), [-1])[0].sum()).backward()
    assert weight.grad.tolist() == [4, 4, 5, 5]


def test_data_of_the_user_is_left_alone():
    data = [1]
    positional, keywords = scatter_kwargs(DataContainer(data, cpu_only=True), DataContainer([[], []]), [-1])
    assert positional == (1, ()) and keywords == ([], [])
    assert data == [1]  # mmcv appends to it


# What cannot be.


@pytest.mark.parametrize(
    ('inputs', 'devices', 'kind', 'words'),
    [
        ({'a': [1, DataContainer(['b'])]}, ['cpu'], DataError, r"^inputs\['a'\]\[1\]\[0\]: .* str; .*cpu_only=True"),
        ([DataContainer(3, cpu_only=True)], ['cpu'], DataError, r'^inputs\[0\]: .* int$'),
        (numbers(2), [99], DeviceError, r'^inputs: there is no device cuda:99: PyTorch finds \d'),
        ([DataContainer([numbers(2)])], ['cuda:99'], DeviceError, r'^inputs\[0\]: there is no device cuda:99'),
        ([BaseDataElement()], [0, 'cuda:99'], DeviceError, r'^inputs\[0\]: there is no device cuda'),
        (DataContainer([numbers(2)]), [-2], DeviceError, 'no device -2'),
        ({'a': numbers(2)}, [-1, -1], DeviceError, r"^inputs\['a'\]: -1, the CPU, stands alone"),
        (numbers(2), [], DeviceError, 'devices is empty'),
        (DataContainer([]), [], DeviceError, 'devices is empty'),
        ([numbers()], ['cpu', 'cpu'], DeviceError, r'^inputs\[0\]: .*without dimensions'),
        ([numbers()], ['cpu', 'cpu', 1.5], TypeError, 'not 1.5'),
        (1, 'cpu', TypeError, r"list of devices, such as \['cpu'\]"),
        (1, -1, TypeError, r'list of devices, such as \[-1\]'),
        (1, ['nonsense'], RuntimeError, 'nonsense'),
    ],
)
def test_errors_of_scatter_say_where(inputs, devices, kind, words):
    with pytest.raises(kind, match=words):
        scatter(inputs, devices)


def test_further_errors_of_scatter():
    with pytest.raises(DimensionError, match=r'^inputs\[0\]: a tensor \(4, 2\) cannot be divided along dimension 2'):
        scatter([numbers(4, 2)], ['cpu', 'cpu'], dim=2)
    with pytest.raises(DataError, match=r"^kwargs\['a'\]"):
        scatter_kwargs((), {'a': DataContainer('b')}, ['cpu'])
    with pytest.raises(AttributeError, match='pass a tuple of arguments'):
        scatter_kwargs(torch.ones(1), {'a': DataContainer([[], []])}, ['cpu', 'cpu'])


def test_what_is_not_moved_needs_no_device():
    for devices in ([98, 99], [-1, -1], ['cuda:99', 98]):
        assert scatter({'a': ('b', [])}, devices) == [{'a': ('b', [])}] * 2
        assert scatter([DataContainer([1, 2], cpu_only=True)], devices) == [[1], [2]]


def test_errors_of_collate_say_where_and_what():
    good, bad = ({'x': [DataContainer(numbers(count, 2, 2), stack=True)]} for count in (1, 2))
    with pytest.raises(AssertionError, match=r"^batch\['x'\]\[0\]: shapes differ(.|\n)*sample 1: Tensor \(2, 2, 2\)"):
        collate([good, bad], 2)
    with pytest.raises(TypeError, match=r"^batch\['x'\]\['y'\]: .*NoneType"):
        collate([{'x': {'y': None}}])
    with pytest.raises(TypeError, match=r"^batch\['x'\]: text \('a'\) has no batches"):
        collate([{'x': 'a'}, {'x': 'b'}])
    with pytest.raises(KeyError, match='the first sample has that key'):
        collate([good, {}])


# From samples to the model.


class Shapes:
    """Samples as pipelines of mmcv 1.x make them: images of several sizes, boxes, and what is known of them."""

    metainfo = {}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {
            'img': DataContainer(torch.full((3, 4 + index, 6 - index), float(index)), stack=True, padding_value=-1),
            'gt_bboxes': DataContainer(numbers(index, 4)),
            'img_metas': DataContainer({'id': index}, cpu_only=True),
            'sample': InstanceData(labels=torch.tensor([index])),
        }


def expected_batch(indices):
    height, width = 4 + max(indices), 6 - min(indices)
    image = torch.full((len(indices), 3, height, width), -1.0)
    for row, index in enumerate(indices):
        image[row, :, : 4 + index, : 6 - index] = index
    boxes, metas = [numbers(index, 4) for index in indices], [{'id': index} for index in indices]
    return {'img': image, 'gt_bboxes': boxes, 'img_metas': metas}


@settings(max_examples=40, deadline=None)
@given(indices=st.lists(st.integers(0, 3), min_size=1, max_size=6), devices=st.sampled_from([[-1], ['cpu']]))
def test_round_trip(indices, devices):
    samples = [Shapes()[index] for index in indices]
    result = scatter(data_container_collate(samples), devices)[0]
    labels = [element.labels.item() for element in result.pop('sample')]
    assert equal(result, expected_batch(indices)) and labels == indices
    for sample, boxes in zip(samples, result['gt_bboxes']):
        assert boxes is sample['gt_bboxes'].data


def test_groups_are_for_devices():
    shares = scatter(collate([Shapes()[index] for index in range(4)], 2), ['cpu', 'cpu'])
    for share, indices in zip(shares, ([0, 1], [2, 3])):
        assert share.pop('sample')[0] is not None
        assert equal(share, expected_batch(indices))


def test_elements_make_a_list():
    elements = [InstanceData(), BaseDataElement()]
    assert same([collate(elements), collate(tuple(elements))], [elements, elements])
    collated = collate([{'a': element, 'b': np.arange(2)} for element in elements])
    assert collated['a'][1] is elements[1] and torch.equal(collated['b'], torch.tensor([[0, 1], [0, 1]]))


class Model(BaseModel):
    """Keeps what it gets."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = []

    def train_step(self, data, optim_wrapper):
        return super().train_step(scatter(data, [self.weight.device])[0], optim_wrapper)

    def forward(self, mode, **batch):
        self.seen.append(batch)
        return {'loss': (self.weight * batch['img']).mean()}


@pytest.mark.parametrize('workers', [0, 1])
def test_containers_train_with_a_config(workers, tmp_path):
    loader = {
        'batch_size': 2,
        'num_workers': workers,
        'dataset': Shapes(),
        'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        'collate_fn': {'type': 'data_container_collate'},
    }
    runner = Runner(
        Model(),
        str(tmp_path),
        train_dataloader=loader,
        train_cfg={'by_epoch': True, 'max_epochs': 1},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.1}},
        default_hooks={'checkpoint': None},
        experiment_name=f'containers{workers}',
        log_level='ERROR',
    )
    runner.train()
    for batch, indices in zip(runner.model.seen, ([0, 1], [2, 3])):
        assert [element.labels.item() for element in batch.pop('sample')] == indices
        assert equal(batch, expected_batch(indices))
    assert len(runner.model.seen) == 2 and runner.model.weight.item() != 1


# On GPUs.


@needs_gpu
def test_tensors_on_one_gpu_as_torch():
    inputs = {'a': [numbers(4, 2), (numbers(3), None)], 'b': numbers(2, 3).t(), 'c': numbers(2).cuda()}
    assert equal(scatter(inputs, [0]), torch_scatter(inputs, [0]))
    for scattering in (scatter, torch_scatter):
        with pytest.raises(RuntimeError):
            scattering(numbers(), [0])


@needs_gpu
@pytest.mark.parametrize('pinned', [False, True])
def test_containers_on_one_gpu(pinned):
    meta = [object()]
    for device in (0, 'cuda:0', torch.device('cuda', 0), 'cuda'):
        data = [numbers(64, 1000), numbers(3, 2).t(), numbers(2)]
        data = [tensor.pin_memory() for tensor in data] if pinned else data
        batch = {'a': DataContainer([data]), 'b': DataContainer(data[-1:]), 'c': DataContainer(meta, cpu_only=True)}
        expected = [tensor.cuda(0) for tensor in data]
        assert equal(scatter(batch, [device]), [{'a': expected, 'b': expected[-1], 'c': meta[0]}])
        assert equal(scatter(DataContainer(data), [device]), tuple(expected))
    assert scatter(DataContainer(data), [0])[1].is_contiguous()


@needs_gpu
def test_one_gpu_without_quirks():
    image = numbers(1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    there = numbers(3).cuda(0)
    moved, scalar, stays, element = scatter([image, numbers(), there, InstanceData(a=numbers(2))], ['cuda:0'])[0]
    assert moved.stride() == image.stride() and torch.equal(moved.cpu(), image)
    assert equal(scalar, numbers().cuda(0)) and stays is there and element.a.is_cuda


@needs_gpu
def test_what_is_on_a_gpu_stays_for_minus_one():
    there = numbers(2).cuda()
    assert same(scatter([there, DataContainer([there])], [-1])[0], [there, there])
    assert equal(scatter([there, DataContainer([there])], ['cpu'])[0], [numbers(2), numbers(2)])


@needs_two_gpus
@pytest.mark.parametrize('dim', [0, 1])
def test_tensors_on_two_gpus_as_torch(dim):
    inputs = [numbers(4, 3), {'a': (numbers(3, 4), 'b')}, numbers(5, 5).cuda(0)]
    for devices in ([0, 1], ['cuda:0', 'cuda:1'], [torch.device('cuda', 0), 1]):
        assert equal(scatter(inputs, devices, dim), torch_scatter(inputs, [0, 1], dim))
    assert equal(scatter(inputs, [1, 0], dim), torch_scatter(inputs, [1, 0], dim))


@needs_two_gpus
@pytest.mark.parametrize('groups', [1, 2, 3, 4, 5])
def test_containers_on_two_gpus(groups):
    data = [[numbers(2), numbers(index, 4)] for index in range(groups)]
    size = math.ceil(groups / 2)
    for devices in ([0, 1], [1, 0], ['cuda:0', 'cuda:1']):
        owners = [devices[index // size] for index in range(groups)]
        expected = tuple([tensor.to(owner) for tensor in pair] for pair, owner in zip(data, owners))
        assert equal(scatter(DataContainer(data), devices), expected)
        assert equal(scatter(DataContainer(data[0]), devices[:1]), tuple(expected[0]))
        assert scatter(DataContainer(data[0][0]), devices)[0].device == expected[0][0].device
        element = InstanceData(a=numbers(2))
        moved = [share[0].a for share in scatter([element, DataContainer([data, data])], devices)]
        assert all(equal(tensor, numbers(2).to(device)) for tensor, device in zip(moved, devices)) and len(moved) == 2
