"""The parts of the lean loops one by one: streams of batches, seeds, generators, pools."""

from __future__ import annotations

import copy
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmdet.datasets.samplers import AspectRatioBatchSampler, GroupMultiSourceSampler
from mmengine.dataset import DefaultSampler, InfiniteSampler, worker_init_fn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from mmshared.engine.transforms import transforms_with_state
from mmshared.engine.workers import Lifetimes, PoolSeed, Receiver, Workers
from mmshared.engine.workers.errors import deaths
from mmshared.engine.workers.generators import reseed
from mmshared.engine.workers.pool import is_poolable
from mmshared.engine.workers.samplers import draws_from_main_process
from mmshared.engine.workers.stream import BatchStream

from .lean_jobs import Numbers, children


class Asked:
    """Batches that count how often they were asked for, and may be iterated once only."""

    def __init__(self, batches):
        self.batches, self.count, self.begun = batches, 0, False

    def __iter__(self):
        assert not self.begun
        self.begun = True
        for batch in range(self.batches):
            self.count += 1
            yield [batch]


@settings(max_examples=150, deadline=None)
@given(
    batches=st.integers(0, 12),
    ahead=st.integers(1, 5),
    pools=st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(0, 5)), max_size=8),
)
def test_whatever_pools_come_and_go_each_batch_arrives_once_in_order(batches, ahead, pools):
    sampler = Asked(batches)
    stream, arrived = BatchStream(sampler, ahead), []

    def load(most, stop):
        """A pool: takes as much ahead as a DataLoader does, delivers at most ``most`` batches, and is gone."""
        stream.stop_at = None if stop is None else stream.delivered + stop
        feed = iter(stream)
        held = [batch for _, batch in zip(range(ahead), feed)]
        for _ in range(most):
            if not held:
                break
            batch = held.pop(0)
            held.extend(batch for _, batch in zip(range(1), feed))
            stream.deliver()
            arrived.append(batch)
            assert sampler.count == min(batches, len(arrived) + ahead)  # as with one pool that stays
            assert stream.is_dry == (not held)
        assert stop is None or len(held) + most >= stop or stream.delivered + len(held) <= stream.stop_at

    assert sampler.count == min(batches, ahead)
    for most, stop in pools:
        load(most, stop)
    load(batches + 1, None)
    assert arrived == [[batch] for batch in range(batches)]
    assert stream.has_ended and stream.is_dry


numbers = st.tuples(*[st.integers(0, 2**40)] * 2, st.sampled_from(['training', 'validation']), *[st.integers(0, 9)] * 3)


@settings(max_examples=100, deadline=None)
@given(one=numbers, two=numbers)
def test_seeds_are_equal_where_all_they_come_from_is_equal(one, two):
    states = [PoolSeed(*key[:5]).of_worker(key[5]).generate_state(4).tolist() for key in (one, two)]
    assert (states[0] == states[1]) == (one == two)
    assert PoolSeed(*one[:5]).of_loader == PoolSeed(*one[:5]).of_loader


class Box:
    """A transform with whatever attributes."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __call__(self, results):
        return results


class OwnSeed:
    """As albumentations' ``Compose`` lets itself be seeded."""

    def set_random_seed(self, seed):
        self.seed = seed


def test_generators_of_transforms_wherever_they_are():
    shared = np.random.default_rng(0)
    own = OwnSeed()
    inner = Box(rng=shared, again=[shared, Box(python=random.Random(0))], by_name=dict(old=np.random.RandomState(0)))
    loop = Box(inner=inner, torch=torch.Generator(), modules=[np, random], cv=own, system=random.SystemRandom())
    inner.back = loop
    data = Numbers(size=2, pipeline=[loop], lazy_init=True)
    data.rng = np.random.Generator(np.random.PCG64(0))
    outer = torch.utils.data.ConcatDataset([torch.utils.data.Subset(data, [0])])
    outer.datasets[0].dataset = data

    def draw(seed):
        random.seed(0)
        np.random.seed(0)
        reseed(outer, np.random.SeedSequence(seed))
        drawn = (
            shared.random(),
            inner.again[1].python.random(),
            inner.by_name['old'].rand(),
            torch.rand(1, generator=loop.torch).item(),
            own.seed,
            data.rng.random(),
        )
        assert random.random() == random.Random(0).random()  # modules are left alone
        assert np.random.rand() == np.random.RandomState(0).rand()
        return drawn

    one, again, other = draw(1), draw(1), draw(2)
    assert one == again
    assert all(a != b for a, b in zip(one, other))
    assert len(set(one)) == len(one)


class Stubborn:
    def set_random_seed(self, seed):
        raise NotImplementedError('not me')


def test_what_cannot_be_seeded_is_warned_about():
    data = Numbers(size=2, pipeline=[Box(part=Stubborn())])
    with pytest.warns(
        UserWarning, match=r'Stubborn in the transforms cannot be seeded \(NotImplementedError: not me\)'
    ):
        reseed(data, np.random.SeedSequence(0))


def test_transforms_that_keep_samples():
    data = Numbers(size=2, pipeline=[Box(), Box(transforms=[Box(results_cache=[])])])
    assert transforms_with_state(torch.utils.data.ConcatDataset([data])) == ['Box']
    assert transforms_with_state(Numbers(size=2, pipeline=[Box()])) == []


def samplers():
    data = Numbers(size=6)
    return {
        'default': DefaultSampler(data, seed=0),
        'infinite': InfiniteSampler(data, seed=0),
        'aspect ratio': AspectRatioBatchSampler(DefaultSampler(data, seed=0), 2),
        'aspect ratio, random': AspectRatioBatchSampler(_with(RandomSampler(data), data), 2),
        'batches': BatchSampler(SequentialSampler(data), 2, False),
        'random': RandomSampler(data),
        'random batches': BatchSampler(RandomSampler(data), 2, False),
        'subset': SubsetRandomSampler(range(6)),
        'weighted': WeightedRandomSampler([1.0] * 6, 6),
        'distributed': DistributedSampler(data, 2, 0),
        'groups': _groups(),
        'a list': [[1], [2]],
    }


def _with(sampler, data):
    sampler.dataset = data
    return sampler


def _groups():
    data = torch.utils.data.ConcatDataset([Numbers(size=6), Numbers(size=6)])
    data.get_data_info = lambda index: dict(width=1 + index % 2, height=1)
    data.cumulative_sizes = [6, 12]
    return GroupMultiSourceSampler(data, batch_size=2, source_ratio=[1, 1], seed=0)


@pytest.mark.parametrize('name', samplers())
def test_samplers_that_move_the_main_random_state(name):
    sampler = samplers()[name]
    before = torch.get_rng_state(), np.random.get_state()[1:3], random.getstate()
    taken = [batch for _, batch in zip(range(3), iter(sampler))]
    moved = (
        not torch.equal(before[0], torch.get_rng_state())
        or str(before[1]) != str(np.random.get_state()[1:3])
        or before[2] != random.getstate()
    )
    assert taken
    assert draws_from_main_process(sampler) or not moved
    if moved or name in ('default', 'infinite', 'aspect ratio', 'batches', 'distributed'):
        assert draws_from_main_process(sampler) is moved


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Foreign(DataLoader):
    pass


def test_which_loaders_are_left_alone():
    data = Numbers(size=4)
    assert is_poolable(DataLoader(data, num_workers=1))
    assert not is_poolable(DataLoader(data))
    assert not is_poolable(Foreign(data, num_workers=1))
    assert not is_poolable(DataLoader(Stream(), num_workers=1))
    assert not is_poolable([1, 2])
    for loader in (DataLoader(data), Foreign(data, num_workers=1), DataLoader(Stream(), num_workers=1)):
        workers = Workers(loader, Lifetimes(), Loop(), Receiver(None))
        assert not workers.enabled and workers.dataset is loader.dataset
        assert len(list(workers)) == (4 if loader.dataset is data else 3)


class Loop:
    """A phase that notes what it is told."""

    phase = 'training'

    def __init__(self, horizon=None):
        self.at_end, self._horizon, self.generation = 0, horizon, 0

    def seed(self):
        self.generation += 1
        return PoolSeed(0, 0, self.phase, self.generation, 0)

    def horizon(self):
        return self._horizon

    def have_to_stay(self):
        return False

    def last_batch_is_here(self):
        self.at_end += 1


class Plain:
    """A dataset without any library."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(1).item(), os.getpid(), os.environ.get('MARK')


def mark(worker):
    """A ``worker_init_fn`` of a user's: it is called last."""
    random.seed(5)
    os.environ['MARK'] = f'mark {worker}'


def test_users_worker_init_fn_comes_last_and_mmengines_does_not_count():
    for init in (mark, lambda worker: mark(worker)):
        loader = DataLoader(Plain(), 1, num_workers=2, worker_init_fn=init, collate_fn=list)
        workers = Workers(loader, Lifetimes(), Loop(), Receiver(None))
        samples = [batch[0] for batch in workers]
        assert [sample[0] for sample in samples] == list(range(8))
        assert [sample[5] for sample in samples[:2]] == ['mark 0', 'mark 1']
        assert samples[0][1] == samples[1][1] == random.Random(5).random()
        assert samples[0][2] != samples[1][2]
    stocks = partial(worker_init_fn, num_workers=2, rank=0, seed=0)
    loader = DataLoader(Plain(), 1, num_workers=2, worker_init_fn=stocks, collate_fn=list)
    workers = Workers(loader, Lifetimes(), Loop(), Receiver(None))
    samples = [batch[0] for batch in workers]
    assert len({sample[1] for sample in samples}) == 8 and random.Random(0).random() != samples[0][1]


@pytest.mark.parametrize('method', ['fork', 'spawn', 'forkserver'])
def test_start_methods(method):
    """A pool is closed in the middle, and the next goes on with the next batch."""
    before = children()
    loader = DataLoader(
        Plain(), 1, num_workers=1, collate_fn=list, worker_init_fn=mark, multiprocessing_context=method,
        persistent_workers=True,
    )  # fmt: skip
    workers = Workers(loader, Lifetimes(), Loop(), Receiver(None))
    state = torch.get_rng_state()
    batches = iter(workers)
    torch.set_rng_state(state)
    samples = [next(batches)[0] for _ in range(3)]
    assert len(workers.processes) == 1
    workers.close()
    assert children() == before
    samples += [batch[0] for batch in batches]
    assert [sample[0] for sample in samples] == list(range(8))
    assert len({sample[4] for sample in samples}) == 2  # two processes
    assert len({sample[3] for sample in samples}) == 8  # other random numbers
    assert torch.equal(torch.get_rng_state(), state)
    workers.close()
    assert children() == before


def test_an_iteration_that_is_given_up_begins_anew():
    workers = Workers(DataLoader(Plain(), 1, num_workers=1, collate_fn=list), Lifetimes(), Loop(), Receiver(None))
    for _ in range(2):
        assert [batch[0][0] for _, batch in zip(range(3), workers)] == [0, 1, 2]
    workers.close()


def test_a_loader_that_has_workers_of_its_own_gives_way():
    loader = DataLoader(Plain(), 1, num_workers=1, collate_fn=list, persistent_workers=True)
    lifetimes = Lifetimes()
    before = children()
    lifetimes.admit(loader, PoolSeed(0, 0, 'validation', 0, 0))
    lifetimes.admit(loader, PoolSeed(0, 0, 'validation', 0, 0))
    assert len(lifetimes.members) == 1
    draws = []
    for _ in range(2):
        state = torch.get_rng_state()
        draws.append([batch[0][3] for batch in loader])
        moved = not torch.equal(state, torch.get_rng_state())
        assert moved is (len(draws) == 1)  # as with workers that stay
        lifetimes.make_room()
        assert children() == before
    assert not set(draws[0]) & set(draws[1])


FIFTY = """
import gc, os
from mmshared.engine.workers.pool import Pool
from tests.engine.test_workers import *

loader = DataLoader(Plain(), 1, num_workers=1, collate_fn=list, persistent_workers=True)
counts = []
for generation in range(50):
    pool = Pool(loader, PoolSeed(0, 0, 'training', generation, 0), Receiver(None))
    stream = BatchStream([[0], [1], [2]], 2)
    pool.load(stream)
    assert pool.next()[0][0] == 0
    pool.close()
    gc.collect()
    counts.append(len(os.listdir('/proc/self/fd')))
assert max(counts[25:]) <= max(counts[:25]) and not children(), counts
"""


def test_fifty_generations_leave_nothing_behind(repo):
    """In a process of its own: what other tests left open may be closed meanwhile."""
    done = subprocess.run([sys.executable, '-c', FIFTY], cwd=repo, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


class Deaf(Plain):
    """Its workers have a handler of SIGTERM, as those of a job that is told to end soon by one, and are stuck."""

    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, lambda *_: None)
        if index == 1:
            time.sleep(600)
        return super().__getitem__(index)


def test_a_worker_that_does_not_end():
    before, begin = children(), time.monotonic()
    workers = Workers(DataLoader(Deaf(), 1, num_workers=1, collate_fn=list), Lifetimes(), Loop(), Receiver(None))
    next(iter(workers))
    workers.close()
    assert children() == before
    assert time.monotonic() - begin < 40


@pytest.mark.parametrize(
    'code, said', [(-9, 'SIGKILL. Linux'), (-7, 'SIGBUS. /dev/shm'), (-40, 'signal 40.'), (3, 'code 3.')]
)
def test_how_a_worker_died(code, said):
    assert said in deaths([(4711, code)])


def test_the_proxy_has_the_attributes_of_the_loader_and_no_others():
    workers = Workers(DataLoader(Plain(), 2), Lifetimes(), Loop(), Receiver(None))
    assert workers.batch_size == 2 and len(workers) == 4
    with pytest.raises(AttributeError):
        workers.nothing  # noqa: B018
    assert copy.copy(workers).batch_size == 2
