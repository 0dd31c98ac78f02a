"""Every shipped config: loads, builds its model, and reads its annotations through SharedCocoDataset."""
from __future__ import annotations

from pathlib import Path

import pytest
from mmdet.registry import DATASETS, LOOPS, METRICS, MODELS
from mmengine.config import Config
from mmengine.registry import FUNCTIONS, init_default_scope

from mmshared.evaluation import SharedCocoMetric
from mmshared.parallel import packed_collate
from mmshared.utils.data_root import set_data_root

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob('*.py'))
JOBS = [name for name in FILES if not name.startswith('_base_')]


def types_of_datasets(node):
    """The type of every dataset in a tree: of every dict with an annotation file."""
    if isinstance(node, dict):
        if 'ann_file' in node:
            yield node['type']
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from types_of_datasets(child)


def test_all_the_promised_configs_are_there():
    folders = {Path(name).parts[0] for name in FILES}
    assert {'_base_', 'demo', 'faster_rcnn', 'mask_rcnn', 'retinanet', 'rtmdet', 'yolox'} <= folders


@pytest.mark.parametrize('name', FILES)
def test_every_dataset_is_shared(name):
    cfg = Config.fromfile(CONFIGS / name)
    assert 'mmshared' in cfg.custom_imports.imports
    for split in ('train', 'val', 'test'):
        types = set(types_of_datasets(cfg[f'{split}_dataloader']))
        assert types == {'SharedCocoDataset'}, f'{split}_dataloader of {name}'
    # mmdet's variables that configs derived from this one would take their datasets from
    assert cfg.dataset_type == 'SharedCocoDataset'
    assert set(types_of_datasets(cfg.get('train_dataset', {}))) <= {'SharedCocoDataset'}


def unscoped(node):
    """A config without the marks of the package it was inherited from."""
    if isinstance(node, dict):
        return {key: unscoped(value) for key, value in node.items() if key != '_scope_'}
    return [unscoped(value) for value in node] if isinstance(node, list) else node


@pytest.mark.parametrize('kind', ['detection', 'instance'])
def test_the_base_data_are_those_of_mmdet(kind):
    """But for the types of dataset, loading transform and metric, and for how a batch is collated."""
    ours = Config.fromfile(CONFIGS / '_base_' / 'datasets' / f'shared_coco_{kind}.py')
    text = ours.pretty_text
    for name in ('CocoDataset', 'LoadAnnotations', 'CocoMetric'):
        text = text.replace({'LoadAnnotations': 'LoadSharedAnnotations'}.get(name, f'Shared{name}'), name)
    ours = Config.fromstring(text, '.py')
    assert ours.pop('custom_imports')['imports'] == ['mmshared']
    for split in ('train', 'val', 'test'):
        ours[f'{split}_dataloader'].pop('collate_fn')
    theirs = Config.fromstring(f"_base_ = 'mmdet::_base_/datasets/coco_{kind}.py'", '.py')
    assert unscoped(ours.to_dict()) == unscoped(theirs.to_dict())


@pytest.mark.parametrize('name', ['mask_rcnn/mask-rcnn_r50_fpn_1x_shared-coco.py', 'demo/rtmdet_demo.py'])
def test_annotations_are_loaded_from_the_store(name):
    cfg = Config.fromfile(CONFIGS / name)
    for split in ('train', 'val', 'test'):
        types = [step['type'] for step in cfg[f'{split}_dataloader'].dataset.pipeline]
        assert 'LoadSharedAnnotations' in types and 'LoadAnnotations' not in types


@pytest.mark.parametrize('name', FILES)
def test_batches_are_packed(name):
    cfg = Config.fromfile(CONFIGS / name)
    for split in ('train', 'val', 'test'):
        collate = cfg[f'{split}_dataloader'].collate_fn
        assert FUNCTIONS.get(collate.type) is packed_collate


@pytest.mark.parametrize('name', FILES)
def test_evaluators_share_the_ground_truth(name):
    cfg = Config.fromfile(CONFIGS / name)
    for split in ('val', 'test'):
        metric = METRICS.get(cfg[f'{split}_evaluator'].type)
        assert metric is SharedCocoMetric


@pytest.mark.parametrize('name', JOBS)
def test_every_job_has_the_lean_loops_and_the_hook(name):
    cfg = Config.fromfile(CONFIGS / name)
    init_default_scope(cfg.default_scope)
    assert cfg.train_cfg.type == 'LeanTrainLoop' and cfg.train_cfg.max_epochs > 0
    for loop, kind in (('train_cfg', 'EpochBasedTrainLoop'), ('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        assert issubclass(LOOPS.get(cfg[loop].type), LOOPS.get(kind))
    # Not among custom_hooks: a list would take the place of the one that is inherited.
    assert cfg.default_hooks.node_memory.type == 'NodeMemoryHook' and cfg.default_hooks.logger.type == 'LoggerHook'


@pytest.mark.parametrize('name', JOBS)
def test_the_model_builds(name):
    cfg = Config.fromfile(CONFIGS / name)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    assert sum(parameter.numel() for parameter in model.parameters()) > 100_000


def test_the_demo_matches_its_data(shapes):
    import json
    cfg = Config.fromfile(CONFIGS / 'demo' / 'rtmdet_demo.py')
    document = json.loads((shapes / 'annotations' / 'train.json').read_text())
    assert [category['name'] for category in document['categories']] == list(cfg.metainfo.classes)
    assert cfg.model.bbox_head.num_classes == len(cfg.metainfo.classes)
    dataset = cfg.train_dataloader.dataset
    init_default_scope(cfg.default_scope)
    dataset.update(type='CocoDataset', data_root=str(shapes))
    assert len(DATASETS.build(dataset)) == 8


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_archives_are_all_that_is_different(split):
    """The config for COCO's zip files reads images and everything else by the archive's backend, and is the other one."""
    plain, zipped = (
        Config.fromfile(CONFIGS / 'retinanet' / f'retinanet_r50_fpn_1x_shared-coco{kind}.py') for kind in ('', '-zip')
    )
    archive = dict(backend='record', archive=f"data/coco/{'train' if split == 'train' else 'val'}2017.zip")
    dataset = zipped[f'{split}_dataloader'].dataset
    assert dataset.backend_args == dataset.pipeline[0].backend_args == archive
    dataset.backend_args = dataset.pipeline[0].backend_args = None
    assert unscoped(zipped[f'{split}_dataloader'].to_dict())['dataset'] == {
        **unscoped(plain[f'{split}_dataloader'].to_dict())['dataset'],
        'pipeline': unscoped(dataset.to_dict())['pipeline'],
    }
    for key in ('model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'val_cfg', 'default_hooks', 'val_evaluator'):
        assert unscoped(zipped[key]) == unscoped(plain[key]), key
    moved = Config.fromfile(CONFIGS / 'retinanet' / 'retinanet_r50_fpn_1x_shared-coco-zip.py')
    set_data_root(moved, '/elsewhere/coco')
    dataset = moved[f'{split}_dataloader'].dataset
    expected = archive['archive'].replace('data/coco', '/elsewhere/coco')
    assert dataset.backend_args.archive == dataset.pipeline[0].backend_args.archive == expected
