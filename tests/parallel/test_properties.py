"""Whatever a batch holds: packed, it is what it is after PyTorch has sent it in its own way."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.dataset import default_collate, pseudo_collate

from mmshared.parallel import PackedBatch, packed_collate
from mmshared.parallel.batch import Parcel
from mmshared.parallel.stacking import stack_later

from .batches import samples, stackable_samples
from .comparison import (
    assert_no_aliasing,
    assert_same,
    crossed_by_stock,
    crossed_packed,
    without_sockets,  # noqa: F401
)

# One that can be shrunk. Drawn from it are whole batches: images of all sizes, no instances, one sample only.
sources = st.randoms(use_true_random=False)


pytestmark = [
    pytest.mark.usefixtures('without_sockets'),
    pytest.mark.filterwarnings('ignore:.*(Sparse|ComplexHalf|matrix subclass)'),
]


@settings(max_examples=150, deadline=None)
@given(rng=sources)
def test_a_packed_batch_is_that_of_stock(rng):
    batch = pseudo_collate(samples(rng))
    packed = crossed_packed(batch)  # first: PyTorch's way changes where tensors of a batch are
    assert_same(packed, crossed_by_stock(batch))
    assert_no_aliasing(packed)


@settings(max_examples=100, deadline=None)
@given(rng=sources)
def test_a_batch_that_is_stacked_last_is_that_of_stock(rng):
    batch = stackable_samples(rng)
    packed = crossed_packed(stack_later(batch))
    assert_same(packed, crossed_by_stock(default_collate(batch)))
    assert_no_aliasing(packed)


@settings(max_examples=50, deadline=None)
@given(rng=sources, in_shared_memory=st.booleans(), unpacked=st.booleans())
def test_a_parcel_arrives_as_what_stock_sends(rng, in_shared_memory, unpacked):
    batch = pseudo_collate(samples(rng))
    batch = [batch, torch.ones(300_000, dtype=torch.uint8)] if in_shared_memory else batch
    arrived = pickle.loads(ForkingPickler.dumps(Parcel(batch, unpacked)))
    assert (type(arrived) is PackedBatch) is not unpacked
    if not unpacked:
        assert arrived.unpack() is arrived.unpack()
        arrived = arrived.unpack()
    assert_same(arrived, crossed_by_stock(batch))
    assert_no_aliasing(arrived)


@settings(max_examples=50, deadline=None)
@given(rng=sources)
def test_without_a_worker_a_batch_is_that_of_its_base(rng):
    batch = samples(rng)
    assert_same(packed_collate(batch), pseudo_collate(batch))
    batch = stackable_samples(rng)
    assert_same(packed_collate(batch, base='default_collate', unpacked=False), default_collate(batch))
