"""Faster R-CNN, whose sampler of boxes draws from the main process's random state: equal to stock's, bit by bit."""

from __future__ import annotations

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import Runner

import mmshared  # noqa: F401  (registers what the config names)

from .lean_jobs import LEAN, STOCK, follow


def faster_rcnn(shapes, folder, by_epoch, lean):
    """The runner of a very small one, on annotations of the shared dataset."""
    cfg = Config.fromfile('configs/faster_rcnn/faster-rcnn_r50_fpn_1x_shared-coco.py')
    kind = {} if lean is None else dict(release_workers=lean)
    length = dict(max_epochs=2) if by_epoch else dict(max_iters=7, val_interval=3)
    data = dict(data_root=str(shapes), metainfo=dict(classes=('disc', 'square', 'triangle', 'star')))
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')
    resize = dict(type='Resize', scale=(64, 64), keep_ratio=True)
    pipeline = [*load, resize, dict(type='PackDetInputs', meta_keys=keys)]
    small = dict(depth=18, frozen_stages=-1, norm_eval=False, init_cfg=None)
    head = dict(num_classes=4, in_channels=16, fc_out_channels=16)
    evaluator = dict(type='CocoMetric', ann_file=f'{shapes}/annotations/val.json', metric='bbox')
    changes = {
        'model.backbone': small,
        'model.neck': dict(in_channels=[64, 128, 256, 512], out_channels=16),
        'model.rpn_head': dict(in_channels=16, feat_channels=16),
        'model.roi_head.bbox_roi_extractor': dict(out_channels=16),
        'model.roi_head.bbox_head': head,
        'train_dataloader': dict(batch_size=2, num_workers=2),
        'val_dataloader': dict(batch_size=2, num_workers=2),
    }
    cfg.merge_from_dict(changes)
    for split, loader in (('train', cfg.train_dataloader), ('val', cfg.val_dataloader)):
        images = dict(ann_file=f'annotations/{split}.json', data_prefix=dict(img=f'{split}/'), pipeline=pipeline)
        loader.dataset = dict(type='SharedCocoDataset', **data, **images)
    if not by_epoch:
        cfg.train_dataloader.sampler = dict(type='InfiniteSampler', shuffle=True)
    cfg.train_cfg = dict(type=(STOCK if lean is None else LEAN)[by_epoch], **length, **kind)
    cfg.val_cfg = dict(type='ValLoop' if lean is None else 'LeanValLoop', **kind)
    cfg.val_evaluator, cfg.test_dataloader, cfg.test_cfg, cfg.test_evaluator = evaluator, None, None, None
    cfg.param_scheduler = []
    cfg.randomness, cfg.work_dir, cfg.log_level = dict(seed=1), str(folder), 'WARNING'
    cfg.default_hooks.checkpoint = None
    cfg.experiment_name = f'{folder.parent.name}-{folder.name}'
    return Runner.from_cfg(cfg)


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
def test_faster_rcnn(tmp_path, shapes, repo, by_epoch, monkeypatch):
    monkeypatch.chdir(repo)
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    jobs = []
    for lean in (None, True):
        runner = faster_rcnn(shapes, tmp_path / str(lean), by_epoch, lean)
        jobs.append(follow(runner, runner.train))
    stock, ours = jobs
    assert len(stock.scalars['train/loss']) == (8 if by_epoch else 7)
    assert ours.scalars == stock.scalars
    assert ours.randomness == stock.randomness
    states = [job.runner.model.state_dict() for job in jobs]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert stock.most == 4 and ours.most == 2 and not ours.left
