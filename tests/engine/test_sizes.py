"""While a job is resumed, mmdet's aspect ratio sampler asks for each image's size once, and gives the same batches."""

from __future__ import annotations

from itertools import islice

import pytest
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import InfiniteSampler
from torch.utils.data import BatchSampler

from mmshared.engine.workers.sizes import remembered_sizes


class Images:
    """Images of several shapes; counts how often each was asked for."""

    metainfo = {'classes': ('one',)}

    def __init__(self):
        self.asked = [0] * 7

    def __len__(self):
        return len(self.asked)

    def get_data_info(self, index):
        self.asked[index] += 1
        return {'width': 2 + index % 3, 'height': 3, 'instances': []}


class Subclass(AspectRatioBatchSampler):
    """May read anything."""


def test_the_same_batches_before_and_after():
    expected = list(islice(AspectRatioBatchSampler(InfiniteSampler(Images(), seed=1), 3), 60))
    images = Images()
    sampler = AspectRatioBatchSampler(InfiniteSampler(images, seed=1), 3)
    batches = iter(sampler)
    with remembered_sizes(sampler):
        assert list(islice(batches, 50)) == expected[:50]
        assert images.asked == [1] * 7
        assert len(sampler.sampler.dataset) == 7 and sampler.sampler.dataset.metainfo is Images.metainfo
    assert sampler.sampler.dataset is images
    assert list(islice(batches, 10)) == expected[50:]
    assert sum(images.asked) > 7


@pytest.mark.parametrize('kind', [BatchSampler, Subclass])
def test_other_samplers_are_left_alone(kind):
    images = Images()
    sampler = kind(InfiniteSampler(images, seed=1), 3, False)
    with remembered_sizes(sampler):
        assert sampler.sampler.dataset is images
    with remembered_sizes(None):
        pass


def test_the_dataset_is_back_after_an_error():
    images = Images()
    sampler = AspectRatioBatchSampler(InfiniteSampler(images, seed=1), 3)
    with pytest.raises(ValueError, match='wrong'), remembered_sizes(sampler):
        raise ValueError('wrong')
    assert sampler.sampler.dataset is images
