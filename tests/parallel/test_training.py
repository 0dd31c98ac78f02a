"""Detectors of MMDetection's configs, made small: with packed batches they learn and predict the same, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.evaluator import BaseMetric
from mmengine.hub import get_config
from mmengine.registry import METRICS
from mmengine.runner import Runner

import mmshared  # noqa: F401  (registers what configs name)

COLLATE = dict(stock=dict(type='pseudo_collate'), packed=dict(type='packed_collate'))
CLASSES = ('disc', 'square', 'triangle', 'star')
STUFF = 5


@METRICS.register_module(force=True)
class KeptPredictions(BaseMetric):
    """Keeps all predictions as they are."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        for sample in data_samples:
            found = sample['pred_instances']
            self.results.append([sample['img_id'], *(found[key].tolist() for key in ('bboxes', 'scores', 'labels'))])

    def compute_metrics(self, results: List[Any]) -> Dict[str, Any]:
        return dict(kept=results)


class Job(NamedTuple):
    """A small detector.

    Attributes:
        config: of MMDetection.
        model: what is changed in its model.
        transforms: of training, between loading and packing.
        loading: arguments of ``LoadAnnotations``.
        mixed: transforms of several images.
    """

    config: str
    model: Dict[str, Any]
    transforms: List[Dict[str, Any]]
    loading: Dict[str, Any] = {}
    mixed: List[Dict[str, Any]] = []


RESNET = dict(depth=18, base_channels=8, frozen_stages=-1, norm_eval=False, init_cfg=None)
FPN = dict(in_channels=[8, 16, 32, 64], out_channels=16)
SIZES = [(64, 48), (64, 64), (40, 64)]
RESIZE = [dict(type='RandomChoiceResize', scales=SIZES, keep_ratio=False), dict(type='RandomFlip', prob=0.5)]
RPN = dict(in_channels=16, feat_channels=16)
ROI = dict(
    bbox_roi_extractor=dict(out_channels=16),
    bbox_head=dict(in_channels=16, fc_out_channels=16, num_classes=4),
    mask_roi_extractor=dict(out_channels=16),
    mask_head=dict(num_convs=1, in_channels=16, conv_out_channels=16, num_classes=4),
)
SEMANTIC = dict(num_things_classes=4, num_stuff_classes=STUFF, in_channels=16, inner_channels=8)
GROUPS = dict(norm_cfg=dict(type='GN', num_groups=2, requires_grad=True))
TWO_SIZES = [dict(type='BatchSyncRandomResize', random_size_range=(32, 64), size_divisor=32, interval=1)]
MOSAIC = [dict(type='Mosaic', img_scale=(32, 32)), dict(type='MixUp', img_scale=(32, 32), ratio_range=(0.8, 1.6))]

JOBS = dict(
    retinanet=Job(
        'retinanet/retinanet_r50_fpn_1x_coco.py',
        dict(backbone=RESNET, neck=FPN, bbox_head=dict(RPN, num_classes=4, stacked_convs=1)),
        RESIZE,
    ),
    mask_rcnn=Job(
        'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        dict(backbone=RESNET, neck=FPN, rpn_head=RPN, roi_head=ROI),
        RESIZE,
        dict(with_mask=True),
    ),
    mask_rcnn_of_polygons=Job(
        'mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
        dict(backbone=RESNET, neck=FPN, rpn_head=RPN, roi_head=ROI, data_preprocessor=dict(pad_mask=False)),
        RESIZE,
        dict(with_mask=True, poly2mask=False),
    ),
    panoptic_fpn=Job(
        'panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py',
        dict(backbone=RESNET, neck=FPN, rpn_head=RPN, roi_head=ROI, semantic_head=dict(SEMANTIC, **GROUPS)),
        RESIZE,
        dict(with_mask=True, with_seg=True),
    ),
    rtmdet=Job(
        'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
        dict(
            backbone=dict(widen_factor=0.0625, init_cfg=None),
            neck=dict(in_channels=[16, 32, 64], out_channels=16),
            bbox_head=dict(in_channels=16, feat_channels=16, stacked_convs=1, num_classes=4),
            data_preprocessor=dict(batch_augments=TWO_SIZES),
        ),
        [
            dict(type='CachedMosaic', img_scale=(32, 32), max_cached_images=4),
            dict(type='YOLOXHSVRandomAug'),
            *RESIZE[1:],
        ],
    ),
    yolox=Job(
        'yolox/yolox_s_8xb8-300e_coco.py',
        dict(
            backbone=dict(deepen_factor=0.17, widen_factor=0.0625),
            neck=dict(in_channels=[16, 32, 64], out_channels=16, num_csp_blocks=1),
            bbox_head=dict(in_channels=16, feat_channels=16, stacked_convs=1, num_classes=4),
            data_preprocessor=dict(batch_augments=TWO_SIZES),
        ),
        RESIZE[1:],
        mixed=[*MOSAIC, dict(type='RandomFlip', prob=0.5)],
    ),
)


@pytest.fixture(scope='module')
def scenes(shapes: Path) -> Path:
    """The images of ``shapes``, with a map of what is where for each: also in places that are to be ignored."""
    maps = shapes / 'maps'
    maps.mkdir(exist_ok=True)
    for number, image in enumerate(sorted((shapes / 'train').iterdir())):
        pixels = np.random.default_rng(number).choice([0, 1, 4, STUFF, 255], (8, 8)).astype(np.uint8)
        cv2.imwrite(str(maps / f'{image.stem}.png'), cv2.resize(pixels, (64, 64), interpolation=cv2.INTER_NEAREST))
    return shapes


def arguments(folder: Path, job: Job) -> Dict[str, Any]:
    """What ``Runner`` gets, data aside. (No config as a whole: to write that down takes longer than the training.)"""
    cfg = get_config(f'mmdet::{job.config}')
    cfg.merge_from_dict(dict(model=job.model))
    names = dict(work_dir=str(folder), experiment_name=f'{folder.parent.name}-{folder.name}')
    quiet = dict(default_hooks=dict(checkpoint=None), log_level='WARNING')
    return dict(model=cfg.model, default_scope='mmdet', randomness=dict(seed=1), **names, **quiet)


class Outcome(NamedTuple):
    """What came of a training.

    Attributes:
        scalars: all losses, by name, of each iteration.
        weights: at the end.
        draws: what the main process's generators would give next.
    """

    scalars: Dict[str, List[float]]
    weights: Dict[str, torch.Tensor]
    draws: List[float]


def loader(scenes: Path, collate_fn: Dict[str, Any], split: str, pipeline: List[Any], mixed: Any = ()) -> dict:
    """A dataloader's config; transforms of several images come before the last one of the pipeline."""
    dataset = dict(
        type='CocoDataset',
        data_root=str(scenes),
        metainfo=dict(classes=CLASSES),
        ann_file=f'annotations/{split}.json',
        data_prefix=dict(img=f'{split}/', seg='maps/'),
        pipeline=pipeline[:-1] if mixed else pipeline,
    )
    if mixed:
        dataset = dict(type='MultiImageMixDataset', dataset=dataset, pipeline=[*mixed, pipeline[-1]])
    sampler = dict(type='DefaultSampler', shuffle=split == 'train')
    workers = dict(num_workers=2, persistent_workers=True)
    return dict(batch_size=2, dataset=dataset, sampler=sampler, collate_fn=dict(collate_fn), **workers)


def trained(folder: Path, scenes: Path, job: Job, collate_fn: Dict[str, Any]) -> Outcome:
    """What comes of two epochs."""
    load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, **job.loading)]
    pipeline = [*load, *job.transforms, dict(type='PackDetInputs')]
    runner = Runner(
        **arguments(folder, job),
        train_dataloader=loader(scenes, collate_fn, 'train', pipeline, job.mixed),
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.005, momentum=0.9), clip_grad=dict(max_norm=10)),
    )
    runner.train()
    end_workers(runner.train_dataloader)
    logged = runner.message_hub.log_scalars.items()
    scalars = {key: buffer.data[0].tolist() for key, buffer in logged if 'time' not in key}
    return Outcome(scalars, runner.model.state_dict(), torch.rand(3).tolist() + np.random.rand(3).tolist())


def end_workers(dataloader: Any) -> None:
    """Stock keeps them, and lets the garbage collector wait for each."""
    dataloader._iterator._shutdown_workers()
    dataloader._iterator = None


def both(make: Callable[[str], Any]) -> List[Any]:
    """What is made with stock's collate function, and with packed batches."""
    return [make(name) for name in COLLATE]


@pytest.mark.parametrize('name', JOBS)
def test_training_is_the_same(name, scenes, tmp_path):
    stock, packed = both(lambda way: trained(tmp_path / way, scenes, JOBS[name], COLLATE[way]))
    losses = [key for key in stock.scalars if 'loss' in key]
    assert len(stock.scalars['train/loss']) == 8 and len(losses) > 2
    assert np.isfinite([stock.scalars[key] for key in losses]).all() and len(set(stock.scalars['train/loss'])) == 8
    assert packed.scalars == stock.scalars
    assert packed.draws == stock.draws
    assert packed.weights.keys() == stock.weights.keys()
    assert all(torch.equal(packed.weights[key], stock.weights[key]) for key in stock.weights)


def predicted(folder: Path, scenes: Path, collate_fn: Dict[str, Any], augmented: bool) -> List[Any]:
    """The predictions of a detector that has learnt nothing."""
    given = arguments(folder, JOBS['retinanet'])
    keys = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')
    sizes = [dict(type='Resize', scale=(size, size), keep_ratio=True) for size in (48, 64)]
    load, pack = dict(type='LoadImageFromFile'), dict(type='PackDetInputs', meta_keys=keys)
    pipeline = [load, sizes[1], dict(type='RandomFlip', prob=0.0), pack]
    if augmented:
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        pipeline = [load, dict(type='TestTimeAug', transforms=[sizes, flips, [pack]])]
        merge = ConfigDict(nms=dict(type='nms', iou_threshold=0.6), max_per_img=20)
        given['model'] = dict(type='DetTTAModel', tta_cfg=merge, module=given['model'])
    dataloader = loader(scenes, collate_fn, 'val', pipeline)
    phase = dict(test_cfg=dict(type='TestLoop'), test_evaluator=dict(type='KeptPredictions'))
    runner = Runner(**given, test_dataloader=dataloader, **phase)
    kept = runner.test()['kept']
    end_workers(runner.test_dataloader)
    return kept


@pytest.mark.parametrize('augmented', [False, True], ids=['plain', 'test-time augmentation'])
def test_predictions_are_the_same(augmented, scenes, tmp_path):
    stock, packed = both(lambda way: predicted(tmp_path / way, scenes, COLLATE[way], augmented))
    assert len(stock) == 4 and all(scores for _, _, scores, _ in stock)
    assert packed == stock
