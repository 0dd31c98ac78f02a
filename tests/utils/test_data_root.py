"""--data-root finds every place of a config that names its data."""

from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset

from mmshared.utils.data_root import set_data_root


def coco(root='data/coco/', ann_file='annotations/a.json', **more):
    return dict(type='CocoDataset', data_root=root, ann_file=ann_file, data_prefix=dict(img='train/'), **more)


def config(dataset, **more):
    return Config(dict(train_dataloader=dict(batch_size=2, dataset=dataset), **more))


def test_plain_datasets_and_evaluators_of_every_split():
    cfg = Config(
        dict(
            data_root='data/coco/',
            train_dataloader=dict(dataset=coco()),
            val_dataloader=dict(dataset=coco()),
            test_dataloader=dict(dataset=coco()),
            val_evaluator=dict(type='CocoMetric', ann_file='data/coco/annotations/a.json', outfile_prefix='data/cocoa'),
            test_evaluator=[
                dict(type='CocoMetric', ann_file='data/coco/annotations/b.json'),
                dict(type='CocoPanopticMetric', ann_file=None, seg_prefix='data/coco/seg/', metric=['PQ']),
            ],
        )
    )
    assert set_data_root(cfg, '/mnt/tiny') == ['data/coco/']
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        assert (dataset.data_root, dataset.ann_file) == ('/mnt/tiny', 'annotations/a.json')
        assert dataset.data_prefix == dict(img='train/')
    assert cfg.val_evaluator.ann_file == '/mnt/tiny/annotations/a.json'
    assert cfg.val_evaluator.outfile_prefix == 'data/cocoa'
    assert cfg.test_evaluator[0].ann_file == '/mnt/tiny/annotations/b.json'
    assert cfg.test_evaluator[1].seg_prefix == '/mnt/tiny/seg/'
    assert cfg.test_evaluator[1].ann_file is None
    assert cfg.data_root == '/mnt/tiny'


@pytest.mark.parametrize(
    'wrap, leaves',
    [
        (lambda d: dict(type='RepeatDataset', times=2, dataset=d), lambda d: [d.dataset]),
        (lambda d: dict(type='ClassBalancedDataset', oversample_thr=0.1, dataset=d), lambda d: [d.dataset]),
        (lambda d: dict(type='MultiImageMixDataset', dataset=d, pipeline=[]), lambda d: [d.dataset]),
        (lambda d: dict(type='ConcatDataset', datasets=[d, coco('other')]), lambda d: d.datasets),
        (
            lambda d: dict(
                type='MultiImageMixDataset',
                pipeline=[],
                dataset=dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', times=2, dataset=d)]),
            ),
            lambda d: [d.dataset.datasets[0].dataset],
        ),
    ],
)
def test_wrappers(wrap, leaves):
    cfg = config(wrap(coco()))
    set_data_root(cfg, 'new/')
    found = leaves(cfg.train_dataloader.dataset)
    assert found and all(leaf.data_root == 'new/' and leaf.type == 'CocoDataset' for leaf in found)


def test_a_list_of_datasets_as_mmdet_writes_it():
    cfg = config([coco(), coco('data/coco/more')])
    assert set_data_root(cfg, 'new') == ['data/coco/', 'data/coco/more']
    assert [dataset.data_root for dataset in cfg.train_dataloader.dataset] == ['new', 'new']


def test_of_nested_roots_the_inner_one_counts():
    cfg = config([coco('data'), coco('data/coco')], val_evaluator=dict(ann_file='data/coco/a.json'))
    set_data_root(cfg, 'new')
    assert cfg.val_evaluator.ann_file == 'new/a.json'


def test_absolute_paths_inside_the_old_root_move_and_others_stay():
    cfg = config(
        coco(
            '/old/coco',
            '/old/coco/a.json',
            proposal_file='/elsewhere/p.pkl',
            pipeline=[dict(type='LoadEmbedding', file='/old/coco/e.npy')],
        )
    )
    set_data_root(cfg, '/new')
    dataset = cfg.train_dataloader.dataset
    assert (dataset.ann_file, dataset.proposal_file) == ('/new/a.json', '/elsewhere/p.pkl')
    assert dataset.pipeline[0].file == '/new/e.npy'


def test_a_relative_path_that_looks_like_the_root_is_still_relative_to_it():
    cfg = config(coco('annotations', 'annotations/a.json'))
    set_data_root(cfg, 'new')
    assert cfg.train_dataloader.dataset.ann_file == 'annotations/a.json'


def test_a_new_root_inside_the_old_one_is_not_moved_twice():
    shared = dict(dataset=coco('data'))
    cfg = Config(dict(val_dataloader=shared, test_dataloader=shared))
    cfg.val_evaluator = cfg.test_evaluator = dict(ann_file='data/a.json')
    set_data_root(cfg, 'data/tiny')
    assert cfg.test_dataloader.dataset.data_root == 'data/tiny'
    assert cfg.val_evaluator.ann_file == cfg.test_evaluator.ann_file == 'data/tiny/a.json'


def test_urls():
    cfg = config(coco('s3://bucket/coco/'), val_evaluator=dict(ann_file='s3://bucket/coco/a.json'))
    set_data_root(cfg, '/local')
    assert cfg.val_evaluator.ann_file == '/local/a.json'


def test_a_config_without_data_root_is_refused():
    with pytest.raises(ValueError, match=r'no dataset in the train.*has a data_root'):
        set_data_root(config(dict(type='CocoDataset', ann_file='a.json')), 'new')


def test_pure_python_configs(tmp_path):
    file = tmp_path / 'config.py'
    file.write_text("""
from mmengine.dataset import BaseDataset, RepeatDataset
train_dataloader = dict(dataset=dict(
    type=RepeatDataset, times=2, dataset=dict(type=BaseDataset, data_root='old/', ann_file='a.json')))
val_evaluator = dict(type='CocoMetric', ann_file='old/a.json')
""")
    cfg = Config.fromfile(file)
    set_data_root(cfg, 'new/')
    assert cfg.val_evaluator.ann_file == 'new/a.json'
    assert cfg.train_dataloader.dataset.dataset.data_root == 'new/'
    assert cfg.train_dataloader.dataset.dataset.type is BaseDataset
    cfg.dump(tmp_path / 'dumped.py')
    assert Config.fromfile(tmp_path / 'dumped.py').train_dataloader.dataset.dataset.data_root == 'new/'
