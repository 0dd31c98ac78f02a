"""Inside mmengine's and mmdet's wrappers, samplers and the runner's data loader, with the same seed as stock."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from mmdet.datasets import AspectRatioBatchSampler, ClassAwareSampler, MultiImageMixDataset
from mmdet.datasets import ConcatDataset as DetConcatDataset
from mmdet.registry import TRANSFORMS
from mmengine.dataset import ClassBalancedDataset, ConcatDataset, DefaultSampler, RepeatDataset
from mmengine.runner import Runner

from .helpers import content, shared, stock, write
from .oracle import difference


@TRANSFORMS.register_module()
class MixOnce:
    """Put another sample's boxes into this one, as Mosaic and MixUp choose theirs."""

    def get_indexes(self, dataset):
        return [np.random.randint(0, len(dataset)) for _ in range(2)]

    def __call__(self, results):
        for other in results['mix_results']:
            results['instances'] += other['instances']
            other['instances'].clear()
        return results


@pytest.fixture(params=[True, False], ids=['serialized', 'list'])
def pair(request, tmp_path):
    file = write(tmp_path / 'annotations.json', content(images=30, annotations=90))
    more = {'serialize_data': request.param, 'filter_cfg': {'filter_empty_gt': True}}
    return stock(file, **more), shared(file, **more)


def collate(batch):
    return batch


def same_items(wrapped) -> None:
    a, b = wrapped
    assert len(a) == len(b) > 0
    for read in (lambda d, i: d[i], lambda d, i: d.get_data_info(i)):
        np.random.seed(0)
        x = [read(a, i) for i in range(len(a))]
        np.random.seed(0)
        assert difference(x, [read(b, i) for i in range(len(b))]) is None


@pytest.mark.parametrize('concat', [ConcatDataset, DetConcatDataset])
def test_concat(concat, pair):
    wrapped = [concat([d, d.get_subset(7)]) for d in pair]
    assert len(wrapped[1]) == len(pair[0]) + 7
    same_items(wrapped)
    assert difference(wrapped[0][-1], wrapped[1][-1]) is None


def test_repeat(pair):
    same_items([RepeatDataset(d, times=3) for d in pair])


def test_class_balanced(pair):
    wrapped = [ClassBalancedDataset(d, oversample_thr=0.9) for d in pair]
    assert wrapped[0].repeat_indices == wrapped[1].repeat_indices
    assert len(wrapped[0]) > len(pair[0])
    same_items(wrapped)


def test_mixed_images(pair):
    wrapped = [MultiImageMixDataset(d, pipeline=[{'type': 'MixOnce'}]) for d in pair]
    same_items(wrapped)
    assert difference(*([d.get_data_info(i) for i in range(len(d))] for d in pair)) is None, 'mixing changed the source'


def test_aspect_ratio_batches(pair):
    a, b = (list(AspectRatioBatchSampler(DefaultSampler(d, seed=3), batch_size=4)) for d in pair)
    assert a == b and len(a) > 3


def test_class_aware_sampler(pair):
    a, b = (ClassAwareSampler(d, seed=3) for d in pair)
    assert a.cat_dict == b.cat_dict
    assert list(a) == list(b)


@pytest.mark.parametrize('workers', [0, 2])
def test_runner_loader_with_batches_per_epoch(workers, pair):
    config = {
        'batch_size': 3,
        'num_workers': workers,
        'sampler': {'type': 'DefaultSampler', 'shuffle': True},
        'num_batch_per_epoch': 4,
        'collate_fn': collate,
    }
    a, b = (list(Runner.build_dataloader(copy.copy({**config, 'dataset': d}), seed=5)) for d in pair)
    assert len(a) == 4
    assert difference(a, b) is None
