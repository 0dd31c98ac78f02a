"""The lean loops against stock's: the same training, bit by bit, with one pool of workers alive at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.hooks import EarlyStoppingHook
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import FlexibleRunner
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from .lean_jobs import Count, Draw, Mark, Numbers, Recorder, assert_one_pool, build, follow, loader, train

DATA_SAMPLERS.register_module(module=RandomSampler, name='LeanTestRandomSampler', force=True)


@DATA_SAMPLERS.register_module(force=True)
class LazySampler:
    """Draws each index from the main process's random state when it is asked for, as few samplers do."""

    def __init__(self, dataset, seed=None, length=None):
        self.length = len(dataset) if length is None else length

    def __iter__(self):
        for _ in range(self.length):
            yield int(torch.randint(12, ()))

    def __len__(self):
        return self.length


@DATA_SAMPLERS.register_module(force=True)
class TorchRandomSampler(RandomSampler):
    def __init__(self, dataset, seed=None):
        super().__init__(dataset)


def both(tmp_path, lean='auto', **changes):
    """A job with stock's loops and with ours."""
    stock = train(
        tmp_path / 'stock', None, **{key: make() if callable(make) else make for key, make in changes.items()}
    )
    ours = train(tmp_path / 'lean', lean, **{key: make() if callable(make) else make for key, make in changes.items()})
    return stock, ours


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
@pytest.mark.parametrize('workers', [0, 2])
def test_training_is_equal_bit_by_bit(tmp_path, by_epoch, workers):
    sampler = None if by_epoch else dict(type='InfiniteSampler', shuffle=True)
    loaders = dict(train=lambda: loader(True, workers, sampler=sampler), val=lambda: loader(False, workers, size=6))
    stock = train(tmp_path / 'stock', None, by_epoch, **{key: make() for key, make in loaders.items()})
    for release in (True, False):
        ours = train(tmp_path / f'lean-{release}', release, by_epoch, **{key: make() for key, make in loaders.items()})
        assert ours.training == stock.training
        assert len(ours.steps) == (18 if by_epoch else 20)
        if release and workers:
            assert_one_pool(ours)
    if workers:
        assert stock.most == 4  # or the test for one pool would not see two


def first(sample):
    return sample


ENDLESS = dict(sampler=dict(type='InfiniteSampler', shuffle=True))
SAMPLERS = {
    'epochs, aspect ratio': dict(batch_sampler=dict(type='mmdet.AspectRatioBatchSampler')),
    'epochs, random sampler of torch': dict(sampler=dict(type='TorchRandomSampler')),
    'epochs, a sampler that draws late': dict(sampler=dict(type='LazySampler')),
    'epochs, no batches': dict(batch_size=None, collate_fn=first),
    'epochs, not persistent': dict(persistent_workers=False),
    'epochs, far ahead, a small last batch': dict(prefetch_factor=5, batch_size=5),
    'epochs, last batch is dropped': dict(batch_size=5, drop_last=True),
    'iterations, aspect ratio': dict(ENDLESS, batch_sampler=dict(type='mmdet.AspectRatioBatchSampler')),
    'iterations, a sampler that draws late': dict(sampler=dict(type='LazySampler', length=1000)),
    'iterations, no batches, not persistent': dict(
        ENDLESS, batch_size=None, collate_fn=first, persistent_workers=False
    ),
    'iterations, far ahead': dict(ENDLESS, prefetch_factor=5),
}


@pytest.mark.parametrize('name', SAMPLERS)
def test_samplers(tmp_path, name):
    stock, ours = both(tmp_path, by_epoch=name.startswith('epochs'), train=lambda: loader(True, **SAMPLERS[name]))
    assert ours.training == stock.training
    assert len(ours.steps) == len(stock.steps) > 0
    assert_one_pool(ours)


def test_batches_of_a_users_loader(tmp_path):
    def users():
        data = Numbers(size=12, pipeline=[Mark(), Draw()])
        batches = BatchSampler(RandomSampler(data), 5, drop_last=False)
        return DataLoader(
            data, batch_sampler=batches, num_workers=2, collate_fn=pseudo_collate, persistent_workers=True
        )

    stock, ours = both(tmp_path, train=users)
    assert ours.training == stock.training
    assert list(map(len, ours.indices)) == [5, 5, 2] * 3
    assert_one_pool(ours)
    assert type(ours.runner.train_dataloader) is DataLoader and not hasattr(
        ours.runner.train_loop.dataloader._iterator, '_workers'
    )


def test_a_generator_of_the_users_loader(tmp_path):
    def users():
        data = Numbers(size=12, pipeline=[Mark(), Draw()])
        generator = torch.Generator()
        generator.manual_seed(5)
        return DataLoader(data, 2, True, num_workers=2, collate_fn=pseudo_collate, generator=generator)

    stock, ours = both(tmp_path, train=users)
    assert ours.training == stock.training


@pytest.mark.parametrize('sampler', ['DefaultSampler', 'TorchRandomSampler'])
def test_a_finite_sampler_begins_anew(tmp_path, sampler):
    """Iterations over a sampler that ends: in the middle, and together with a validation."""
    stock, ours = both(
        tmp_path,
        by_epoch=False,
        train=lambda: loader(True, sampler=dict(type=sampler)),
        train_cfg=dict(max_iters=9, val_interval=4 if sampler == 'DefaultSampler' else 6),
    )
    assert ours.training == stock.training
    assert_one_pool(ours)
    assert sorted(sum(ours.indices[:6], [])) == list(range(12)) and len(ours.indices) == 9


def test_random_numbers_of_workers(tmp_path):
    """They differ between workers, between epochs, and not between two runs."""
    jobs = [train(tmp_path / name, 'auto') for name in ('one', 'two')]
    draws = [[draws for step in job.steps for draws in step.draws] for job in jobs]
    assert draws[0] == draws[1]
    for numbers in zip(*draws[0]):
        assert len(set(numbers)) == len(numbers) == 36
    assert jobs[0].indices == train(tmp_path / 'stock', None).indices


def test_stocks_workers_repeat_their_random_numbers(tmp_path):
    """Why fresh workers need other seeds: without persistent workers stock draws the same in each epoch."""
    job = train(tmp_path, None, train=loader(True, persistent_workers=False))
    draws = [step.draws for step in job.steps]
    assert draws[:6] == draws[6:12] == draws[12:]


def test_another_seed_gives_other_numbers(tmp_path):
    one, two = (train(tmp_path / str(seed), 'auto', randomness=dict(seed=seed)) for seed in (3, 4))
    assert not {draws for step in one.steps for draws in step.draws} & {
        draws for step in two.steps for draws in step.draws
    }


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_averaged_weights_checkpoints_and_two_steps_at_once(tmp_path, by_epoch):
    saving = dict(save_best='count', rule='greater') if by_epoch else dict(by_epoch=False)
    stock, ours = both(
        tmp_path,
        by_epoch=by_epoch,
        custom_hooks=lambda: [dict(type='EMAHook', momentum=0.1)],
        default_hooks=lambda: dict(checkpoint=dict(type='CheckpointHook', interval=1 if by_epoch else 7, **saving)),
        optim_wrapper=lambda: dict(optimizer=dict(type='SGD', lr=0.01), accumulative_counts=2),
    )
    assert ours.training == stock.training
    assert_one_pool(ours)
    files = [sorted(path.name for path in (tmp_path / folder).glob('*.pth')) for folder in ('stock', 'lean')]
    assert files[0] == files[1] and files[0]


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_early_stopping(tmp_path, by_epoch):
    hook = lambda: EarlyStoppingHook(monitor='count', patience=1, rule='greater')  # noqa: E731
    length = dict(max_epochs=9) if by_epoch else dict(max_iters=40)
    stock, ours = both(tmp_path, by_epoch=by_epoch, train_cfg=length, custom_hooks=lambda: [hook()])
    assert ours.training == stock.training
    assert len(ours.steps) == (12 if by_epoch else 14)
    assert_one_pool(ours)


INTERVALS = {
    'every other epoch': (True, dict(max_epochs=5, val_interval=2)),
    'late': (True, dict(max_epochs=4, val_begin=3)),
    'ever more often': (True, dict(max_epochs=6, val_interval=3, dynamic_intervals=[(4, 1)])),
    'every step': (False, dict(max_iters=5, val_interval=1)),
    'late steps': (False, dict(max_iters=15, val_interval=3, val_begin=8)),
    'ever more steps': (False, dict(max_iters=17, val_interval=6, dynamic_intervals=[(9, 2), (14, 1)])),
    'never but in the end': (False, dict(max_iters=9, val_interval=1000)),
}


@pytest.mark.parametrize('name', INTERVALS)
def test_when_validations_come(tmp_path, name):
    by_epoch, cfg = INTERVALS[name]
    hooks = [Recorder(), Recorder()]
    stock = train(tmp_path / 'stock', None, by_epoch, train_cfg=cfg, custom_hooks=hooks[:1])
    ours = train(tmp_path / 'lean', 'auto', by_epoch, train_cfg=cfg, custom_hooks=hooks[1:])
    assert ours.training == stock.training
    assert hooks[0].notes == hooks[1].notes
    assert any(note[0] == 'val' for note in hooks[1].notes)
    assert_one_pool(ours)


def test_workers_stay_over_an_epoch_without_validation(tmp_path):
    job = train(tmp_path, 'auto', train_cfg=dict(max_epochs=4, val_interval=2))
    pids = [{pid for step in job.steps[begin : begin + 6] for pid in step.pids} for begin in (0, 6, 12, 18)]
    assert pids[0] == pids[1] and pids[2] == pids[3] and not pids[0] & pids[2]


def test_no_batch_is_loaded_twice_around_a_validation(tmp_path):
    """Before a validation in mid-epoch no batch is handed out that would have to wait for its end."""
    log = tmp_path / 'loaded'
    pipeline = [Note(log), Mark(), Draw()]
    train(
        tmp_path / 'work',
        'auto',
        False,
        train=loader(True, sampler=dict(type='InfiniteSampler', shuffle=True), pipeline=pipeline),
    )
    assert len(log.read_text().split()) == 20 * 2


class Note:
    """Writes down each sample that is loaded."""

    def __init__(self, path):
        self.path = path

    def __call__(self, results):
        with open(self.path, 'a') as file:
            file.write(f'{results["index"]}\n')
        return results


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
@pytest.mark.parametrize('which', ['training', 'validation'])
def test_one_lean_loop_beside_one_of_stock(tmp_path, by_epoch, which):
    stock = train(tmp_path / 'stock', None, by_epoch)
    if which == 'training':
        ours = train(tmp_path / 'lean', 'auto', by_epoch, val_cfg=dict(type='ValLoop'))
        assert_one_pool(ours)
    else:
        runner = build(tmp_path / 'lean', None, by_epoch, val_cfg=dict(type='LeanValLoop'))
        ours = follow(runner, runner.train)
        assert len(ours.left) == 2  # stock's training
    assert ours.training == stock.training


def test_validation_and_test_alone(tmp_path):
    jobs = []
    for lean in (None, 'auto'):
        evaluation = dict(type='TestLoop') if lean is None else dict(type='LeanTestLoop')
        runner = build(
            tmp_path / str(lean),
            lean,
            test_dataloader=loader(False, size=5),
            test_cfg=evaluation,
            test_evaluator=[Count()],
        )
        metrics = []
        jobs.append((follow(runner, lambda: metrics.extend([runner.val(), runner.test()])), metrics))  # noqa: B023
    (stock, numbers), (ours, our_numbers) = jobs
    assert our_numbers == numbers == [dict(count=6, total=15), dict(count=5, total=10)]
    assert ours.training == stock.training
    assert len(stock.left) == 4 and not ours.left and ours.most <= 2


def test_flexible_runner(tmp_path):
    for by_epoch in (True, False):
        stock, ours = both(tmp_path, by_epoch=by_epoch, runner=lambda: FlexibleRunner)
        assert ours.training == stock.training
        assert_one_pool(ours)


def test_what_release_workers_may_be(tmp_path):
    with pytest.raises(ValueError, match=r"release_workers is 'yes', should be True, False or 'auto'"):
        build(tmp_path, 'yes').train_loop  # noqa: B018


def test_workers_of_a_fork_server(tmp_path, repo):
    """As the config says it: for the whole job. The server imports once what all workers need."""
    script = (
        'import sys; from pathlib import Path; from tests.engine.lean_jobs import *\n'
        "if __name__ == '__main__':\n"
        "    job = train(Path(sys.argv[1]), 'auto', env_cfg=dict(mp_cfg=dict(mp_start_method='forkserver')),\n"
        '                train_cfg=dict(max_epochs=2))\n'
        '    assert_one_pool(job)\n'
        '    assert len({draws for step in job.steps for draws in step.draws}) == 24\n'
        '    print(job.indices)\n'
    )
    (tmp_path / 'job.py').write_text(script)
    job = subprocess.run(
        [sys.executable, str(tmp_path / 'job.py'), str(tmp_path / 'work')],
        env={**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        text=True,
        timeout=170,
    )
    assert job.returncode == 0
    stock = train(tmp_path / 'stock', None, train_cfg=dict(max_epochs=2))
    assert job.stdout.splitlines()[-1] == str(stock.indices)
