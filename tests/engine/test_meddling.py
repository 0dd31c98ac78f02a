"""Hooks that meddle with loops, loaders and samplers, and loaders of unusual kinds: as with stock's loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS, MODELS
from torch.utils.data import BatchSampler, IterableDataset

from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from mmshared.engine.resume import KEY

from .lean_jobs import Mark, Net, Numbers, build, children, follow, loader, train
from .test_loops import ENDLESS
from .test_resume import EACH_STEP, NONE, UNKNOWN, at, logged, run, warnings_of

__all__ = ['logged']
allow_mmengine_checkpoints()


def both(tmp_path, *, by_epoch=True, **changes):
    """A job with stock's loops and with ours; what is callable is called for each."""
    jobs = [
        train(tmp_path / name, lean, by_epoch, **{k: v() if callable(v) else v for k, v in changes.items()})
        for name, lean in (('stock', None), ('lean', 'auto'))
    ]
    assert jobs[1].training == jobs[0].training
    assert not jobs[1].left
    return jobs[1]


def hook(**methods):
    """A hook with these methods."""
    return lambda: [type('Meddler', (Hook,), methods)()]


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_a_hook_that_validates_every_third_step(tmp_path, by_epoch):
    """Also in the last step of an epoch, before the validation that the loop is about to begin."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if (runner.iter + 1) % 3 == 0:
            runner.val_loop.run()

    sampler = None if by_epoch else dict(type='InfiniteSampler')
    both(
        tmp_path,
        by_epoch=by_epoch,
        train=lambda: loader(True, sampler=sampler),
        custom_hooks=hook(after_train_iter=after_train_iter),
    )


def test_a_hook_that_validates_at_the_end_of_an_epoch(tmp_path):
    job = both(tmp_path, custom_hooks=hook(after_train_epoch=lambda self, runner: runner.val_loop.run()))
    assert len({str(job.indices[begin : begin + 6]) for begin in (0, 6, 12)}) == 3


@DATASETS.register_module(force=True)
class Stream(IterableDataset):
    """Has no index."""

    METAINFO = dict(classes=('number',))

    def __init__(self, pipeline=(), size=8):
        self.data = Numbers(size=size, pipeline=pipeline)

    def full_init(self):
        pass

    def __iter__(self):
        return (self.data[index] for index in range(8))


@DATASETS.register_module(force=True)
class SizedStream(Stream):
    def __len__(self):
        return 8


@DATASETS.register_module(force=True)
class NoLength(Numbers):
    def __len__(self):
        raise TypeError('there is no len()')


@DATA_SAMPLERS.register_module(force=True)
class Endless:
    """A sampler without a length, whose seed is no number."""

    def __init__(self, dataset, seed=None):
        self.position = 0

    def seed(self):
        """Nobody's business."""

    def __iter__(self):
        while True:
            yield self.position % 12
            self.position += 1


@DATA_SAMPLERS.register_module(force=True)
class Twelve(Endless):
    def __iter__(self):
        return iter(range(12))

    def __len__(self):
        return 12


@DATA_SAMPLERS.register_module(force=True)
class NumpySizes(BatchSampler):
    def __init__(self, sampler, batch_size, drop_last=False):
        super().__init__(sampler, 2, False)
        self.batch_size = np.int64(2)


LOADERS = {
    'nothing to train with': (True, dict(train=lambda: loader(True, size=3, batch_size=4, drop_last=True))),
    'nothing to validate with': (True, dict(val=lambda: loader(False, size=3, batch_size=4, drop_last=True))),
    'a sampler without a length': (False, dict(train=lambda: loader(True, sampler=dict(type='Endless')))),
    'a seed that is no number': (True, dict(train=lambda: loader(True, sampler=dict(type='Twelve')))),
    'sizes of numpy': (True, dict(train=lambda: loader(True, batch_sampler=dict(type='NumpySizes')))),
}


@pytest.mark.parametrize('name', LOADERS)
def test_unusual_loaders(tmp_path, name):
    by_epoch, loaders = LOADERS[name]
    both(tmp_path, by_epoch=by_epoch, default_hooks=lambda: dict(checkpoint=None, logger=None), **loaders)


@pytest.mark.parametrize('kind', [Stream, SizedStream])
def test_iterable_datasets_are_left_alone(tmp_path, kind):
    from mmengine.dataset import pseudo_collate
    from torch.utils.data import DataLoader

    from .lean_jobs import Draw

    def users():
        return DataLoader(kind([Mark(), Draw()]), 2, num_workers=1, persistent_workers=True, collate_fn=pseudo_collate)

    jobs = [
        train(
            tmp_path / str(lean),
            lean,
            False,
            train=users(),
            train_cfg=dict(max_iters=3, val_interval=2),
            default_hooks=dict(checkpoint=None, logger=None),
        )
        for lean in (None, 'auto')
    ]
    assert jobs[1].indices == jobs[0].indices and len(jobs[1].indices) == 3


def test_a_dataloader_that_is_replaced(tmp_path):
    def before_train_epoch(self, runner):
        if runner.epoch == 1:
            runner.train_loop.dataloader = runner.build_dataloader(loader(True, size=8), seed=5)

    def after_train_epoch(self, runner):
        if runner.epoch == 1:
            runner.val_loop.dataloader = runner.build_dataloader(loader(False, size=4), seed=5)

    job = both(
        tmp_path,
        custom_hooks=hook(before_train_epoch=before_train_epoch, after_train_epoch=after_train_epoch),
    )
    assert len(job.steps) == 6 + 4 + 4 and list(map(len, job.seen)) == [2] * (3 + 2 + 2)


@pytest.mark.parametrize('persistent', [True, False], ids=['persistent', 'new each epoch'])
def test_hooks_that_change_what_comes_next(tmp_path, persistent):
    def after_val_epoch(self, runner, metrics=None):
        if runner.epoch == 1:
            runner.train_loop.dataloader.sampler.shuffle = False
            runner.train_loop.dataloader.dataset.pipeline.transforms[0] = Mark('second')

    def after_train_epoch(self, runner):
        if runner.epoch == 1:
            sampler = runner.val_loop.dataloader.sampler
            sampler.total_size = sampler.num_samples = 4

    meddler = hook(after_val_epoch=after_val_epoch, after_train_epoch=after_train_epoch)
    jobs = [
        train(tmp_path / str(lean), lean, train=loader(True, persistent_workers=persistent), custom_hooks=meddler())
        for lean in (None, 'auto')
    ]
    assert jobs[1].indices == jobs[0].indices and jobs[1].seen == jobs[0].seen
    assert jobs[1].indices[6] == [0, 1]
    if not persistent:
        assert [step.marks for step in jobs[1].steps] == [step.marks for step in jobs[0].steps]


def test_a_hook_that_has_persistent_workers_start_anew(tmp_path):
    def before_train_epoch(self, runner):
        if runner.epoch == 1:
            runner.train_loop.dataloader.dataset.pipeline.transforms[0] = Mark('second')
            runner.train_loop.dataloader._iterator = None

    job = both(tmp_path, train_cfg=dict(val_interval=3), custom_hooks=hook(before_train_epoch=before_train_epoch))
    assert [step.marks[0] for step in job.steps] == ['first'] * 6 + ['second'] * 12


def test_who_iterates_over_the_loader_itself(tmp_path):
    """Gets batches as from any DataLoader, with workers that it keeps."""
    before = children()
    runner = build(tmp_path, 'auto')
    follow(runner, runner.train)
    data = runner.train_loop.dataloader
    assert sorted(sum((batch['index'] for batch in data), [])) == list(range(12))
    assert sorted(sum((batch['index'] for batch in data), [])) == list(range(12))
    data._iterator._shutdown_workers()
    assert children() == before


class Fragile:
    """Fails at one sample as long as there is a file."""

    def __init__(self, flag):
        self.flag = flag

    def __call__(self, results):
        if results['index'] == 11 and self.flag.exists():
            raise ValueError('broken')
        return results


def test_training_again_after_an_error(tmp_path):
    """In a notebook: the epoch begins anew, as with stock; nothing is skipped."""
    ends = []
    for lean in (None, 'auto'):
        flag = tmp_path / f'flag-{lean}'

        def before_train_epoch(self, runner, flag=flag):
            if runner.epoch == 1 and not hasattr(runner, 'failed'):
                flag.touch()

        runner = build(
            tmp_path / str(lean),
            lean,
            train=loader(True, 1, prefetch_factor=1, pipeline=[Fragile(flag), Mark(), DRAW]),
            custom_hooks=hook(before_train_epoch=before_train_epoch)(),
        )
        with pytest.raises(RuntimeError if lean else ValueError):
            runner.train()
        flag.unlink()
        runner.failed = True
        job = follow(runner, runner.train)
        ends.append((runner.iter, job.indices[-12:]))
    assert ends[0] == ends[1]


def DRAW(results):
    return dict(results, draws=(0.0, 0.0, 0.0), pid=0)


@MODELS.register_module(force=True)
class InitNet(Net):
    """Draws its weights when MMEngine initializes them."""

    def init_weights(self):
        torch.nn.init.normal_(self.linear.weight)
        torch.nn.init.uniform_(self.linear.bias)


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_resume_without_a_checkpoint_yet(tmp_path, by_epoch):
    sampler = None if by_epoch else dict(type='InfiniteSampler')
    both(
        tmp_path,
        by_epoch=by_epoch,
        resume=True,
        model=lambda: dict(type='InitNet'),
        train=lambda: loader(True, sampler=sampler),
    )


DAMAGE = {
    'a key more': lambda saved: saved.update(version=2),
    'no origins': lambda saved: saved.pop('origins'),
    'no epoch': lambda saved: saved.pop('epoch'),
    'no job': lambda saved: saved.update(job=None),
    'words': lambda saved: saved.update(batch='four'),
    'nothing': lambda saved: saved.clear(),
}


@pytest.mark.parametrize('name', DAMAGE)
def test_positions_that_are_not_understood(tmp_path, name, logged):
    whole = run(tmp_path / 'whole', train_cfg=dict(max_epochs=1))
    checkpoint = torch.load(at(tmp_path / 'whole', 4), weights_only=False)
    DAMAGE[name](checkpoint['message_hub']['runtime_info'][KEY])
    torch.save(checkpoint, tmp_path / 'damaged.pth')
    job = run(tmp_path / 'more', train_cfg=dict(max_epochs=1), resume=tmp_path / 'damaged.pth')
    texts = [text for text in warnings_of(logged) if UNKNOWN in text]
    if name == 'a key more':
        assert not texts and job.indices == whole.indices[4:]
    else:
        assert len(texts) == 1 and 'does not understand' in texts[0] and job.indices == whole.indices


def test_iterations_with_a_checkpoint_at_the_end(tmp_path, logged):
    """MMEngine's hook counts epochs unless it is told, and the run is one."""
    common = dict(by_epoch=False, randomness=NONE, model=dict(type='LeanNet'))
    hooks = dict(checkpoint=dict(type='CheckpointHook', interval=1))
    whole = run(tmp_path / 'whole', train=loader(True, **ENDLESS), **common)
    assert len(whole.indices) == 20
    first = run(tmp_path / 'first', train=loader(True, **ENDLESS), train_cfg=dict(max_iters=6), **hooks, **common)
    more = run(tmp_path / 'more', train=loader(True, **ENDLESS), resume=tmp_path / 'first' / 'epoch_1.pth', **common)
    assert len(first.indices) == 6 and len(more.indices) == 14
    seen = sum(first.indices + more.indices, [])
    assert all(sorted(seen[begin : begin + 12]) == list(range(12)) for begin in (0, 12, 24))
    assert not [text for text in warnings_of(logged) if UNKNOWN in text]


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_resume_by_hand(tmp_path, by_epoch):
    make = lambda: loader(True, sampler=None if by_epoch else dict(type='InfiniteSampler'))  # noqa: E731
    whole = run(tmp_path / 'whole', by_epoch=by_epoch, train=make(), randomness=NONE)
    runner = build(
        tmp_path / 'more', 'auto', by_epoch, train=make(), randomness=NONE, default_hooks=dict(checkpoint=EACH_STEP)
    )
    runner.train_loop  # noqa: B018  (builds it)
    runner.resume(str(at(tmp_path / 'whole', 9)))
    assert follow(runner, runner.train).indices == whole.indices[9:]
