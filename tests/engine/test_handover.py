"""What happens between phases: warm starts, hooks that change the data, transforms that keep samples."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from mmdet.engine.hooks import PipelineSwitchHook, YOLOXModeSwitchHook
from mmengine.hooks import EMAHook, Hook, RuntimeInfoHook
from mmengine.registry import HOOKS, MODELS, TRANSFORMS

from mmshared.engine.handover import may_train_early, may_validate_early

from .lean_jobs import Draw, Mark, Net, assert_one_pool, build, follow, loader, train


class OldHook(Hook):
    """Does something, nobody knows what, before each epoch."""

    def before_train_epoch(self, runner):
        pass


class Unknown(EMAHook):
    def before_train_epoch(self, runner):
        pass


class Inherits(RuntimeInfoHook):
    """Changes nothing of what its parent does before an epoch."""

    def after_train_iter(self, *args, **kwargs):
        pass


@HOOKS.register_module(name='LeanTestEMAHook', force=True)
class EmptyCacheHook(Hook):  # named as one that is known
    def before_train_epoch(self, runner):
        pass

    def before_val(self, runner):
        pass


@pytest.mark.parametrize(
    'hook, train_early, val_early',
    [
        (Hook, True, True),
        (RuntimeInfoHook, True, True),
        (EMAHook, True, True),
        (Inherits, True, True),
        (OldHook, False, True),
        (Unknown, False, True),
        (EmptyCacheHook, False, False),
    ],
)
def test_which_hooks_hold_up_workers(tmp_path, hook, train_early, val_early):
    runner = build(tmp_path, 'auto', custom_hooks=[hook()])
    assert may_train_early(runner) is train_early
    assert may_validate_early(runner) is val_early


def test_switch_hooks_hold_up_workers_when_they_switch(tmp_path):
    runner = build(tmp_path, 'auto', train_cfg=dict(max_epochs=10))
    loop = runner.train_loop
    pipeline, yolox = PipelineSwitchHook(3, []), YOLOXModeSwitchHook(4)
    early = []
    for hook in (pipeline, yolox):
        runner._hooks = [hook]
        early.append([])
        for epoch in range(10):
            loop._epoch = epoch
            early[-1].append(may_train_early(runner))
            hook._has_switched = hook._has_switched or not early[-1][-1]
    assert early == [[epoch != 3 for epoch in range(10)], [epoch != 5 for epoch in range(10)]]


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_workers_start_while_the_metric_is_computed(tmp_path, by_epoch):
    length = dict(max_epochs=2) if by_epoch else dict(max_iters=10, val_interval=5)
    job = train(tmp_path, 'auto', by_epoch, delay=2.0, train_cfg=length)
    again = job.steps[6 if by_epoch else 5]
    begin, end = job.metric.spans[0]
    assert end - begin >= 2
    for pid in again.pids:
        assert job.watch.first[pid] < end - 0.5  # and not just when the metric was there
    assert again.at > end
    assert_one_pool(job)
    assert job.watch.looks[-1] == set() or not job.left  # nothing starts during the last metric


def test_an_unknown_hook_makes_them_wait(tmp_path):
    job = train(tmp_path, 'auto', delay=1.0, train_cfg=dict(max_epochs=2), custom_hooks=[OldHook()])
    end = job.metric.spans[0][1]
    assert all(job.watch.first[pid] > end - 0.1 for pid in job.steps[6].pids)
    assert_one_pool(job)


def test_iterations_do_not_wait_for_what_comes_before_epochs(tmp_path):
    job = train(
        tmp_path, 'auto', False, delay=1.0, train_cfg=dict(max_iters=4, val_interval=2), custom_hooks=[OldHook()]
    )
    assert all(job.watch.first[pid] < job.metric.spans[0][1] for pid in job.steps[2].pids)


class NewPipeline(Hook):
    """Gives each epoch a pipeline of its own."""

    def before_train_epoch(self, runner):
        runner.train_dataloader.dataset.pipeline.transforms[0].name = f'epoch {runner.epoch}'


@pytest.mark.parametrize('interval', [1, 9])
def test_a_hook_that_changes_the_dataset_is_seen_as_with_workers_of_one_epoch(tmp_path, interval):
    jobs = [
        train(
            tmp_path / str(lean),
            lean,
            train=loader(True, persistent_workers=False),
            train_cfg=dict(max_epochs=3, val_interval=interval),
            custom_hooks=[NewPipeline()],
        )
        for lean in (None, 'auto')
    ]
    marks = [[mark for step in job.steps for mark in step.marks] for job in jobs]
    assert marks[0] == marks[1] and set(marks[0]) == {'epoch 0', 'epoch 1', 'epoch 2'}
    assert jobs[0].training == jobs[1].training


@pytest.mark.parametrize('interval', [1, 9])
@pytest.mark.parametrize('kind', ['mmdet.PipelineSwitchHook', 'mmdet.YOLOXModeSwitchHook'])
def test_switch_hooks_switch_at_the_same_sample(tmp_path, kind, interval):
    jobs = []
    for lean in (None, 'auto'):
        if kind == 'mmdet.PipelineSwitchHook':
            data = loader(True)
            hook = dict(type=kind, switch_epoch=2, switch_pipeline=[Mark('second'), Draw()])
        else:
            inner = dict(type='Numbers', size=12, pipeline=[Mark('second'), Draw()])
            mixed = dict(
                type='mmdet.MultiImageMixDataset',
                dataset=inner,
                pipeline=[dict(type='LeanMark', name='first'), dict(type='LeanDraw')],
            )
            data = {**loader(True), 'dataset': mixed}
            hook = dict(type=kind, num_last_epochs=2, skip_type_keys=('LeanMark',))
        job = train(
            tmp_path / str(lean),
            lean,
            train=data,
            train_cfg=dict(max_epochs=5, val_interval=interval),
            custom_hooks=[hook],
        )
        assert job.runner.train_dataloader._DataLoader__initialized is True
        jobs.append(job)
    stock, ours = jobs
    assert [step.marks for step in ours.steps] == [step.marks for step in stock.steps]
    assert {mark for step in ours.steps for mark in step.marks} == {'first', 'second'}
    assert ours.training == stock.training
    assert_one_pool(ours)


@TRANSFORMS.register_module(name='LeanMeasure', force=True)
class Measure:
    """Leaves of a sample its number, and whether it is a mosaic: that has twice the size."""

    def __call__(self, results):
        mosaic = results['img'].shape[1] > 64
        return Draw()(dict(index=results['img_id'], mark='mosaic' if mosaic else 'plain'))


def cached_mosaic(shapes, **changes):
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
    mix = [dict(type='CachedMosaic', img_scale=(64, 64), max_cached_images=8, random_pop=False)]
    mix += [dict(type='CachedMixUp', img_scale=(128, 128), max_cached_images=4)] if changes.pop('mixup', False) else []
    data = dict(
        type='CocoDataset',
        data_root=str(shapes),
        ann_file='annotations/train.json',
        data_prefix=dict(img='train/'),
        metainfo=dict(classes=('disc', 'square', 'triangle', 'star')),
    )
    pipelines = [[*load, *mix, dict(type='LeanMeasure')], [*load, dict(type='LeanMeasure')]]
    train_loader = {**loader(True), 'dataset': dict(data, pipeline=pipelines[0]), 'batch_size': 1, **changes}
    return train_loader, pipelines[1]


def plain(job):
    return [step.marks for step in job.steps].count(['plain'])


def test_transforms_that_keep_samples_keep_their_workers(tmp_path, shapes):
    """Until mmdet's hook takes these transforms away. With release_workers=True samples pass un-mosaicked."""
    jobs = {}
    for lean in (None, 'auto', True):
        data, second = cached_mosaic(shapes, mixup=True)
        jobs[lean] = train(
            tmp_path / str(lean),
            lean,
            train=data,
            default_scope='mmdet',
            log_level='INFO',
            train_cfg=dict(max_epochs=4, val_interval=1),
            custom_hooks=[dict(type='PipelineSwitchHook', switch_epoch=3, switch_pipeline=second)],
        )
    stock, ours, released = jobs.values()
    assert ours.training == stock.training
    assert [step.marks == ['plain'] for step in ours.steps] == [step.marks == ['plain'] for step in stock.steps]
    assert 8 < plain(stock) == plain(ours) < plain(released)
    processes = [{pid for step in ours.steps[begin : begin + 8] for pid in step.pids} for begin in range(0, 32, 8)]
    assert processes[0] == processes[1] == processes[2] and not processes[2] & processes[3]
    assert_one_pool(released)
    assert not ours.left
    for lean, times in (('auto', 1), (True, 0)):
        log = next((tmp_path / str(lean)).glob('*/*.log')).read_text()
        said = 'The workers for training stay alive during other phases, as CachedMixUp, CachedMosaic keep samples'
        assert log.count(said) == times


class Own:
    """Draws from a generator of its own, as albumentations do."""

    def __init__(self):
        self.parts = dict(rng=np.random.default_rng(7), python=random.Random(7))

    def __call__(self, results):
        draws = self.parts['rng'].random(), self.parts['python'].random(), 0.0
        return dict(results, draws=draws)


def _check_variety(jobs):
    draws = [[draws[:2] for step in job.steps for draws in step.draws] for job in jobs]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == len(draws[0]) == 36


def test_transforms_with_generators_of_their_own(tmp_path):
    pipeline = [Mark(), Draw(), Own()]
    jobs = [train(tmp_path / name, 'auto', train=loader(True, pipeline=pipeline)) for name in 'ab']
    _check_variety(jobs)
    stock = train(tmp_path / 'stock', None, train=loader(True, pipeline=pipeline))
    drawn = [draws[:2] for step in stock.steps for draws in step.draws]
    assert len(set(drawn)) == 18  # both workers of stock draw the same: why they are seeded here


def test_albu(tmp_path):
    """mmdet's wrapper of albumentations, whose ``Compose`` has generators from 1.4.21 on."""
    pytest.importorskip('albumentations', reason='albumentations is not installed')
    from mmdet.datasets.transforms import Albu

    albu = Albu([dict(type='RandomBrightnessContrast', p=1.0)])

    class Bright:
        def __call__(self, results):
            image = albu(dict(img=np.full((8, 8, 3), 100, np.uint8)))['img']
            return dict(results, draws=(float(image.mean()), 0.0, 0.0))

    bright = Bright()
    bright.albu = albu
    jobs = [train(tmp_path / name, 'auto', train=loader(True, pipeline=[Mark(), Draw(), bright])) for name in 'ab']
    drawn = [[draws[0] for step in job.steps for draws in step.draws] for job in jobs]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 20


@MODELS.register_module(name='LeanTeacherNet', force=True)
class TeacherNet(Net):
    """A model as TeacherStudentValLoop wants one."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = torch.nn.Identity(), torch.nn.Identity()
        self.semi_test_cfg = dict(predict_on='teacher')


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_teacher_and_student(tmp_path, by_epoch):
    """A loop of mmdet that iterates its loader twice, and knows nothing of ours."""
    jobs = [
        train(
            tmp_path / str(lean),
            lean,
            by_epoch,
            model=dict(type='LeanTeacherNet'),
            val_cfg=dict(type='mmdet.TeacherStudentValLoop'),
        )
        for lean in (None, 'auto')
    ]
    assert jobs[0].training == jobs[1].training
    assert len(jobs[0].seen) == 3 * 2 * 3
    assert_one_pool(jobs[1])


def test_a_hook_that_validates_in_the_middle_of_an_epoch(tmp_path):
    class Middle(Hook):
        def after_train_iter(self, runner, batch_idx, **kwargs):
            if batch_idx == 2:
                runner.val_loop.run()
                runner.model.train()

    jobs = [train(tmp_path / str(lean), lean, custom_hooks=[Middle()]) for lean in (None, True)]
    assert jobs[0].training == jobs[1].training
    assert_one_pool(jobs[1])


def test_a_validation_without_workers_lets_training_keep_its_own(tmp_path):
    job = train(tmp_path, True, val=loader(False, workers=0, size=6))
    assert len({pid for step in job.steps for pid in step.pids}) == 2
    assert not job.left


def test_training_without_workers_releases_those_of_stocks_validation(tmp_path):
    for by_epoch in (True, False):
        sampler = None if by_epoch else dict(type='InfiniteSampler', shuffle=True)
        data = [loader(True, workers=0, sampler=sampler) for _ in range(2)]
        stock = train(tmp_path / 'stock', None, by_epoch, train=data[0])
        runner = build(tmp_path / 'lean', True, by_epoch, train=data[1], val_cfg=dict(type='ValLoop'))
        ours = follow(runner, runner.train)
        assert ours.training == stock.training
        assert len(ours.runner.model.evaluators) > len(stock.runner.model.evaluators)  # they came and went
        assert not ours.left and len(stock.left) == 2
