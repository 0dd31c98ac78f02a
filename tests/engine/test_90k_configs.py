"""mmdet's two configs that train by iterations with ``AspectRatioBatchSampler``: resumed, they go on as they would."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mmcv import imwrite
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.runner import Runner

from mmshared.engine.checkpoints import allow_mmengine_checkpoints

from .lean_jobs import LEAN, STOCK, Count, follow
from .test_resume import EACH_STEP, at

allow_mmengine_checkpoints()

CONFIGS = ('ms-90k_coco.py', 'ms-poly-90k_coco-instance.py')
STEPS = 13


@MODELS.register_module(name='NotingImages', force=True)
class NotingImages(BaseModel):
    """A linear layer; notes which images each batch has, and whether they were all wide or all high."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.images, self.validated = [], []

    def forward(self, inputs, data_samples, mode):
        ids = [sample.img_id for sample in data_samples]
        if mode != 'loss':
            self.validated.append(ids)
            return [dict(index=one) for one in ids]
        assert len({image.shape[1] > image.shape[2] for image in inputs}) == 1
        self.images.append(ids)
        return dict(loss=(self.linear(torch.tensor(ids, dtype=torch.float32)[:, None]) / 100).pow(2).mean())


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    """Ten images, wide or high, with a polygon each."""
    folder = tmp_path_factory.mktemp('photos')
    sizes = [(48, 36), (36, 48), (36, 48)] * 3 + [(48, 36)]
    for number, (width, height) in enumerate(sizes):
        imwrite(np.full((height, width, 3), number * 20, np.uint8), str(folder / f'{number}.jpg'))
    content = dict(
        images=[dict(id=i, file_name=f'{i}.jpg', width=w, height=h) for i, (w, h) in enumerate(sizes)],
        annotations=[
            dict(id=i, image_id=i, category_id=1, bbox=[4, 4, 20, 20], area=400, iscrowd=0)
            | dict(segmentation=[[4, 4, 24, 4, 24, 24, 4, 24]])
            for i in range(len(sizes))
        ],
        categories=[dict(id=1, name='person')],
    )
    (folder / 'all.json').write_text(json.dumps(content))
    return folder


def run(name, photos, folder, lean=True, resume=None, **options):
    """The config with other data, a short schedule, and the loops that are wanted."""
    (folder.parent / f'{folder.name}.py').write_text(f"_base_ = 'mmdet::common/{name}'\n")
    config = Config.fromfile(folder.parent / f'{folder.name}.py')
    files = dict(data_root='', ann_file=str(photos / 'all.json'), data_prefix=dict(img=str(photos)))
    for split in ('train', 'val'):
        dataset = config[f'{split}_dataloader'].dataset
        dataset.update(files, type='SharedCocoDataset' if lean else 'CocoDataset', metainfo=dict(classes=('person',)))
        if lean:
            dataset.cache_dir = str(photos / 'cache')
    config.train_cfg.update(type=(LEAN if lean else STOCK)[False], max_iters=STEPS, val_interval=5)
    config.val_cfg.type = 'LeanValLoop' if lean else 'ValLoop'
    hooks = dict(checkpoint=EACH_STEP, logger=None)
    further = {} if resume is None else dict(load_from=str(resume), resume=True)
    runner = Runner(
        model=dict(type='NotingImages'),
        work_dir=str(folder),
        **{key: config[key] for key in ('train_dataloader', 'val_dataloader', 'train_cfg', 'val_cfg', 'optim_wrapper')},
        param_scheduler=config.param_scheduler,
        val_evaluator=[Count()],
        default_hooks=hooks,
        default_scope='mmdet',
        log_level='WARNING',
        experiment_name=folder.name,
        **further,
        **options,
    )
    model = runner.model
    model.evaluators, model.steps = set(), []
    job = follow(runner, runner.train)
    assert len(model.validated[0]) == 1 and sorted(sum(model.validated[:10], [])) == list(range(10))
    return job, model


@pytest.mark.parametrize('name', CONFIGS)
def test_as_stock(name, photos, tmp_path):
    """With a seed, so that two jobs are alike."""
    (_, stock), (_, lean) = (
        run(name, photos, tmp_path / str(lean), lean, randomness=dict(seed=3)) for lean in (False, True)
    )
    assert lean.images == stock.images and lean.validated == stock.validated
    assert [one.tolist() for one in lean.parameters()] == [one.tolist() for one in stock.parameters()]


@pytest.mark.parametrize('name', CONFIGS)
def test_resumed(name, photos, tmp_path):
    """The config has no seed: the sampler of a resumed job has one of its own until the checkpoint is read."""
    _, whole = run(name, photos, tmp_path / 'whole')
    assert len(whole.images) == STEPS
    for step in (4, 10):
        job, model = run(name, photos, tmp_path / f'from{step}', resume=at(tmp_path / 'whole', step))
        assert model.images == whole.images[step:]
        assert not job.left and job.most == 2
