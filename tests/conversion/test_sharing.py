"""Which types are swapped, where, and how they are written then."""

from __future__ import annotations

import copy

import pytest
from mmdet.datasets import CocoDataset, LVISV1Dataset, VOCDataset
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.registry import DATASETS, TRANSFORMS
from mmengine.config import Config
from mmengine.config.lazy import LazyObject
from mmengine.dataset import BaseDataset, default_collate
from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import FUNCTIONS, LOOPS, Registry
from mmengine.runner import EpochBasedTrainLoop

from mmshared.conversion import convert, convert_back
from mmshared.conversion.counterparts import Counterparts
from mmshared.datasets import LoadSharedAnnotations, SharedCocoDataset
from mmshared.engine.loops import LeanTrainLoop

from .helpers import changes, left, loaded, loader, swapped

PIPELINE = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True), dict(type='PackDetInputs')]


# ---- depth
@pytest.mark.parametrize(
    'wrapped, key',
    [
        (lambda inner: inner, ''),
        (lambda inner: dict(type='RepeatDataset', times=2, dataset=inner), '.dataset'),
        (lambda inner: dict(type='ClassBalancedDataset', oversample_thr=1e-3, dataset=inner), '.dataset'),
        (lambda inner: dict(type='ConcatDataset', datasets=[inner]), '.datasets.0'),
        (lambda inner: dict(type='ConcatDataset', datasets=(inner, dict(inner))), '.datasets.1'),
        (lambda inner: dict(type='MultiImageMixDataset', dataset=inner, pipeline=PIPELINE[2:]), '.dataset'),
        (
            lambda inner: dict(
                type='RepeatDataset', times=2, dataset=dict(type='ConcatDataset', datasets=[dict(inner), inner])
            ),
            '.dataset.datasets.1',
        ),
        (lambda inner: dict(type='SomebodysWrapper', sources=dict(a=[inner])), '.sources.a.0'),
    ],
    ids=['none', 'repeat', 'balanced', 'concat', 'tuple', 'mix', 'nested', 'unknown'],
)
def test_at_any_depth(wrapped, key):
    inner = dict(type='CocoDataset', ann_file='a.json', pipeline=copy.deepcopy(PIPELINE))
    cfg = loaded(train_dataloader=loader(**wrapped(inner)))
    report = swapped(cfg)
    found = changes(report)
    assert found[f'train_dataloader.dataset{key}.type'] == ('CocoDataset', 'SharedCocoDataset')
    assert found[f'train_dataloader.dataset{key}.pipeline.1.type'] == ('LoadAnnotations', 'LoadSharedAnnotations')
    # whatever it is in, nothing is lost
    text = str(loaded(train_dataloader=loader(**wrapped(inner))).to_dict()['train_dataloader']['dataset'])
    text = text.replace("'CocoDataset'", "'SharedCocoDataset'").replace("'LoadAnn", "'LoadSharedAnn")
    assert str(cfg.to_dict()['train_dataloader']['dataset']) == text


def test_semi_supervised():
    branches = dict(type='MultiBranch', branch_field=['sup'], sup=dict(type='PackDetInputs'))
    pipeline = [*copy.deepcopy(PIPELINE[:2]), branches]
    labeled = dict(type='CocoDataset', ann_file='a.json', pipeline=pipeline)
    unlabeled = dict(
        type='CocoDataset', ann_file='b.json', pipeline=[dict(type='LoadEmptyAnnotations', with_bbox=True), branches]
    )
    cfg = loaded(
        model=dict(type='SoftTeacher', data_preprocessor=dict(type='MultiBranchDataPreprocessor')),
        labeled_dataset=labeled,
        train_dataloader=loader(type='ConcatDataset', datasets=[labeled, unlabeled]),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=5),
        val_cfg=dict(type='TeacherStudentValLoop'),
    )
    report = swapped(cfg)
    assert [part.type for part in cfg.train_dataloader.dataset.datasets] == ['SharedCocoDataset'] * 2
    assert cfg.labeled_dataset == cfg.train_dataloader.dataset.datasets[0]
    assert cfg.train_cfg.type == 'LeanIterTrainLoop'
    assert left(report)['val_cfg'] == ('TeacherStudentValLoop', 'this loop has no lean counterpart')


def test_test_time_augmentation_and_hooks():
    augment = dict(type='TestTimeAug', transforms=[[dict(type='RandomFlip')], [PIPELINE[1]], [PIPELINE[2]]])
    model = dict(type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms')))
    hook = dict(type='PipelineSwitchHook', switch_epoch=1, switch_pipeline=PIPELINE)
    cfg = loaded(tta_model=model, tta_pipeline=[PIPELINE[0], augment], custom_hooks=[hook])
    assert set(changes(swapped(cfg))) == {
        'tta_pipeline.1.transforms.1.0.type',
        'custom_hooks.0.switch_pipeline.1.type',
        'custom_imports.imports',
    }


# ---- role
def test_types_mean_that_only_where_they_are_built():
    """Strings that look like types are data, and a model has registries of its own."""
    named = dict(type='CocoDataset', ann_file='LoadAnnotations')
    cfg = loaded(
        model=dict(type='RPN', backbone=dict(type='CocoDataset'), train_cfg=dict(type='EpochBasedTrainLoop')),
        optim_wrapper=dict(type='CocoMetric', transforms=dict(type='LoadAnnotations')),
        note=['CocoDataset', dict(kind='CocoDataset')],
        train_dataloader=loader(
            type='CocoDataset', ann_file='CocoDataset', metainfo=dict(classes=('CocoDataset',), other=dict(named))
        ),
    )
    before = copy.deepcopy(cfg.to_dict())
    assert set(changes(swapped(cfg))) == {
        'train_dataloader.dataset.type',
        'train_dataloader.collate_fn',
        'custom_imports.imports',
    }
    for key in ('model', 'optim_wrapper', 'note'):
        assert cfg.to_dict()[key] == before[key]
    assert cfg.train_dataloader.dataset.metainfo.other.type == 'CocoDataset'


def test_nothing_to_convert():
    cfg = loaded(model=dict(type='RPN'), train_dataloader=None, val_cfg=None, custom_imports=dict(imports=['os']))
    before = copy.deepcopy(cfg.to_dict())
    report = swapped(cfg)
    assert cfg.to_dict() == before and report.lines() == ['nothing to change']


# ---- spelling
@pytest.mark.parametrize(
    'scope, written, then',
    [
        ('mmdet', 'CocoDataset', 'SharedCocoDataset'),
        ('mmdet', 'mmdet.CocoDataset', 'mmdet.SharedCocoDataset'),
        ('mmengine', 'mmdet.CocoDataset', 'mmdet.SharedCocoDataset'),
        ('mmengine', 'mmdet.datasets.coco.CocoDataset', 'mmshared.datasets.coco.SharedCocoDataset'),
        ('mmdet', 'mmdet.datasets.coco.CocoDataset', 'mmshared.datasets.coco.SharedCocoDataset'),
    ],
)
def test_names(scope, written, then):
    cfg = Config(dict(default_scope=scope, train_dataloader=loader(type=written, ann_file='a.json')))
    swapped(cfg)
    assert cfg.train_dataloader.dataset.type == then
    assert DATASETS.get(then) is SharedCocoDataset


def test_a_name_that_means_nothing_there_is_left():
    cfg = Config(dict(default_scope='mmengine', train_dataloader=loader(type='CocoDataset', ann_file='a.json')))
    report = swapped(cfg)
    assert cfg.train_dataloader.dataset.type == 'CocoDataset'
    assert 'no such dataset is registered' in left(report)['train_dataloader.dataset'][1]


def test_a_part_of_a_config_without_a_scope():
    cfg = Config(dict(train_dataloader=loader(type='CocoDataset', ann_file='a.json')))
    swapped(cfg)
    assert cfg.train_dataloader.dataset.type == 'SharedCocoDataset'


@pytest.mark.parametrize('make', [lambda cls, module: cls, lambda cls, module: LazyObject(module, cls.__name__)])
def test_class_valued_types(make):
    """As in configs that import what they use."""
    dataset = make(CocoDataset, 'mmdet.datasets')
    cfg = Config(
        dict(
            default_scope=None,
            train_dataloader=loader(
                type=dataset,
                ann_file='a.json',
                pipeline=[dict(type=make(LoadAnnotations, 'mmdet.datasets.transforms'))],
            ),
            train_cfg=dict(type=make(EpochBasedTrainLoop, 'mmengine.runner'), max_epochs=1),
        )
    )
    convert(cfg)
    assert DATASETS.get(cfg.train_dataloader.dataset.type) is SharedCocoDataset
    assert TRANSFORMS.get(cfg.train_dataloader.dataset.pipeline[0].type) is LoadSharedAnnotations
    assert LOOPS.get(cfg.train_cfg.type) is LeanTrainLoop
    assert not convert(cfg).changed
    convert_back(cfg)
    assert DATASETS.get(cfg.train_dataloader.dataset.type) is CocoDataset
    assert TRANSFORMS.get(cfg.train_dataloader.dataset.pipeline[0].type) is LoadAnnotations
    assert LOOPS.get(cfg.train_cfg.type) is EpochBasedTrainLoop
    assert 'custom_imports' not in cfg


def test_a_scope_inside():
    """As configs have it that inherit from those of another package."""
    cfg = Config(
        dict(default_scope='mmengine', train_dataloader=loader(type='CocoDataset', _scope_='mmdet', ann_file='a.json'))
    )
    swapped(cfg)
    assert cfg.train_dataloader.dataset.to_dict() == dict(type='SharedCocoDataset', _scope_='mmdet', ann_file='a.json')


def test_another_package_has_a_dataset_of_that_name():
    """A type is what its scope makes of it, not what it is called."""
    registry = Registry('dataset', parent=ROOT_DATASETS, scope='somewhere', locations=[])
    try:

        @registry.register_module()
        class CocoDataset(BaseDataset):
            pass

        cfg = Config(dict(default_scope='mmdet', train_dataloader=loader(type='somewhere.CocoDataset')))
        convert(cfg)
        assert cfg.train_dataloader.dataset.dataset.type == 'somewhere.CocoDataset'
    finally:
        ROOT_DATASETS.children.pop('somewhere')


# ---- other datasets
@pytest.mark.parametrize('scope, name', [('mmdet', 'VOCDataset'), ('mmengine', 'mmdet.VOCDataset')])
def test_any_other_dataset_is_put_inside_a_shared_one(scope, name):
    inner = dict(type=name, ann_file='a.txt', pipeline=copy.deepcopy(PIPELINE[:1]))
    cfg = Config(dict(default_scope=scope, train_dataloader=loader(type='mmdet.RepeatDataset', times=2, dataset=inner)))
    swapped(cfg)
    wrapper = cfg.train_dataloader.dataset.dataset
    assert wrapper.to_dict() == dict(type=wrapper.type, dataset=inner)
    assert DATASETS.switch_scope_and_registry and wrapper.type.endswith('SharedDataset')


def test_what_a_shared_dataset_holds_stays():
    inner = dict(type='CocoDataset', ann_file='a.json', pipeline=copy.deepcopy(PIPELINE))
    cfg = loaded(train_dataloader=loader(type='SharedDataset', dataset=inner, persist=True, version='1'))
    convert(cfg)
    assert cfg.train_dataloader.dataset.dataset.type == 'CocoDataset'
    assert cfg.train_dataloader.dataset.dataset.pipeline[1].type == 'LoadSharedAnnotations'
    convert_back(cfg)
    assert cfg.train_dataloader.dataset.to_dict() == inner


def test_subclasses_of_ours_are_left_in_peace():
    try:

        @DATASETS.register_module()
        class SharedCats(SharedCocoDataset):
            METAINFO = dict(classes=('cat',))

        cfg = loaded(train_dataloader=loader(type='SharedCats', ann_file='a.json'))
        report = convert(cfg)
        assert set(changes(report)) == {'train_dataloader.collate_fn', 'custom_imports.imports'} and not report.left
        report = convert_back(cfg)
        assert left(report)['train_dataloader.dataset'][0] == 'SharedCats'
        assert cfg.custom_imports.imports == ['mmshared']  # which that needs
    finally:
        DATASETS.module_dict.pop('SharedCats', None)


@pytest.mark.parametrize('name', [LVISV1Dataset.__name__, VOCDataset.__name__])
def test_the_variable_of_mmdet_s_configs(name):
    cfg = loaded(dataset_type=name)
    shared = Counterparts().shared.get(DATASETS.get(name))
    swapped(cfg)
    assert cfg.dataset_type == (shared.__name__ if shared else name)
    cfg = loaded(dataset_type='CocoDataset')
    swapped(cfg)
    assert cfg.dataset_type == 'SharedCocoDataset'


# ---- metrics
def test_metrics():
    cfg = loaded(
        val_evaluator=[dict(type='CocoMetric', ann_file='a.json'), dict(type='VOCMetric')],
        test_evaluator=dict(type='MultiDatasetsEvaluator', metrics=[dict(type='CocoMetric')], dataset_prefixes=['a']),
    )
    report = swapped(cfg)
    assert 'no shared counterpart' in left(report)['val_evaluator.1'][1]
    assert cfg.val_evaluator[0].type == cfg.test_evaluator.metrics[0].type == 'SharedCocoMetric'


# ---- loops
@pytest.mark.parametrize(
    'key, loop, then',
    [
        ('train_cfg', dict(type='EpochBasedTrainLoop', max_epochs=2), dict(type='LeanTrainLoop', max_epochs=2)),
        ('train_cfg', dict(type='IterBasedTrainLoop', max_iters=2), dict(type='LeanIterTrainLoop', max_iters=2)),
        ('train_cfg', dict(by_epoch=True, max_epochs=2), dict(type='LeanTrainLoop', max_epochs=2)),
        ('train_cfg', dict(by_epoch=False, max_iters=2), dict(type='LeanIterTrainLoop', max_iters=2)),
        (
            'train_cfg',
            dict(type='mmengine.EpochBasedTrainLoop', max_epochs=2),
            dict(type='mmengine.LeanTrainLoop', max_epochs=2),
        ),
        ('val_cfg', dict(type='ValLoop', fp16=True), dict(type='LeanValLoop', fp16=True)),
        ('val_cfg', dict(fp16=True), dict(type='LeanValLoop', fp16=True)),
        ('val_cfg', {}, dict(type='LeanValLoop')),
        ('test_cfg', {}, dict(type='LeanTestLoop')),
    ],
    ids=str,
)
def test_loops(key, loop, then):
    cfg = loaded(**{key: loop})
    report = convert(cfg)
    assert cfg[key].to_dict() == then and len(report.changed) == 2 and not report.left
    assert not convert(cfg).changed
    convert_back(cfg)
    # what MMEngine takes by default is spelt out
    stock = {'LeanTrainLoop': 'EpochBasedTrainLoop', 'LeanIterTrainLoop': 'IterBasedTrainLoop'}
    name = then['type'].rpartition('.')[2]
    expected = {**loop, 'type': loop.get('type', stock.get(name, name.replace('Lean', '')))}
    expected.pop('by_epoch', None)
    assert cfg.to_dict() == dict(default_scope='mmdet', **{key: expected})


@pytest.mark.parametrize(
    'key, loop, reason',
    [
        ('train_cfg', dict(type='EpochBasedTrainLoop', by_epoch=True, max_epochs=1), 'refuses'),
        ('train_cfg', dict(max_epochs=1), 'neither type nor by_epoch'),
        ('train_cfg', dict(type='NobodysLoop'), 'no such loop is registered'),
        ('val_cfg', dict(type='TeacherStudentValLoop'), 'no lean counterpart'),
    ],
    ids=['both', 'neither', 'unknown', 'custom'],
)
def test_loops_that_stay(key, loop, reason):
    report = swapped(loaded(**{key: loop}))
    assert reason in left(report)[key][1] and not report.changed


# ---- batches
def test_the_default_collate_function():
    cfg = loaded(val_dataloader=loader(type='CocoDataset'), test_dataloader=dict(batch_size=1))
    swapped(cfg)
    assert cfg.val_dataloader.collate_fn.to_dict() == dict(type='packed_collate')
    assert cfg.test_dataloader.to_dict() == dict(batch_size=1)  # a part that others add a dataset to


@pytest.mark.parametrize(
    'given, base',
    [
        (dict(type='pseudo_collate'), 'pseudo_collate'),
        (dict(type='default_collate'), 'default_collate'),
        (dict(type=default_collate), default_collate),
    ],
    ids=['pseudo', 'default', 'function'],
)
def test_other_collate_functions_of_mmengine_become_the_base(given, base):
    cfg = loaded(train_dataloader=dict(loader(type='CocoDataset'), collate_fn=given))
    swapped(cfg)
    assert FUNCTIONS.get(cfg.train_dataloader.collate_fn.type) is FUNCTIONS.get('packed_collate')
    assert cfg.train_dataloader.collate_fn.base == base


def test_collate_functions_of_others_stay():
    try:

        @FUNCTIONS.register_module()
        def my_collate(batch, flag):
            return batch

        given = dict(type='my_collate', flag=True)
        cfg = loaded(train_dataloader=dict(loader(type='CocoDataset'), collate_fn=given))
        report = swapped(cfg)
        assert cfg.train_dataloader.collate_fn.to_dict() == given
        assert 'base=' in left(report)['train_dataloader.collate_fn'][1]
    finally:
        FUNCTIONS.module_dict.pop('my_collate', None)


def test_a_collate_function_that_mmengine_refuses_stays():
    cfg = loaded(train_dataloader=dict(loader(type='CocoDataset'), collate_fn='default_collate'))
    swapped(cfg)
    assert cfg.train_dataloader.collate_fn == 'default_collate'


# ---- imports
@pytest.mark.parametrize(
    'given, then',
    [
        (None, dict(imports=['mmshared'])),
        (dict(imports=['os'], allow_failed_imports=True), dict(imports=['os', 'mmshared'], allow_failed_imports=True)),
        (dict(imports=['mmshared.datasets']), dict(imports=['mmshared.datasets'])),
        (dict(imports='os'), dict(imports=['os', 'mmshared'])),
        (dict(imports=[], allow_failed_imports=False), dict(imports=['mmshared'], allow_failed_imports=False)),
    ],
    ids=['none', 'others', 'there', 'string', 'empty'],
)
def test_imports(given, then):
    keys = {} if given is None else dict(custom_imports=given)
    cfg = loaded(val_cfg=dict(type='ValLoop'), **keys)
    convert(cfg)
    assert cfg.custom_imports.to_dict() == then
    assert not convert(cfg).changed


def test_what_is_not_registered_is_said():
    """Of each kind: a slip of the pen would otherwise look like a type that has no counterpart."""
    cfg = Config(
        dict(
            default_scope='mmdet',
            train_cfg=dict(type='EpochBasedTrainLop'),
            val_evaluator=dict(type='CocoMetrc'),
            test_evaluator=[dict(type='MyMetric')],
            train_dataloader=dict(
                collate_fn=dict(type='pseudo_colate'),
                dataset=dict(type='CocoDatset', pipeline=[dict(type='LoadAnotations')]),
            ),
        )
    )
    left = {change.old: change.reason for change in convert(cfg).left}
    kinds = {
        'EpochBasedTrainLop': 'loop',
        'CocoMetrc': 'metric',
        'MyMetric': 'metric',
        'pseudo_colate': 'function',
        'CocoDatset': 'dataset',
        'LoadAnotations': 'transform',
    }
    assert left == {
        name: f'no such {kind} is registered; custom_imports may lack its module' for name, kind in kinds.items()
    }
