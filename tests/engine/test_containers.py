"""Pipelines of mmcv 1.x, which end with DataContainers, train under MMEngine with the lean loops."""

from __future__ import annotations

import pytest
import torch
from mmengine.registry import TRANSFORMS

from mmshared.parallel import DataContainer

from .lean_jobs import Draw, Mark, assert_one_pool, loader, train


@TRANSFORMS.register_module(name='LeanContain', force=True)
class Contain:
    """Puts everything into containers of one kind or another."""

    def __call__(self, results: dict) -> dict:
        contained = {key: DataContainer(value, cpu_only=True) for key, value in results.items()}
        return dict(contained, image=DataContainer(torch.full((3, 4, results['index'] + 1), 1.0), stack=True))


COLLATES = [
    dict(type='data_container_collate'),
    dict(type='packed_collate', base='data_container_collate'),
]


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('collate', COLLATES, ids=['as it is', 'packed'])
def test_training_is_equal_to_that_without_containers(tmp_path, workers, collate):
    def make(shuffle, size, contained):
        pipeline = [Mark(), Draw(), *([Contain()] if contained else [])]
        further = dict(collate_fn=collate) if contained else {}
        return loader(shuffle, workers, size, pipeline=pipeline, **further)

    def loaders(contained):
        return dict(train=make(True, 12, contained), val=make(False, 6, contained))

    stock = train(tmp_path / 'stock', None, **loaders(False))
    ours = train(tmp_path / 'ours', True, **loaders(True))
    assert ours.training == stock.training
    if workers:
        assert_one_pool(ours)


def test_containers_can_be_left_to_the_model(tmp_path):
    pipeline = [Mark(), Draw(), Contain()]
    make = loader(True, pipeline=pipeline, collate_fn=COLLATES[0])
    with pytest.raises(TypeError):  # whose preprocessor does not know them
        train(tmp_path, True, train=make, train_cfg=dict(scatter=False))
