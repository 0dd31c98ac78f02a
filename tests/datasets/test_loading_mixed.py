"""LoadSharedAnnotations in the pipelines that mix images, and what comes after them: with the same seeds as stock."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
from typing import Any

import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets import CocoDataset, MultiImageMixDataset
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.evaluation import CocoMetric
from mmdet.registry import TRANSFORMS
from mmengine.dataset import ClassBalancedDataset, ConcatDataset, RepeatDataset
from mmengine.structures import InstanceData

from mmshared.datasets import LoadSharedAnnotations, SharedCocoDataset

from .oracle import difference
from .results import compare_items, is_deferred, items

CLASSES = ('disc', 'square', 'triangle', 'star')
META = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'flip', 'instances', 'sample_idx')
PACK = {'type': 'mmdet.PackDetInputs', 'meta_keys': META}
FLIP = {'type': 'mmdet.RandomFlip', 'prob': 0.5}
MOSAIC = [
    {'type': 'mmdet.Mosaic', 'img_scale': (48, 48)},
    {'type': 'mmdet.RandomAffine', 'scaling_ratio_range': (0.5, 1.5), 'border': (-24, -24)},
    {'type': 'mmdet.MixUp', 'img_scale': (48, 48), 'ratio_range': (0.8, 1.6)},
]
RESIZE = {'type': 'mmdet.Resize', 'scale': (48, 40)}
COPY_PASTE = {'type': 'mmdet.CopyPaste', 'max_num_pasted': 3}
CACHED = [
    {'type': 'mmdet.CachedMosaic', 'img_scale': (48, 48), 'max_cached_images': 4, 'random_pop': False},
    {'type': 'RandomResize', 'scale': (96, 96), 'ratio_range': (0.5, 2.0), 'resize_type': 'mmdet.Resize'},
    {'type': 'mmdet.RandomCrop', 'crop_size': (48, 48), 'allow_negative_crop': True},
    {'type': 'mmdet.CachedMixUp', 'img_scale': (48, 48), 'max_cached_images': 4, 'random_pop': False},
]
FILTER = {'type': 'mmdet.FilterAnnotations', 'min_gt_bbox_wh': (4, 4), 'keep_empty': False}
#: Options of the loading transform; what follows it in the dataset's pipeline; the pipeline of the wrapper, if any.
MIXES = {
    'mosaic and mixup': ({}, [], [*MOSAIC, FLIP, FILTER, PACK]),
    'packed inside': ({}, [FLIP], [*MOSAIC]),
    'copy and paste': ({'with_mask': True}, [], [COPY_PASTE, FLIP, PACK]),
    'copy and paste of boxes': ({}, [], [{**COPY_PASTE, 'paste_by_box': True}, PACK]),
    'caches': ({'with_mask': True}, [*CACHED, FLIP, FILTER, PACK], None),
    'polygons': ({'with_mask': True, 'poly2mask': False}, [RESIZE, FLIP, PACK], None),
    'bare arrays': ({'box_type': None}, [RESIZE, FLIP, PACK], None),
    'branches': (
        {'with_mask': True},
        [{'type': 'mmdet.MultiBranch', 'branch_field': ['a', 'b'], 'a': [FLIP, PACK], 'b': [PACK]}],
        None,
    ),
    'each box cast': ({}, [{'type': 'mmdet.PhotoMetricDistortion'}, {'type': 'mmdet.Expand'}, FILTER, PACK], None),
}


class LikeInstaBoost:
    """Reads and replaces the instances before they are loaded, as InstaBoost does."""

    def __call__(self, results: dict) -> dict:
        if not results['instances']:
            return results
        ignored = [i for i in results['instances'] if i['ignore_flag']]
        moved = np.random.randint(0, 5)
        results['instances'] = [
            {
                'bbox': [x + moved for x in i['bbox']],
                'bbox_label': i['bbox_label'],
                'mask': i['mask'],
                'ignore_flag': 0,
            }
            for i in results['instances']
            if not i['ignore_flag']
        ] + ignored
        return results


def pair_of(shapes, tmp_path, loader: dict, then: list, split: str = 'train', before: tuple = (), **more: Any) -> list:
    options = {
        'ann_file': f'annotations/{split}.json',
        'data_root': str(shapes),
        'data_prefix': {'img': f'{split}/'},
        'metainfo': {'classes': CLASSES},
        'serialize_data': False,
        **more,
    }
    pair = []
    for cls, load, own in (
        (CocoDataset, LoadAnnotations, {}),
        (SharedCocoDataset, LoadSharedAnnotations, {'cache_dir': str(tmp_path)}),
    ):
        rest = [TRANSFORMS.build(copy.deepcopy(step)) for step in then]
        pipeline = [LoadImageFromFile(), *before, load(**loader), *rest]
        with contextlib.redirect_stdout(io.StringIO()):
            pair.append(cls(**options, **own, pipeline=pipeline))
    return pair


def never(a: Exception, b: Exception) -> bool:
    return False


@pytest.mark.parametrize('before', [(), (LikeInstaBoost(),)], ids=['', 'InstaBoost'])
@pytest.mark.parametrize('name', MIXES)
def test_mixed(name, before, shapes, tmp_path):
    loader, then, outer = MIXES[name]
    pair = pair_of(shapes, tmp_path, loader, then, before=before)
    if outer is not None:
        pair = [MultiImageMixDataset(dataset, pipeline=outer) for dataset in pair]
    assert compare_items(*pair, never) is None
    found = str(items(pair[1]))
    assert 'bboxes' in found and found.count("'instances'") >= len(pair[1])


def test_deferred_all_the_way_through_a_mixing_wrapper(shapes, tmp_path):
    """Its many deep copies make no instance."""
    pair = pair_of(shapes, tmp_path, {}, [])
    mixed = [MultiImageMixDataset(dataset, pipeline=[*MOSAIC, FLIP]) for dataset in pair]
    assert is_deferred(mixed[1][0])
    assert compare_items(*mixed, never) is None


@pytest.mark.skipif(
    importlib.util.find_spec('instaboostfast') is None,
    reason='instaboostfast is not installed; a transform that does the same to the instances is tested above',
)
def test_the_real_instaboost(shapes, tmp_path):
    boost = TRANSFORMS.build({'type': 'mmdet.InstaBoost', 'aug_ratio': 1.0})
    assert compare_items(*pair_of(shapes, tmp_path, {'with_mask': True}, [PACK], before=(boost,)), never) is None


def test_other_wrappers(shapes, tmp_path):
    pair = pair_of(shapes, tmp_path, {'with_mask': True}, [FLIP, PACK])
    for wrap in (
        lambda d: ConcatDataset([d, d.get_subset(3)]),
        lambda d: RepeatDataset(d, times=2),
        lambda d: ClassBalancedDataset(d, oversample_thr=0.9),
    ):
        assert compare_items(*map(wrap, pair), never) is None


def test_a_metric_gets_the_instances(shapes, tmp_path):
    """Without an ``ann_file`` CocoMetric makes its ground truth of the ``instances`` that came through meta_keys."""
    found = []
    for dataset in pair_of(shapes, tmp_path, {}, [PACK], 'val', test_mode=True):
        metric = CocoMetric(metric='bbox', outfile_prefix=str(tmp_path / 'out'))
        metric.dataset_meta = dataset.metainfo
        for index in range(len(dataset)):
            sample = dataset[index]['data_samples']
            truth = sample.gt_instances
            scores = torch.linspace(0.9, 0.5, len(truth))
            sample.pred_instances = InstanceData(bboxes=truth.bboxes.tensor + 1, labels=truth.labels, scores=scores)
            metric.process({}, [sample.to_dict()])
        with contextlib.redirect_stdout(io.StringIO()):
            found.append(metric.compute_metrics(metric.results))
        found[-1]['gt'] = (tmp_path / 'out.gt.json').read_text().split('"images"')[1]
    assert difference(*found) is None
    assert found[0]['bbox_mAP'] > 0.5
