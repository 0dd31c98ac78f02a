"""SharedCocoMetric gives CocoMetric's numbers, whatever the file, the detector and the options."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.evaluation import SharedCocoMetric

from .metric_cases import BACKENDS, FEATURES, Case, assert_same, outcome, shared_metric, stock_metric, write

METRICS = st.sampled_from(['bbox', 'segm', 'proposal', ['bbox', 'segm'], ['proposal', 'bbox']])
OPTIONS = st.fixed_dictionaries(
    {'metric': METRICS},
    optional={
        'classwise': st.booleans(),
        'proposal_nums': st.sampled_from([(1, 3, 5), (100, 1, 10), (2, 2, 2)]),
        'iou_thrs': st.sampled_from([[0.5], [0.3, 0.5, 0.75, 0.9, 0.95, 0.97]]),
        'metric_items': st.sampled_from([['mAP', 'AR@100'], ['AR_s@1000', 'mAP_75'], []]),
        'sort_categories': st.booleans(),
        'prefix': st.just('other'),
    },
)
CASES = st.builds(Case, st.sets(st.sampled_from(FEATURES), max_size=5), st.integers(0, 2**32), st.integers(1, 6))
FEW = settings(max_examples=40, deadline=None)
REAL = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'data'


@FEW
@given(case=CASES, options=OPTIONS)
def test_same_as_stock(tmp_path_factory, case, options):
    folder = tmp_path_factory.mktemp('case')
    file = write(folder, case.content)
    if 'unsorted' in case.features and not options.get('sort_categories'):
        options['classwise'] = False  # stock then gives classes the figures of others
    stock = outcome(stock_metric(file, **options), case.samples)
    for backend in BACKENDS:
        ours = outcome(shared_metric(file, folder, backend, **options), case.samples)
        assert_same(stock, ours, backend == 'pycocotools')


@FEW
@given(
    case=st.builds(
        Case,
        st.sets(st.sampled_from([f for f in FEATURES if f not in ('odd_numbers', 'odd_crowd')]), max_size=4),
        st.integers(0, 2**32),
    ),
    options=OPTIONS,
)
def test_same_as_stock_without_a_file(tmp_path_factory, case, options):
    folder = tmp_path_factory.mktemp('case')
    stock = outcome(stock_metric(None, outfile_prefix=str(folder / 'stock'), **options), case.samples)
    ours = outcome(shared_metric(None, folder, outfile_prefix=str(folder / 'ours'), **options), case.samples)
    assert_same(stock, ours)
    if stock.error is None:
        truths = [json.loads((folder / f'{name}.gt.json').read_text()) for name in ('stock', 'ours')]
        assert [set(truth.pop('info')) for truth in truths] == 2 * [{'date_created', 'description'}]
        assert truths[0] == truths[1] and [*map(list, truths[0]['images'])] == [*map(list, truths[1]['images'])]


@FEW
@given(case=CASES, masks=st.booleans(), format_only=st.booleans())
def test_files_are_equal_byte_for_byte(tmp_path_factory, case, masks, format_only):
    folder = tmp_path_factory.mktemp('case')
    file, case = write(folder, case.content), case if masks else case.without_masks()
    for name, make in (('stock', stock_metric), ('ours', lambda file, **more: shared_metric(file, folder, **more))):
        metric = make(file, outfile_prefix=str(folder / name / 'deep' / 'results'), format_only=format_only)
        result = outcome(metric, case.samples)
        assert result.error is None
        assert not format_only or result.metrics == {}
    files = [{p.name: p.read_bytes() for p in (folder / name).rglob('*.json')} for name in ('stock', 'ours')]
    assert files[0] == files[1] and set(files[0]) == {'results.bbox.json', *(['results.segm.json'] if masks else [])}


@pytest.mark.parametrize('thrs', [None, 0.5, [0.5, 0.7]], ids=['default', 'one', 'two'])
@FEW
@given(
    case=st.builds(Case, st.sets(st.sampled_from(['crowds', 'ignore', 'empty_images', 'ties'])), st.integers(0, 2**32))
)
def test_proposal_fast(tmp_path_factory, thrs, case):
    """Stock on a numpy that still takes what it gives it; with as many objects and proposals everywhere on any."""
    folder = tmp_path_factory.mktemp('case')
    file, options = (
        write(folder, case.content),
        {'metric': 'proposal_fast', 'iou_thrs': thrs, 'proposal_nums': (1, 3, 9)},
    )
    metric = stock_metric(file, **options)
    metric.fast_eval_recall = _with_old_numpy(metric.fast_eval_recall)
    assert_same(outcome(metric, case.samples), outcome(shared_metric(file, folder, **options), case.samples))


def _with_old_numpy(recall):
    """``np.array`` of arrays of several shapes gave an array of objects before numpy 1.24."""
    import mmdet.evaluation.functional.recall as module

    class Numpy:
        def __getattr__(self, name):
            return getattr(np, name)

        @staticmethod
        def array(value, *args, **kwargs):
            if not isinstance(value, list) or not isinstance(value[0], np.ndarray):
                return np.array(value, *args, **kwargs)
            result = np.empty(len(value), object)
            for i, item in enumerate(value):
                result[i] = item
            return result

    def run(*args, **kwargs):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, 'np', Numpy())
            return recall(*args, **kwargs)

    return run


def test_proposal_fast_does_not_depend_on_other_metrics(tmp_path):
    case = Case({'ignore'}, 3, images=6)
    file, found = write(tmp_path, case.content), []
    for metric in ('proposal_fast', ['bbox', 'proposal_fast'], ['proposal_fast', 'bbox']):
        ours = shared_metric(file, tmp_path, metric=metric)
        for _ in range(2):  # stock's second evaluation would see what its first one changed
            metrics = outcome(ours, case.samples).metrics
            found.append({name: value for name, value in metrics.items() if 'AR@' in name})
    assert all(values == found[0] for values in found) and any(found[0].values())
    assert any('ignore' in record for record in case.content['annotations'])


@pytest.mark.parametrize('metric', ['bbox', 'segm'])
def test_classes_get_their_own_figures(tmp_path, metric):
    """Stock looks them up at the category's place in the file, where pycocotools has sorted them."""
    case = Case(set(), 1, images=8)
    ids = {category['name']: category['id'] for category in case.categories}
    file = write(tmp_path, {**case.content, 'categories': case.categories[::-1]})
    for sample in case.samples:  # labels are numbers of the file's categories
        sample['pred_instances']['labels'] = 2 - sample['pred_instances']['labels']
    options = {'metric': metric, 'classwise': True}
    stock = outcome(stock_metric(file, **options), case.samples)
    ours = outcome(shared_metric(file, tmp_path, **options), case.samples)
    precision = ours.evaluations[0].eval['precision'][:, :, :, 0, -1]
    np.testing.assert_array_equal(precision, stock.evaluations[0].eval['precision'][:, :, :, 0, -1])
    own = {name: round(precision[:, :, sorted(ids.values()).index(key)].mean(), 3) for name, key in ids.items()}
    assert {name: ours.metrics[f'coco/{name}_precision'] for name in ids} == own
    assert {name: stock.metrics[f'coco/{name}_precision'] for name in ids} != own


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('metric', ['bbox', 'segm', 'proposal'])
def test_pieces_are_put_together(tmp_path, monkeypatch, backend, metric):
    case = Case({'ties', 'crowds', 'many'}, 5, images=12)
    file = write(tmp_path, case.content)
    stock = outcome(stock_metric(file, metric=metric, proposal_nums=(3, 10, 20)), case.samples)
    monkeypatch.setattr('mmshared.evaluation.pairing.RECORDS', 6)
    ours = outcome(shared_metric(file, tmp_path, backend, metric=metric, proposal_nums=(3, 10, 20)), case.samples)
    assert_same(stock, ours, backend == 'pycocotools')
    assert (stock.evaluations[0].stats > 0).any()


@pytest.mark.skipif(not (REAL / 'coco_tiny').is_dir(), reason='needs shared/data/coco_tiny')
@pytest.mark.parametrize('backend', BACKENDS)
def test_real_annotations(tmp_path, backend):
    file = next((REAL / 'coco_tiny').rglob('*val*.json'))
    _compare_on_real_file(file, tmp_path, backend, ['bbox', 'segm', 'proposal'])


@pytest.mark.skipif(not (REAL / 'taco').is_dir(), reason='needs shared/data/taco')
@pytest.mark.parametrize('backend', BACKENDS)
def test_real_annotations_with_repeated_ids(tmp_path, backend):
    _compare_on_real_file(REAL / 'taco' / 'annotations.json', tmp_path, backend, ['bbox', 'proposal'])


def _compare_on_real_file(file, folder, backend, metrics):
    content, rng = json.loads(file.read_text()), np.random.default_rng(0)
    content['images'] = content['images'][:60]
    known = {image['id'] for image in content['images']}
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] in known]
    file, names = write(folder, content), tuple(category['name'] for category in content['categories'])
    numbers = {category['id']: i for i, category in enumerate(content['categories'])}
    samples = []
    for image in content['images']:
        mine = [a for a in content['annotations'] if a['image_id'] == image['id']] or content['annotations'][:2]
        boxes = np.array([a['bbox'] for a in mine], np.float32) * rng.uniform(0.8, 1.2, (len(mine), 4)).astype(
            np.float32
        )
        boxes[:, 2:] += boxes[:, :2]
        scores = rng.integers(1, 10, len(mine)) / np.float32(10)
        labels = np.array([numbers[a['category_id']] for a in mine])
        found = {'bboxes': torch.from_numpy(boxes), 'scores': torch.tensor(scores), 'labels': torch.from_numpy(labels)}
        if 'segm' in metrics:
            found['masks'] = _rectangles(boxes, image)
        samples.append({'img_id': image['id'], 'ori_shape': (image['height'], image['width']), 'pred_instances': found})
    stock, ours = (
        outcome(metric, samples, classes=names)
        for metric in (stock_metric(file, metric=metrics), shared_metric(file, folder, backend, metric=metrics))
    )
    assert stock.error is None and stock.evaluations[0].stats[0] > 0.1
    assert_same(stock, ours, backend == 'pycocotools')


def _rectangles(boxes, image):
    """RLE as a detector of another library hands it over: already encoded."""
    import pycocotools.mask as mask_utils

    polygons = [[x1, y1, x2, y1, x2, y2, x1, y2] for x1, y1, x2, y2 in boxes.astype(float).tolist()]
    return mask_utils.frPyObjects(polygons, image['height'], image['width'])


def test_takes_all_arguments_of_stock(tmp_path):
    import inspect

    from mmdet.evaluation import CocoMetric

    file, defaults = write(tmp_path, Case(set(), 0).content), {}
    for name, parameter in list(inspect.signature(CocoMetric.__init__).parameters.items())[2:]:
        defaults[name] = parameter.default
    ours = SharedCocoMetric(str(file), *defaults.values(), collect_dir=str(tmp_path))
    stock = stock_metric(file, **defaults)
    assert isinstance(ours, CocoMetric)
    missing = set(vars(stock)) - set(vars(ours))
    assert not missing
    same = set(vars(stock)) - {'results', '_coco_api', 'iou_thrs', 'collect_dir'}
    assert {name: getattr(ours, name) for name in same} == {name: getattr(stock, name) for name in same}
