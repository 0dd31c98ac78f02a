"""A batch is asked for one ahead, as where there is a device: what is trained with is the same, in the same order.

The device is the CPU with streams that do nothing, so that all but the copies is real.
"""

from __future__ import annotations

from functools import partial

import pytest
from mmengine.hooks import Hook

from mmshared.engine.loops import evaluation, training
from mmshared.engine.workers import LoadingError, Receiver
from mmshared.parallel import DevicePrefetcher
from mmshared.parallel.collation import without_unpacking
from tests.parallel.fake_streams import FakeStreams

from .lean_jobs import Draw, Mark, assert_one_pool, loader, train
from .test_loops import LazySampler  # noqa: F401  (registers it)


class Ahead(Receiver):
    """What a receiver is for a model on a GPU."""

    asked_ahead = []

    def collate(self, collate_fn):
        return without_unpacking(collate_fn)

    def receive(self, batches, ahead=False):
        self.asked_ahead.append(ahead)
        return DevicePrefetcher(batches, 'cpu', ahead=ahead and self._prefetch, streams=FakeStreams())


@pytest.fixture
def ahead(monkeypatch):
    monkeypatch.setattr(Ahead, 'asked_ahead', [])
    for module in (training, evaluation):
        monkeypatch.setattr(module, 'Receiver', Ahead)
    return Ahead.asked_ahead


PACKED = dict(collate_fn=dict(type='packed_collate'))


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_training_is_equal_bit_by_bit(tmp_path, ahead, by_epoch):
    sampler = None if by_epoch else dict(type='InfiniteSampler', shuffle=True)
    stock = train(tmp_path / 'stock', None, by_epoch)
    for lean in (True, False):
        loaders = dict(train=loader(True, sampler=sampler, **PACKED), val=loader(False, size=6, **PACKED))
        ours = train(tmp_path / f'ours-{lean}', lean, by_epoch, **loaders)
        assert ours.training == stock.training
        if lean:
            assert_one_pool(ours)
            assert ahead and all(ahead)
        ahead.clear()


@pytest.mark.parametrize('size', [1, 2, 3, 5])
def test_short_and_uneven_epochs(tmp_path, ahead, size):
    make = partial(loader, True, size=size)
    stock = train(tmp_path / 'stock', None, train=make())
    ours = train(tmp_path / 'ours', True, train=make(**PACKED))
    assert ours.training == stock.training


def test_a_sampler_that_draws_when_it_is_asked_is_not_asked_ahead(tmp_path, ahead):
    make = partial(loader, True, sampler=dict(type='LazySampler'))
    stock = train(tmp_path / 'stock', None, train=make())
    ours = train(tmp_path / 'ours', True, train=make(**PACKED))
    assert ours.training == stock.training
    assert False in ahead


class Keeps(Hook):
    """Gives away the model."""

    def __init__(self, models):
        self.models = models

    def before_train(self, runner):
        self.models.append(runner.model)


class Fails(Draw):
    def __call__(self, results):
        if results['index'] == 9:
            raise ValueError('sample nine')
        return super().__call__(results)


def test_an_error_comes_where_it_would(tmp_path, ahead):
    """The steps before it are made."""
    plain = dict(type='DefaultSampler', shuffle=False)
    make = partial(loader, False, sampler=plain, pipeline=[Mark(), Fails()])
    steps = {}
    for name, lean, options in (('stock', None, {}), ('ours', True, PACKED)):
        models = []
        with pytest.raises((ValueError, LoadingError), match='sample nine'):
            train(tmp_path / name, lean, train=make(**options), custom_hooks=[Keeps(models)])
        steps[name] = [step.indices for step in models[0].steps]
    assert steps['ours'] == steps['stock'] == [[0, 1], [2, 3], [4, 5], [6, 7]]
