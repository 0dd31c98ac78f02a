"""Back to stock: our own configs run without mmshared, and nothing that only we take is left."""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
from mmdet.registry import DATASETS
from mmengine.config import Config
from mmengine.registry import FUNCTIONS

from mmshared.annotations.packing import pack_store
from mmshared.conversion import convert_back
from mmshared.conversion.counterparts import Counterparts, own_arguments
from mmshared.conversion.writing import as_text

from ..conftest import REPO
from .helpers import changes, left, loaded, loader

CONFIGS = REPO / 'configs'
READY = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob('*.py'))
STOCK_ONLY = """
import sys
sys.modules['mmshared'] = None  # importing it fails
from mmdet.registry import DATASETS, HOOKS, LOOPS, METRICS, MODELS
from mmengine.config import Config
from mmengine.registry import init_default_scope
for name in sys.argv[1:]:
    cfg = Config.fromfile(name)
    init_default_scope('mmdet')
    if 'model' in cfg:
        assert MODELS.get(cfg.model.type)
        assert all(HOOKS.get(hook.type) for hook in cfg.default_hooks.values())
        assert all(LOOPS.get(cfg[f'{split}_cfg'].type) for split in ('train', 'val', 'test'))
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        while 'dataset' in dataset:
            dataset = dataset['dataset']
        DATASETS.build(dict(dataset, lazy_init=True))
        assert 'collate_fn' not in cfg[f'{split}_dataloader']
    assert METRICS.get(cfg.val_evaluator.type)
"""


def test_our_own_configs_work_without_us(tmp_path):
    files = []
    for number, name in enumerate(READY):
        cfg = Config.fromfile(CONFIGS / name)
        report = convert_back(cfg)
        assert report.changed and not report.left, name
        text = as_text(cfg, tidy=False)
        ours = ['mmshared', 'packed_collate', *(shared.__name__ for shared in Counterparts().stock)]
        assert not [word for word in ours if f"'{word}'" in text], name
        files.append(tmp_path / f'{number}.py')
        files[-1].write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    done = subprocess.run(
        [sys.executable, '-c', STOCK_ONLY, *files], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize('name', ['faster_rcnn/faster-rcnn_r50_fpn_1x', 'yolox/yolox_s_8xb8-300e'])
def test_what_inherits_from_mmdet_s_is_that_again(name):
    cfg = Config.fromfile(CONFIGS / f'{name}_shared-coco.py')
    convert_back(cfg)
    theirs = Config.fromstring(f"_base_ = 'mmdet::{name}_coco.py'", '.py')
    # the hook is gone, and the lists that the config has are mmdet's
    assert _unscoped(cfg.to_dict()) == _unscoped(theirs.to_dict())


def _unscoped(node):
    if isinstance(node, dict):
        return {key: _unscoped(value) for key, value in node.items() if key != '_scope_'}
    return [_unscoped(value) for value in node] if isinstance(node, list) else node


def test_arguments_of_ours_go():
    cfg = loaded(
        train_dataloader=loader(type='SharedCocoDataset', ann_file='a.json', backend_args=None, cache_dir='/cache'),
        train_cfg=dict(
            type='LeanTrainLoop', max_epochs=1, release_workers=True, prefetch_to_device=False, scatter='auto'
        ),
        val_cfg=dict(type='LeanValLoop', fp16=True, release_workers=False),
    )
    report = convert_back(cfg)
    assert cfg.to_dict() == dict(
        default_scope='mmdet',
        train_dataloader=loader(type='CocoDataset', ann_file='a.json', backend_args=None),
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=1),
        val_cfg=dict(type='ValLoop', fp16=True),
    )
    assert changes(report)['train_cfg.release_workers'][0] == 'True'


def test_every_argument_that_only_ours_take_is_known():
    """Whatever the table has: what is dropped is taken by ours, and not by stock."""
    known = {stock.__name__: own_arguments(shared, stock) for shared, stock in Counterparts().stock.items()}
    assert known['CocoDataset'] == {'cache_dir'}
    assert known['LoadAnnotations'] == frozenset()
    for loop in ('EpochBasedTrainLoop', 'IterBasedTrainLoop', 'ValLoop', 'TestLoop'):
        assert known[loop] == {'release_workers', 'scatter', 'prefetch_to_device'}
    for own in known.values():
        assert not own & {'ann_file', 'data_root', 'backend_args', 'pipeline', 'metric', 'prefix', 'args', 'kwargs'}


@pytest.mark.parametrize(
    'given, then',
    [
        (dict(type='packed_collate'), None),
        (dict(type='packed_collate', base='pseudo_collate'), dict(type='pseudo_collate')),
        (dict(type='packed_collate', base='default_collate'), dict(type='default_collate')),
        (dict(type='packed_collate', base=dict(type='f', a=1)), dict(type='f', a=1)),
        (dict(type='default_collate'), dict(type='default_collate')),
    ],
    ids=['plain', 'pseudo', 'default', 'arguments', 'stock'],
)
def test_collate_functions(given, then):
    cfg = loaded(train_dataloader=dict(loader(type='CocoDataset'), collate_fn=given))
    convert_back(cfg)
    assert cfg.train_dataloader.to_dict().get('collate_fn') == then


def test_what_only_we_have_stays_and_so_does_the_import():
    cfg = loaded(
        custom_imports=dict(imports=['mmshared', 'os']),
        train_dataloader=dict(
            loader(type='CocoDataset'), collate_fn=dict(type='packed_collate', base='data_container_collate')
        ),
    )
    report = convert_back(cfg)
    assert FUNCTIONS.get(cfg.train_dataloader.collate_fn.type).__module__.startswith('mmshared')
    assert 'mmshared' in left(report)['train_dataloader.collate_fn'][1]
    assert cfg.custom_imports.imports == ['mmshared', 'os']


@pytest.mark.parametrize(
    'given, then',
    [
        (['mmshared'], None),
        (['os', 'mmshared'], ['os']),
        (['mmshared.datasets', 'os'], ['os']),
        (['os'], ['os']),
        ('mmshared', None),
    ],
    ids=str,
)
def test_imports(given, then):
    cfg = loaded(custom_imports=dict(imports=given, allow_failed_imports=False))
    convert_back(cfg)
    assert cfg.to_dict().get('custom_imports') == (then and dict(imports=then, allow_failed_imports=False))


def test_a_store_is_named(tmp_path):
    """Stock cannot read it, and only its user knows whether the JSON is still there."""
    (tmp_path / 'a.json').write_text('{"images": [], "annotations": [], "categories": []}')
    pack_store(tmp_path / 'a.json', tmp_path / 'a.mmstore')
    data = dict(type='SharedCocoDataset', data_root=str(tmp_path))
    cfg = loaded(
        train_dataloader=loader(ann_file='a.mmstore', **data), val_dataloader=loader(ann_file='a.json', **data)
    )
    report = convert_back(cfg)
    assert list(left(report)) == ['train_dataloader.dataset.ann_file']
    assert left(report)['train_dataloader.dataset.ann_file'][0] == str(tmp_path / 'a.mmstore')
    assert cfg.train_dataloader.dataset.ann_file == 'a.mmstore' and 'custom_imports' not in cfg


def test_the_hook_goes():
    checkpoint, memory = dict(type='CheckpointHook'), dict(type='NodeMemoryHook', interval=10)
    cfg = loaded(
        default_hooks=dict(checkpoint=checkpoint, node_memory=memory),
        custom_hooks=[dict(memory), dict(type='EMAHook'), dict(memory, type='mmengine.NodeMemoryHook')],
    )
    convert_back(cfg)
    assert cfg.default_hooks.to_dict() == dict(checkpoint=checkpoint)
    assert cfg.custom_hooks == [dict(type='EMAHook')]


def test_a_stock_config_stays_as_it_is():
    cfg = Config.fromstring("_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'", '.py')
    before = copy.deepcopy(cfg.to_dict())
    assert convert_back(cfg).lines() == ['nothing to change'] and cfg.to_dict() == before


def test_the_stock_types_are_those_of_the_registries():
    for shared, stock in Counterparts().stock.items():
        assert not stock.__module__.startswith('mmshared') and shared.__module__.startswith('mmshared')
    assert DATASETS.get('CocoDataset') in Counterparts().shared
