"""Tensors and arrays of every kind, packed and unpacked: what they are afterwards, and how much room they take."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch

from mmshared.parallel.packing import Packing, PinnedViews, RecordedViews, Views, unpack

from .batches import NUMPY_DTYPES, RECORD, TORCH_DTYPES, dense, noise
from .comparison import assert_as_stock, assert_same, crossed_by_stock, crossed_packed, room, without_sockets  # noqa: F401

pytestmark = [
    pytest.mark.usefixtures('without_sockets', 'everything_is_packed'),
    pytest.mark.filterwarnings('ignore:.*(ComplexHalf|prototype)'),
]


# ---- tensors


@pytest.mark.parametrize('dtype', TORCH_DTYPES, ids=str)
def test_tensors_of_every_type_in_every_order(dtype):
    rng = random.Random(0)
    images = dense(rng, (2, 4, 5, 3), dtype)
    forms = dict(
        dense=images,
        number=dense(rng, (), dtype),
        one=dense(rng, (1,), dtype),
        empty=dense(rng, (0, 3), dtype),
        nothing=dense(rng, (0,), dtype),
        part=images[1],
        sliced=images[:, ::2, 1:4],
        permuted=images.permute(3, 1, 0, 2),
        channels_last=images.permute(0, 3, 1, 2),
        one_image=images[:1].permute(0, 3, 1, 2),
        one_channel=images[..., :1].permute(0, 3, 1, 2),
        one_channel_of_its_own=dense(rng, (2, 4, 5, 1), dtype).permute(0, 3, 1, 2),
        expanded=images[:1, :1].expand(4, 7, 5, 3),
        one_number=dense(rng, (1,), dtype).expand(9),
        expanded_and_permuted=images[..., None].expand(2, 4, 5, 3, 6).permute(4, 3, 0, 2, 1),
        windows=dense(rng, (9,), dtype).unfold(0, 4, 1),
    )
    packed = assert_as_stock(forms)
    assert packed['channels_last'].is_contiguous(memory_format=torch.channels_last)
    assert packed['one_number'].stride() == (0,)
    assert all(not tensor.is_shared() for tensor in crossed_packed(dict(forms)).values())


def test_a_view_does_not_bring_along_what_it_is_a_view_of():
    big = torch.arange(1_000_000.0)
    assert room(big[500:503]) == 64
    assert room([big[::100_000], big[3:4]]) == 128
    assert room(big.view(1000, 1000)[:2, :2]) == 64
    assert crossed_packed(big[500:503]).untyped_storage().nbytes() == 12
    assert crossed_by_stock(big[500:503]).untyped_storage().nbytes() == 4_000_000
    assert room(np.arange(1_000_000)[500:503]) == 24


def test_an_expanded_tensor_does_not_grow():
    expanded = torch.arange(3.0)[:, None].expand(3, 1_000_000)
    assert room(expanded) == 64
    packed = crossed_packed(expanded)
    assert packed.stride() == (1, 0) and torch.equal(packed, expanded)


@pytest.mark.parametrize(
    'size', [(2, 3, 8, 8), (1, 3, 8, 8), (2, 1, 8, 8), (1, 1, 8, 8), (2, 3, 1, 8), (2, 3, 1, 1)], ids=str
)
@pytest.mark.parametrize('form', [torch.channels_last, torch.contiguous_format], ids=str)
def test_a_convolution_computes_in_the_same_order(size, form):
    # By its strides alone PyTorch knows which order an image is in, also where it has one channel only.
    images = torch.rand(size).to(memory_format=form)
    packed, stock = crossed_packed(images), crossed_by_stock(images)
    weights = torch.rand(4, size[1], 1, 1)
    outputs = [torch.nn.functional.conv2d(some, weights) for some in (stock, packed)]
    assert outputs[0].stride() == outputs[1].stride() and torch.equal(*outputs)
    assert (stock * 2).stride() == (packed * 2).stride() == images.stride()
    assert packed.stride() == images.stride()


def test_views_that_are_computed_when_they_are_read():
    # PyTorch sends the memory and forgets what the view does: 1j instead of -1j.
    numbers = torch.tensor([1 + 2j, float('nan') - 0j])
    packed = crossed_packed(
        [numbers.conj(), numbers.conj().imag, numbers.chalf().conj(), numbers.conj()[:, None].expand(2, 3)]
    )
    expected = [numbers.conj().resolve_conj(), numbers.conj().imag.resolve_neg(), numbers.chalf().conj().resolve_conj()]
    assert_same(packed[:3], [tensor.clone() for tensor in expected])
    assert_same(packed[3].contiguous(), expected[0][:, None].expand(2, 3).contiguous())


def test_what_was_made_in_inference_mode():
    with torch.inference_mode():
        tensor = torch.arange(6.0).view(2, 3)
    packed = crossed_packed([tensor, tensor.t()])
    assert torch.equal(packed[0], torch.arange(6.0).view(2, 3)) and torch.equal(packed[1], packed[0].t())
    packed[0].requires_grad_()  # which one of inference mode would refuse


def test_a_shared_tensor_is_copied():
    shared = torch.arange(3.0).share_memory_()
    packed = crossed_packed(shared)
    shared.fill_(7)
    assert packed.tolist() == [0, 1, 2] and not packed.is_shared()


def test_the_sender_keeps_what_it_has():
    batch = [torch.arange(3.0), np.arange(3), torch.ones(2, 3).t()]
    packed = crossed_packed(batch)
    assert not batch[0].is_shared() and not batch[2].is_shared()
    for array in packed:
        array[:] = 9
    assert_same(batch, [torch.arange(3.0), np.arange(3), torch.ones(2, 3).t()])


# ---- arrays


@pytest.mark.parametrize(
    'dtype', [*NUMPY_DTYPES, RECORD, '<U4', '>U4', 'F', 'c16', [('a', '>i2'), ('b', 'f4')]], ids=str
)
def test_arrays_of_every_type_in_every_order(dtype):
    dtype = np.dtype(dtype)
    count = 2 * 3 * 4
    data = np.frombuffer(noise(random.Random(0), count * dtype.itemsize), np.uint8) & (1 if dtype.kind == 'b' else 255)
    if dtype.kind == 'U':
        made = np.array(['', 'a', 'äö', 'xyz'] * 6, dtype).reshape(2, 3, 4)
    else:
        made = np.frombuffer(bytearray(data), dtype).reshape(2, 3, 4)
    read_only = made.copy()
    read_only.flags.writeable = False
    forms = dict(
        dense=made,
        number=made[0, 0, 0, ...],
        empty=made[:0],
        fortran=np.asfortranarray(made),
        transposed=made.T,
        permuted=made.transpose(2, 0, 1),
        sliced=made[:, ::2, 1:],
        backwards=made[::-1, ::-1],
        broadcast=np.broadcast_to(made, (2, *made.shape)),
        read_only=read_only,
        empty_read_only=read_only[:0],
    )
    packed = assert_as_stock(forms)
    assert packed['transposed'].flags.f_contiguous and not packed['transposed'].flags.c_contiguous
    assert all(array.flags.writeable for array in packed.values())
    assert all(part.dtype.isnative or dtype.names for part in packed.values())


def test_arrays_as_torch_wants_them():
    # What a decoder of big files returns; torch.from_numpy refuses its byte order, and PyTorch's way mends it.
    packed = crossed_packed(dict(swapped=np.arange(3, dtype='>f4'), read_only=np.broadcast_to(np.float32(1), (3,))))
    assert torch.from_numpy(packed['swapped']).tolist() == [0, 1, 2]
    packed['read_only'][:] = torch.zeros(3).numpy()


def test_where_fields_of_a_record_overlap():
    overlapping = np.dtype(dict(names=['a', 'b'], formats=['i4', 'i2'], offsets=[0, 2], itemsize=8))
    assert_as_stock(np.array([(1, 2), (3, 4)], overlapping))
    assert_as_stock(np.zeros(3, np.dtype('i4', metadata={'unit': 'px'})))


# ---- the bytes


@pytest.mark.parametrize('thing', [torch.ones(3), np.ones(3)], ids=['tensor', 'array'])
def test_the_head_alone_is_no_batch(thing):
    with pytest.raises(pickle.UnpicklingError, match='packed batch'):
        pickle.loads(Packing([thing]).layout.head)


def test_tensors_come_first_and_each_begins_at_a_multiple_of_64():
    batch = [
        np.ones(5, np.uint8),
        torch.ones(3, dtype=torch.uint8),
        np.ones(2),
        torch.ones(70, dtype=torch.uint8),
        torch.ones(1),
    ]
    packing = Packing(batch)
    assert (packing.layout.tensors, packing.layout.nbytes) == (64 + 128 + 64, 256 + 64 + 16)
    views = RecordedViews(Views(bytearray(packing.layout.nbytes), packing.layout.tensors))
    tensors = [part for part in unpack(packing.layout.head, views) if isinstance(part, torch.Tensor)]
    assert [views.made[id(tensor)][1] for tensor in tensors] == [0, 64, 192]
    assert all(views.made[id(tensor)][0] is tensor for tensor in tensors) and len(views.made) == 3


def test_nothing_is_written_beyond_the_end():
    packing = Packing([torch.ones(3), np.ones(5, np.uint8), torch.ones(0), np.ones((0, 2))])
    nbytes = packing.layout.nbytes
    memory = bytearray(b'\xee' * (nbytes + 100))
    packing.write(memory)
    assert memory[nbytes:] == b'\xee' * 100
    assert memory[:12] == np.ones(3, 'f4').tobytes() and memory[packing.layout.tensors :][:5] == b'\1' * 5


@pytest.mark.parametrize('batch', [None, [], 'text', [torch.ones(0), np.ones((3, 0))], {}, 5], ids=repr)
def test_a_batch_without_any_bytes(batch):
    assert room(batch) == 0
    assert_as_stock(batch)


def test_what_is_unpacked_keeps_its_memory_alive():
    packing = Packing(dict(tensor=torch.arange(50_000.0), array=np.arange(50_000)))
    memory = bytearray(packing.layout.nbytes)
    packing.write(memory)
    packed = unpack(packing.layout.head, Views(memory, packing.layout.tensors))
    part, row = packed['tensor'][10:20], packed['array'][10:20]
    del packed, packing, memory
    filler = [bytearray(b'\xff' * 600_000) for _ in range(4)]
    assert part.tolist() == row.tolist() == list(range(10, 20)) and filler


@pytest.mark.parametrize('seed', range(5))
def test_views_of_pinned_memory_are_the_same(seed):
    rng = random.Random(seed)
    batch = [dense(rng, size, dtype) for dtype in TORCH_DTYPES for size in [(2, 3), (), (0, 2)]]
    batch = [*batch, *[tensor.t() for tensor in batch if tensor.dim() == 2], batch[0][:, :1].expand(2, 9), np.arange(7)]
    packing = Packing(batch)
    memory = bytearray(packing.layout.nbytes)
    packing.write(memory)
    pinned = torch.frombuffer(memory, dtype=torch.uint8, count=packing.layout.tensors).clone()
    views = PinnedViews(memory, packing.layout.tensors, pinned)
    unpacked = unpack(packing.layout.head, views)
    assert_same(unpacked, unpack(packing.layout.head, Views(memory, packing.layout.tensors)))
    assert all(part.untyped_storage().data_ptr() == pinned.data_ptr() for part in unpacked[:-1] if part.numel())
