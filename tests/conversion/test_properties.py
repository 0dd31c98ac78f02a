"""Any config: converting twice is converting once, and back again it is as it was."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from mmshared.conversion import convert
from mmshared.conversion.writing import as_text, differences

from .helpers import swapped

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(-9, 9),
    st.sampled_from(['CocoDataset', 'a.json', '', "it's"]),
)
STEPS = st.sampled_from(['LoadAnnotations', 'mmdet.LoadAnnotations', 'LoadImageFromFile', 'LoadPanopticAnnotations'])
PIPELINES = st.lists(st.builds(lambda kind: dict(type=kind), STEPS), max_size=3)
INFO = st.fixed_dictionaries({'classes': st.tuples(PLAIN, PLAIN), 'type': st.just('CocoDataset')})
KINDS = ['CocoDataset', 'mmdet.CocoDataset', 'VOCDataset', 'LVISV1Dataset', 'V3DetDataset', 'mmdet.ODVGDataset', 'None']
DATA = st.fixed_dictionaries(
    {'type': st.sampled_from(KINDS), 'pipeline': PIPELINES}, optional={'metainfo': INFO, 'ann_file': PLAIN}
)
WRAPPED = st.recursive(
    DATA,
    lambda inner: st.one_of(
        st.builds(lambda held: dict(type='RepeatDataset', times=2, dataset=held), inner),
        st.builds(lambda held: dict(type='ConcatDataset', datasets=held), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda held: dict(type='ConcatDataset', datasets=held), st.tuples(inner, inner)),
        st.builds(lambda held: dict(type='Unknown', somewhere=[dict(deep=held)]), inner),
    ),
    max_leaves=5,
)
COLLATE = st.sampled_from([dict(type=kind) for kind in ('pseudo_collate', 'default_collate', 'somebodys')])
LOADERS = st.fixed_dictionaries({'dataset': WRAPPED, 'batch_size': st.integers(1, 4)}, optional={'collate_fn': COLLATE})
METRIC = st.builds(
    lambda kind, file: dict(type=kind, ann_file=file), st.sampled_from(['CocoMetric', 'mmdet.CocoMetric', 'X']), PLAIN
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        'default_scope': st.just('mmdet'),
        'custom_imports': st.fixed_dictionaries(
            {'imports': st.lists(st.just('os'), max_size=1)}, optional={'allow_failed_imports': st.booleans()}
        ).filter(lambda value: value['imports']),
        'train_dataloader': LOADERS,
        'val_dataloader': st.one_of(st.none(), st.lists(LOADERS, max_size=2)),
        'train_pipeline': PIPELINES,
        'anything': st.dictionaries(st.sampled_from(['a', 'b-c', 'type']), PLAIN, max_size=3),
        'val_evaluator': st.one_of(METRIC, st.lists(METRIC, max_size=2)),
        'train_cfg': st.sampled_from(
            [dict(type='EpochBasedTrainLoop', max_epochs=1), dict(type='IterBasedTrainLoop', max_iters=3), dict(a=1)]
        ),
        'val_cfg': st.sampled_from([None, dict(type='ValLoop'), dict(type='TeacherStudentValLoop')]),
        'model': st.dictionaries(st.sampled_from(['type', 'train_cfg']), PLAIN),
    },
)


@settings(max_examples=80, deadline=None)
@given(CONFIGS)
def test_there_and_back(keys):
    cfg = Config(copy.deepcopy(keys))
    report = swapped(cfg)
    # only what the report says is different
    paths = tuple(change.path for change in report.changed)
    for path in differences(keys, cfg.to_dict()):
        assert path == 'custom_imports' or path.startswith(paths), path


@settings(max_examples=15, deadline=None)
@given(CONFIGS)
def test_what_is_written_is_what_was_converted(keys):
    cfg = Config(copy.deepcopy(keys))
    convert(cfg)
    again = Config.fromstring(as_text(cfg), '.py')
    assert not list(differences(cfg.to_dict(), again.to_dict()))
