"""Batches on a device: what ends there is what MMEngine would have put there, from one copy, in the right order.

Without a GPU: the device 'meta' shows what was moved, a buffer on the CPU what is in it, and streams that only tell
what they were asked for the order. With one, the real thing.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections import namedtuple
from functools import partial

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.model import BaseDataPreprocessor
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from mmshared.engine.workers import Receiver
from mmshared.parallel import DataContainer, DevicePrefetcher, PackedBatch, packed_collate, to_device
from mmshared.parallel.packing import Packing

from .fake_streams import FakeStreams

Pair = namedtuple('Pair', 'first second')
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU')


def sample(index: int = 0) -> dict:
    element = DetDataSample(metainfo=dict(img_id=index, homography=torch.eye(3), scale=np.float32(2)))
    boxes = HorizontalBoxes(torch.rand(index + 1, 4))
    element.gt_instances = InstanceData(
        bboxes=boxes, labels=torch.arange(index + 1), masks=BitmapMasks(np.ones((index + 1, 4, 4), np.uint8), 4, 4)
    )
    element.ignored_instances = InstanceData(bboxes=HorizontalBoxes(torch.rand(0, 4)), labels=torch.zeros(0).long())
    element.gt_sem_seg = PixelData(sem_seg=torch.randint(0, 9, (1, 4, 4)))
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    return dict(inputs=image, data_samples=element, pair=Pair(torch.tensor(index), 'text'), array=np.arange(3), no=None)


def packed(batch) -> PackedBatch:
    packing = Packing(batch)
    memory = bytearray(packing.layout.nbytes)
    packing.write(memory)
    return PackedBatch(packing.layout, memory)


def tensors_in(thing) -> list:
    """All tensors, in order, where MMEngine's structures and these samples have them."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, (InstanceData, PixelData, DetDataSample)):
        return [tensor for _, value in sorted(thing.all_items()) for tensor in tensors_in(value)]
    if isinstance(thing, HorizontalBoxes):
        return [thing.tensor]
    if isinstance(thing, dict):
        return [tensor for key in thing for tensor in tensors_in(thing[key])]
    if isinstance(thing, (list, tuple)):
        return [tensor for part in thing for tensor in tensors_in(part)]
    return []


def cast(batch, device):
    """What stock makes of ``batch``."""
    preprocessor = BaseDataPreprocessor()
    preprocessor._device = torch.device(device)
    return preprocessor.cast_data(batch)


def described(batch) -> list:
    return [(tensor.device, tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors_in(batch)]


class Copies(TorchDispatchMode):
    """Counts what copies."""

    def __init__(self) -> None:
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(word in str(func) for word in ('copy', 'clone')):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_same_is_moved_as_by_stock():
    batch = [sample(0), sample(2)]
    stock = cast(batch, 'meta')
    for ours in (to_device(batch, torch.device('meta')), packed(batch).to('meta').unpack()):
        assert described(ours) == described(stock)
        assert {device.type for device, *_ in described(ours)} == {'cpu', 'meta'}  # metainfo stays
        assert type(ours[0]['pair']) is Pair and ours[0]['pair'].second == 'text'
        assert type(ours[0]['data_samples']) is DetDataSample
        assert type(ours[0]['data_samples'].gt_instances.masks.masks) is np.ndarray
        assert ours[0]['no'] is None and type(ours) is list


def test_what_is_moved_is_a_view_of_the_one_copy_and_has_the_values():
    batch = [sample(0), sample(2)]
    moves = [device.type == 'meta' for device, *_ in described(cast(batch, 'meta'))]
    box = packed(batch)
    buffer = torch.zeros(box.tensors_nbytes, dtype=torch.uint8)
    box = box.copied_into(buffer)
    with Copies() as copies:
        ours = box.unpack()
    assert len(copies.names) == 2  # of tensors in metainfo, which an element that is moved copies
    assert ours is box.unpack()
    end = buffer.data_ptr() + buffer.numel()
    for tensor, original, moved in zip(tensors_in(ours), tensors_in(batch), moves):
        assert torch.equal(tensor, original) and tensor.stride() == original.stride()
        if tensor.numel():
            assert (buffer.data_ptr() <= tensor.data_ptr() < end) is moved
    before = [tensor.clone() for tensor in tensors_in(ours)]
    for tensor, old in zip(tensors_in(ours), before):  # no two of them share memory
        assert torch.equal(tensor, old)
        tensor.zero_()


def in_one_piece(batch):
    """What the device has of ``batch``, if that were the CPU."""
    box = packed(batch)
    return box.copied_into(torch.zeros(box.tensors_nbytes, dtype=torch.uint8)).unpack()


def test_a_tensor_on_the_device_is_a_tensor_of_its_own():
    """To copy or store it takes no more than its own bytes, and it cannot grow into the next one."""
    image, boxes, labels = in_one_piece([torch.rand(3, 400, 400), torch.rand(5, 4), torch.arange(5)])
    assert boxes.untyped_storage().nbytes() == 80 and image.storage_offset() == boxes.storage_offset() == 0
    assert len(pickle.dumps(boxes)) < 1000
    assert copy.deepcopy(boxes).untyped_storage().nbytes() == 80
    torch.save([image, boxes, labels], io.BytesIO())
    with pytest.raises(RuntimeError, match='resiz'):
        boxes.resize_(100, 4)


def test_autograd_counts_changes_of_each_tensor():
    image, labels = in_one_piece([torch.rand(4, 3, 8, 8), torch.arange(4)])
    loss = torch.nn.Conv2d(3, 2, 3)(image).sum()
    labels[labels == 2] = -1
    loss.backward()


def test_what_is_left_of_a_batch_keeps_the_copy():
    images = in_one_piece([torch.full((300, 300), 1.0), torch.full((300, 300), 2.0)])
    kept = images.pop()
    del images
    gc.collect()
    others = [torch.zeros(600 * 300) for _ in range(20)]
    assert (kept == 2).all() and len(others) == 20


class Asks:
    """Asks a tensor for the device in one way, when a data element moves it."""

    def __init__(self, tensor, how):
        self.tensor, self.how = tensor, how

    def to(self, *args, **kwargs):
        return Asks(self.how(self.tensor, *args, **kwargs), self.how)


def twice(tensor, *args, **kwargs):
    return torch.stack([tensor.to(*args, **kwargs), tensor.to(*args, **kwargs) + 1])


def as_half(tensor, device, non_blocking):
    return tensor.to(device, torch.float16)


def as_other(tensor, device, non_blocking):
    return tensor.to(tensor.new_zeros(2, dtype=torch.float64))


def with_copy(tensor, device, non_blocking):
    return tensor.to(device, copy=True)


@pytest.mark.parametrize('how', [twice, as_half, as_other, with_copy])
def test_other_ways_to_ask_get_what_they_ask_for(how):
    batch = [BaseDataElement(thing=Asks(torch.arange(3.0), how))]
    stock = cast(batch, 'cpu')[0].thing.tensor
    box = packed(batch)
    ours = box.copied_into(torch.zeros(box.tensors_nbytes, dtype=torch.uint8)).unpack()[0].thing.tensor
    assert torch.equal(ours, stock) and ours.dtype is stock.dtype


SEEN = []


def note(tensor, *args, **kwargs):
    SEEN[:] = tensor.to(*args, **kwargs), tensor.to(*args, **kwargs)
    return tensor


def test_a_tensor_that_is_asked_for_twice_is_two():
    """As far as the CPU can tell: the second is no view of the copy."""
    box = packed([BaseDataElement(thing=Asks(torch.arange(3.0), note))])
    box.copied_into(torch.zeros(box.tensors_nbytes, dtype=torch.uint8)).unpack()
    SEEN[0].zero_()
    assert torch.equal(SEEN[1], torch.arange(3.0))


@pytest.mark.parametrize(
    'tensor',
    [
        torch.ones(3, 1).expand(3, 4),
        torch.ones(1).expand(5),
        torch.ones(2, 1, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(1, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(4, 5).t(),
        torch.ones(0, 4),
        torch.ones(()),
    ],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_strides_are_those_that_stock_gives(tensor):
    assert described(packed([tensor]).to('meta').unpack()) == described(cast([tensor], 'meta'))


def test_data_of_containers_is_taken_out():
    batch = dict(
        img=DataContainer([torch.ones(2, 3)], stack=True),
        boxes=DataContainer([[torch.ones(1, 4), torch.ones(2, 4)]]),
        metas=DataContainer([[dict(flip=True), dict(flip=False)]], cpu_only=True),
    )
    box = packed(batch)
    for ours in (to_device(batch, torch.device('meta')), box.to('meta').unpack()):
        assert ours['img'].device.type == 'meta' and ours['img'].shape == (2, 3)
        assert [boxes.shape for boxes in ours['boxes']] == [(1, 4), (2, 4)]
        assert ours['metas'] == [dict(flip=True), dict(flip=False)]
    here = packed(batch)
    here = here.copied_into(torch.zeros(here.tensors_nbytes, dtype=torch.uint8)).unpack()
    assert torch.equal(here['boxes'][1], torch.ones(2, 4))


def test_a_batch_without_tensors():
    for batch in (['text', None], [np.arange(4)], []):
        ours = packed(batch).to('meta').unpack()
        assert str(ours) == str(batch)


def test_pinning_needs_a_device():
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError):
            packed([torch.ones(2)]).pin_memory()
    assert packed(['no tensors']).pin_memory().unpack() == ['no tensors']


def prefetch(batches, streams, **options):
    return DevicePrefetcher(batches, 'cpu', streams=streams, **options)


def test_the_next_copy_begins_before_a_batch_is_given_and_in_the_right_order():
    streams = FakeStreams()

    def batches():
        for index in range(3):
            streams.log.append(('asked', index))
            yield packed([torch.full((3,), index)])

    for index, batch in enumerate(prefetch(batches(), streams)):
        assert torch.equal(batch[0], torch.full((3,), index))
        streams.log.append(('given', index))

    def copy(number):
        return [
            ('side', 'waits for all of', 'main'),  # whose memory it may get
            ('side', 'begins'),
            ('keeps', 64),
            ('side', 'records', number),
            ('side', 'ends'),
        ]

    assert streams.log == [
        *[('asked', 0), *copy(1)],
        *[('main', 'waits for', 'side', 1), ('asked', 1), *copy(2), ('given', 0)],
        *[('main', 'waits for', 'side', 2), ('asked', 2), *copy(3), ('given', 1)],
        *[('main', 'waits for', 'side', 3), ('given', 2)],
    ]


class Alive:
    """Buffers on the device that exist at one time."""

    def __init__(self, monkeypatch):
        self.now, self.most = weakref.WeakSet(), 0
        copied_into = PackedBatch.copied_into

        def counted(box, buffer, **options):
            self.now.add(buffer.untyped_storage())
            self.most = max(self.most, len(self.now))
            return copied_into(box, buffer, **options)

        monkeypatch.setattr(PackedBatch, 'copied_into', counted)


def test_the_device_has_two_batches_at_most(monkeypatch):
    alive = Alive(monkeypatch)
    gc.disable()  # nothing may wait for it
    try:
        iterator = prefetch((packed([torch.full((1000,), index)]) for index in range(6)), FakeStreams())
        for index in range(6):
            batch = next(iterator)
            assert batch[0][5] == index
            del batch
    finally:
        gc.enable()
    assert len(alive.now) == 0


def test_errors_come_in_their_place():
    def batches():
        yield packed([torch.zeros(1)])
        yield packed([torch.ones(1)])
        raise ValueError('third')

    iterator = prefetch(batches(), FakeStreams())
    assert [next(iterator)[0].item(), next(iterator)[0].item()] == [0, 1]
    with pytest.raises(ValueError, match='third'):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_nothing_is_asked_for_early_if_it_must_not_be():
    asked = []

    def batches():
        for index in range(3):
            asked.append(index)
            yield packed([torch.full((3,), index)])

    for index, batch in enumerate(prefetch(batches(), FakeStreams(), ahead=False)):
        assert asked == list(range(index + 1)) and batch[0][0] == index


def test_batches_that_are_not_packed_are_moved_when_they_are_asked_for():
    batch = [torch.ones(3), 'text']
    assert [one[0] is batch[0] for one in prefetch([batch, batch], FakeStreams())] == [True, True]
    (moved,) = DevicePrefetcher([batch], 'meta')
    assert moved[0].device.type == 'meta' and moved[1] == 'text'


def test_on_a_cpu_batches_are_passed_on():
    batch = [torch.ones(3)]
    plain, unpacked = DevicePrefetcher([batch, packed([torch.ones(3)])], 'cpu')
    assert plain is batch and torch.equal(unpacked[0], batch[0])


class Model(torch.nn.Module):
    def __init__(self, preprocessor):
        super().__init__()
        self.data_preprocessor = preprocessor


class Runner:
    def __init__(self, preprocessor):
        self.model = Model(preprocessor)


class OwnWay(BaseDataPreprocessor):
    def cast_data(self, data):
        return data


def on_meta(kind=BaseDataPreprocessor):
    preprocessor = kind()
    preprocessor._device = torch.device('meta')
    return Runner(preprocessor)


@pytest.mark.parametrize(
    'runner, scatter, where',
    [
        (on_meta(), 'auto', 'meta'),
        (on_meta(), True, 'meta'),
        (on_meta(), False, 'cpu'),
        (on_meta(OwnWay), 'auto', 'cpu'),
        (on_meta(OwnWay), True, 'meta'),
        (Runner(BaseDataPreprocessor()), 'auto', 'cpu'),
        (Runner(BaseDataPreprocessor()), True, 'cpu'),
        (Runner(None), 'auto', 'cpu'),
        (None, 'auto', 'cpu'),
    ],
)
def test_where_batches_are_received(runner, scatter, where):
    receiver = Receiver(runner, scatter)
    (batch,) = receiver.receive(iter([[torch.ones(2)]]))
    assert batch[0].device.type == where
    # Who does not unpack batches does not ask for packed ones.
    assert (receiver.collate(packed_collate) is packed_collate) is (where == 'cpu')
    collate = receiver.collate(partial(packed_collate, base='default_collate'))
    assert collate.keywords == dict(base='default_collate', **({} if where == 'cpu' else dict(unpacked=False)))
    assert receiver.collate(list) is list


@pytest.mark.parametrize('scatter', ['auto', False])
def test_containers_are_opened_on_a_cpu_unless_that_is_left_to_the_model(scatter):
    batch = dict(img=DataContainer([torch.ones(2, 3)], stack=True), name=['a'])
    (ours,) = Receiver(None, scatter).receive(iter([batch]))
    if scatter is False:
        assert ours is batch
    else:
        assert torch.equal(ours['img'], torch.ones(2, 3)) and ours['name'] == ['a']


def test_a_model_that_leaves_its_device_gets_batches_all_the_same():
    runner = on_meta()
    receiver = Receiver(runner)
    collate = receiver.collate(packed_collate)
    runner.model.data_preprocessor._device = torch.device('cpu')
    loader = DataLoader([torch.ones(2)], 1, num_workers=1, collate_fn=collate)
    assert [batch[0].tolist() for batch in receiver.receive(iter(loader))] == [[1, 1]]


@pytest.mark.parametrize('options', [dict(scatter='yes'), dict(prefetch=1.5), dict(prefetch=None)])
def test_choices_are_checked(options):
    with pytest.raises(ValueError, match="should be True, False or 'auto'"):
        Receiver(None, **options)


def collated(size, workers=2, **options):
    collate = partial(packed_collate, unpacked=False)
    return DataLoader([sample(index) for index in range(size)], 2, num_workers=workers, collate_fn=collate, **options)


@pytest.mark.parametrize('big', [False, True], ids=['in the message', 'in shared memory'])
def test_packed_batches_come_from_workers(big, monkeypatch):
    if big:
        monkeypatch.setattr('mmshared.parallel.batch.INLINE', 0)
    for index, box in enumerate(collated(6)):
        assert type(box) is PackedBatch
        ours = box.copied_into(torch.zeros(box.tensors_nbytes, dtype=torch.uint8)).unpack()
        assert [int(pair) for pair in ours['pair'].first] == [2 * index, 2 * index + 1]
        assert [len(one.gt_instances) for one in ours['data_samples']] == [2 * index + 1, 2 * index + 2]


class WithSparse:
    """What PyTorch sends by itself, which has to be fetched while the worker lives."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return dict(sparse=torch.eye(3).to_sparse(), dense=torch.full((3,), index))


def test_what_pytorch_sends_is_there_when_the_worker_is_gone():
    boxes = list(DataLoader(WithSparse(), 1, num_workers=1, collate_fn=partial(packed_collate, unpacked=False)))
    for index, box in enumerate(boxes):
        batch = box.copied_into(torch.zeros(box.tensors_nbytes, dtype=torch.uint8)).unpack()
        assert torch.equal(batch['sparse'][0].to_dense(), torch.eye(3))
        assert torch.equal(batch['dense'][0], torch.full((3,), index))


@needs_gpu
def test_pinned_memory_is_one_piece_and_packed_batches_survive_the_pin_thread():
    for box in collated(6, pin_memory=True):
        assert type(box) is PackedBatch
        host = box.unpack()
        assert host['inputs'][0].is_pinned() and host['pair'].first[0].is_pinned()
        assert len({tensor.untyped_storage().data_ptr() for tensor in host['inputs']}) == 1


@needs_gpu
@pytest.mark.parametrize('pin_memory', [False, True])
def test_on_a_gpu_all_is_as_stock_has_it(pin_memory):
    batches = DevicePrefetcher(collated(8, pin_memory=pin_memory), 'cuda')
    stock = DataLoader([sample(index) for index in range(8)], 2, num_workers=0, collate_fn=packed_collate)
    torch.manual_seed(0)
    for ours, theirs in zip(batches, stock):
        theirs = cast(theirs, 'cuda:0')
        assert described(ours) == described(theirs)


@needs_gpu
def test_on_a_gpu_no_copy_overtakes_and_two_batches_are_enough():
    """The device is kept busy, so that a copy too early, or into memory still in use, would be seen."""
    size, results = 4_000_000, []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    batches = (packed([torch.full((size,), float(index))]).pin_memory() for index in range(12))
    iterator = DevicePrefetcher(batches, 'cuda')
    for _ in range(12):
        batch = next(iterator)
        torch.cuda._sleep(20_000_000)
        results.append((batch[0].min(), batch[0].max()))
        del batch
    assert [(low.item(), high.item()) for low, high in results] == [(float(i), float(i)) for i in range(12)]
    assert torch.cuda.max_memory_allocated() - base < 2.5 * 4 * size
