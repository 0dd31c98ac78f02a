"""A job that is resumed goes on where its checkpoint was made: the same batches as without an interruption."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.dataset import ConcatDataset
from mmengine.hooks import Hook
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import FlexibleRunner

from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from mmshared.engine.resume import KEY

from .lean_jobs import Draw, Mark, Numbers, assert_one_pool, build, follow, loader
from .test_loops import ENDLESS, Note, TorchRandomSampler

allow_mmengine_checkpoints()

INFINITE = dict(type='InfiniteSampler', shuffle=True)
EACH_STEP = dict(type='CheckpointHook', interval=1, by_epoch=False, max_keep_ckpts=-1, save_last=False)


@DATASETS.register_module(force=True)
class LandscapesAndPortraits(ConcatDataset):
    """Two sources with images of both kinds, as ``GroupMultiSourceSampler`` wants them."""

    METAINFO = dict(classes=('number',))

    def __init__(self, pipeline=(), size=12):
        super().__init__([Numbers(size=size, pipeline=pipeline), Numbers(size=6, pipeline=pipeline)])


@DATA_SAMPLERS.register_module(force=True)
class Unseeded(TorchRandomSampler):
    """Its order follows from nothing that a checkpoint has."""

    def __iter__(self):
        yield from np.random.default_rng().permutation(len(self.data_source)).tolist()


class Seen(Hook):
    """When training epochs began and ended, and validations came."""

    def __init__(self):
        self.notes = []

    def before_train_epoch(self, runner):
        self.notes.append(('begin', runner.epoch, runner.iter))

    def after_train_epoch(self, runner):
        self.notes.append(('end', runner.epoch, runner.iter))

    def after_val_epoch(self, runner, metrics=None):
        self.notes.append(('val', runner.epoch, runner.iter))


def run(folder, lean='auto', by_epoch=True, resume=None, **changes):
    """A job with a checkpoint after each step; ``resume``: the one to resume from."""
    further = {} if resume is None else dict(load_from=str(resume), resume=True)
    hooks = dict(checkpoint=dict(changes.pop('checkpoint', EACH_STEP)), logger=None)
    runner = build(folder, lean, by_epoch, default_hooks=hooks, **further, **changes)
    return follow(runner, runner.train)


def at(folder, step):
    return Path(folder) / f'iter_{step}.pth'


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def logged(caplog, monkeypatch):
    """What MMEngine's loggers say, which do not pass it on."""
    from mmengine.logging import MMLogger

    original = MMLogger.get_instance.__func__

    def get_instance(cls, *args, **kwargs):
        logger = original(cls, *args, **kwargs)
        if caplog.handler not in logger.handlers:
            logger.addHandler(caplog.handler)
        return logger

    monkeypatch.setattr(MMLogger, 'get_instance', classmethod(get_instance))
    return caplog


@pytest.mark.parametrize('lean, workers', [('auto', 2), (True, 0), (False, 2)], ids=['released', 'none', 'kept'])
def test_epochs(tmp_path, lean, workers):
    """In mid-epoch, at the last batch of one, and at its end; later epochs have all their batches."""
    make = lambda: loader(True, workers)  # noqa: E731
    whole = run(tmp_path / 'whole', lean, train=make(), custom_hooks=[seen := Seen()])
    assert len(whole.steps) == 18 and sum(note[0] == 'val' for note in seen.notes) == 3
    for step in (2, 6, 11):
        job = run(
            tmp_path / str(step), lean, train=make(), resume=at(tmp_path / 'whole', step), custom_hooks=[hook := Seen()]
        )
        assert job.indices == whole.indices[step:]
        assert (job.runner.epoch, job.runner.iter) == (3, 18)
        # The epoch that was interrupted begins, in so far as hooks are told, where it was.
        assert hook.notes[0] == ('begin', (step - 1) // 6, step)
        assert hook.notes[1:] == seen.notes[seen.notes.index(('end', (step - 1) // 6, (step - 1) // 6 * 6 + 6)) :]
        if lean == 'auto':
            assert_one_pool(job)
        assert not job.left or lean is False


ITERATIONS = {
    'endless': ENDLESS,
    'aspect ratio': dict(ENDLESS, batch_sampler=dict(type='mmdet.AspectRatioBatchSampler')),
    'no batches': dict(ENDLESS, batch_size=None, collate_fn=lambda sample: sample),
    'far ahead': dict(ENDLESS, prefetch_factor=5),
    'no workers': dict(ENDLESS, workers=0),
    'two sources': dict(
        sampler=dict(type='mmdet.MultiSourceSampler', batch_size=2, source_ratio=[1, 1]),
        dataset=dict(type='LandscapesAndPortraits', pipeline=[Mark(), Draw()]),
    ),
    'groups of two sources': dict(
        sampler=dict(type='mmdet.GroupMultiSourceSampler', batch_size=2, source_ratio=[1, 1]),
        dataset=dict(type='LandscapesAndPortraits', pipeline=[Mark(), Draw()]),
    ),
}


SEEDED, NONE, PER_RANK = dict(seed=3), dict(seed=None), dict(seed=None, diff_rank_seed=True)
UNSEEDED = [(name, kind) for name in ('endless', 'groups of two sources') for kind in (NONE, PER_RANK)]


@pytest.mark.parametrize('name, randomness', [*((name, SEEDED) for name in ITERATIONS), *UNSEEDED])
def test_iterations(tmp_path, name, randomness, logged):
    """Also without a seed in the config: MMEngine then gives the sampler of the resumed job one of its own."""
    make = lambda: loader(True, **ITERATIONS[name])  # noqa: E731
    common = dict(by_epoch=False, randomness=randomness, model=QUIET)
    whole = run(tmp_path / 'whole', train=make(), **common)
    for step in (4, 14) if randomness == SEEDED else (9,):
        log = tmp_path / f'loaded-{step}'
        noting = make()
        noting['dataset']['pipeline'] = [Note(log), *noting['dataset']['pipeline']]
        job = run(tmp_path / str(step), train=noting, resume=at(tmp_path / 'whole', step), **common)
        assert job.indices == whole.indices[step:]
        loaded = [int(line) for line in log.read_text().split()]
        assert len(loaded) == len(sum(whole.indices[step:], []))  # nothing was loaded only to be skipped
        if name != 'no workers':
            assert_one_pool(job)
    assert not [text for text in warnings_of(logged) if 'sampler' in text or 'checkpoint' in text]


QUIET = dict(type='LeanNet', noise=False)  # draws nothing from numpy's generator, where two samplers do


def test_a_finite_sampler_that_began_anew(tmp_path, monkeypatch):
    """Iterations over a sampler that ends: the checkpoint may be in any pass over it, or between two."""
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda seconds: None)
    common = dict(by_epoch=False, randomness=NONE)
    whole = run(tmp_path / 'whole', train=loader(True), **common)
    for step in (3, 6, 8, 12, 15):
        job = run(tmp_path / str(step), train=loader(True), resume=at(tmp_path / 'whole', step), **common)
        assert job.indices == whole.indices[step:]


def test_the_same_as_stock_where_stock_can(tmp_path):
    """With a seed in the config, stock comes to the same batches; it loads all those before."""
    make = lambda: loader(True, sampler=INFINITE)  # noqa: E731
    run(tmp_path / 'whole', None, False, train=make())
    stock, ours = (
        run(tmp_path / str(lean), lean, False, train=make(), resume=at(tmp_path / 'whole', 9))
        for lean in (None, 'auto')
    )
    assert ours.indices == stock.indices and len(ours.indices) == 11


def test_a_job_that_is_resumed_twice(tmp_path):
    """And whose first part was one with stock's loops up to the end of an epoch."""
    common = dict(randomness=dict(seed=None))
    first = run(tmp_path / 'a', train_cfg=dict(max_epochs=1), **common)
    second = run(tmp_path / 'b', resume=at(tmp_path / 'a', 4), train_cfg=dict(max_epochs=2), **common)
    third = run(tmp_path / 'c', resume=at(tmp_path / 'b', 8), **common)
    whole = first.indices[:4] + second.indices[:4] + third.indices
    assert len(whole) == 18
    assert all(sorted(sum(whole[begin : begin + 6], [])) == list(range(12)) for begin in (0, 6, 12))
    assert len({str(whole[begin : begin + 6]) for begin in (0, 6, 12)}) == 3
    draws = [
        draws
        for job, some in ((first, 4), (second, 4), (third, 18))
        for step in job.steps[:some]
        for draws in step.draws
    ]
    assert len(set(draws)) == len(draws) == 36


def test_flexible_runner(tmp_path):
    whole = run(tmp_path / 'whole', runner=FlexibleRunner)
    job = run(tmp_path / 'more', runner=FlexibleRunner, resume=at(tmp_path / 'whole', 8))
    assert job.indices == whole.indices[8:]


def test_a_pipeline_that_was_switched_before_the_checkpoint(tmp_path):
    def hooks():
        return [dict(type='mmdet.PipelineSwitchHook', switch_epoch=1, switch_pipeline=[Mark('second'), Draw()])]

    whole = run(tmp_path / 'whole', custom_hooks=hooks())
    marks = [step.marks for step in whole.steps]
    assert marks == [['first'] * 2] * 6 + [['second'] * 2] * 12
    for step in (4, 9):
        job = run(tmp_path / str(step), custom_hooks=hooks(), resume=at(tmp_path / 'whole', step))
        assert job.indices == whole.indices[step:]
        assert [one.marks for one in job.steps] == marks[step:]


UNKNOWN = 'Where in its data this job was is not known'


@pytest.mark.parametrize(
    'change, said',
    [
        (dict(batch_size=3), 'batch_size 2, now 3'),
        (dict(size=14), 'dataset_length 12, now 14'),
    ],
    ids=['batch size', 'length'],
)
def test_another_job(tmp_path, change, said, logged):
    """As with stock then: the epoch begins anew; one warning says why."""
    run(tmp_path / 'whole', train_cfg=dict(max_epochs=1))
    job = run(tmp_path / 'more', train=loader(True, **change), resume=at(tmp_path / 'whole', 4))
    stock = run(tmp_path / 'stock', None, train=loader(True, **change), resume=at(tmp_path / 'whole', 4))
    assert job.indices == stock.indices
    (text,) = [text for text in warnings_of(logged) if UNKNOWN in text]
    assert said in text


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_a_checkpoint_of_stocks_loops(tmp_path, by_epoch, logged):
    sampler = None if by_epoch else INFINITE
    run(tmp_path / 'whole', None, by_epoch, train=loader(True, sampler=sampler))
    job, stock = (
        run(tmp_path / str(lean), lean, by_epoch, train=loader(True, sampler=sampler), resume=at(tmp_path / 'whole', 4))
        for lean in ('auto', None)
    )
    assert job.indices == stock.indices
    (text,) = [text for text in warnings_of(logged) if UNKNOWN in text]
    assert 'not made with a lean loop' in text


def test_a_checkpoint_of_ours_for_stocks_loops(tmp_path):
    run(tmp_path / 'whole')
    assert len(run(tmp_path / 'more', None, resume=at(tmp_path / 'whole', 13)).steps) == 6


def test_a_sampler_that_does_not_give_the_same_again(tmp_path, logged):
    make = lambda: loader(True, sampler=dict(type='Unseeded'))  # noqa: E731
    run(tmp_path / 'whole', train=make())
    job = run(tmp_path / 'more', train=make(), resume=at(tmp_path / 'whole', 4))
    assert len(job.steps) == 14
    (text,) = [text for text in warnings_of(logged) if 'not given the same' in text]
    assert 'the same 4 batches as before the checkpoint' in text


def test_what_a_checkpoint_says(tmp_path):
    """Plain values only, so that PyTorch's safe loading takes them."""
    run(tmp_path)
    allow_mmengine_checkpoints()  # OneDL's releases forget it when they have loaded a checkpoint
    hub = torch.load(at(tmp_path, 8), map_location='cpu')['message_hub']
    position = hub['runtime_info'][KEY]
    assert position['epoch'] == 1 and position['iteration'] == 8 and position['batch'] == 2
    assert position['seeds'] == [None, 3] and position['origins'] == []
    assert position['job'] == dict(world_size=1, batch_size='2', dataset_length=12)
    assert json.loads(json.dumps(position)) == position


def test_after_sigkill_in_mid_epoch(tmp_path, repo):
    """A real job, killed; the one that is resumed sees what it would have seen."""
    script = (
        'import sys; from tests.engine.test_resume import run, loader; from pathlib import Path\n'
        'run(Path(sys.argv[1]), train=loader(True, size=100), randomness=dict(seed=None))'
    )
    environment = {**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'}
    job = subprocess.Popen([sys.executable, '-c', script, str(tmp_path / 'killed')], cwd=repo, env=environment)
    try:
        deadline = time.monotonic() + 120
        while not at(tmp_path / 'killed', 30).exists():
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    common = dict(train=loader(True, size=100), randomness=dict(seed=None), train_cfg=dict(max_epochs=1))
    common = {**common, 'checkpoint': dict(type='CheckpointHook', interval=1000)}
    first, second = (run(tmp_path / str(k), resume=at(tmp_path / 'killed', k), **common) for k in (5, 25))
    assert first.indices[20:] == second.indices and len(second.indices) == 25
    assert len(set(sum(first.indices, []))) == 90
