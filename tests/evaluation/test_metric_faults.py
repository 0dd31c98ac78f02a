"""What stock refuses is refused, with an error that says where and what; what it does not see is said as well."""

from __future__ import annotations

import copy
import re
import sys

import pytest
import torch
from mmengine.registry import METRICS

from mmshared.annotations import AnnotationFileError
from mmshared.evaluation import SharedCocoMetric

from .metric_cases import CLASSES, Case, outcome, shared_metric, stock_metric, write


@pytest.fixture
def case():
    return Case({'crowds'}, 4, images=6)


def both(case, folder, **options):
    """What stock and ours raise."""
    file = write(folder, case.content)
    results = []
    for make in (stock_metric, lambda file, **more: shared_metric(file, folder, 'faster_coco_eval', **more)):
        result = outcome(make(file, **options), case.samples)
        results.append(result.error)
    return results


@pytest.mark.parametrize('metric', ['bbox', 'segm', 'proposal'])
@pytest.mark.parametrize(
    ('field', 'value'),
    [('iscrowd', None), ('iscrowd', ...), ('area', None), ('area', ...), ('area', '7')],
    ids=['null crowd', 'no crowd', 'null area', 'no area', 'text area'],
)
def test_a_record_that_cannot_be_evaluated(case, tmp_path, metric, field, value):
    record = next(r for r in case.content['annotations'] if not r['iscrowd'])
    record[field] = value
    if value is ...:
        del record[field]
    stock, ours = both(case, tmp_path, metric=metric)
    assert stock is not None and isinstance(ours, AnnotationFileError)
    number = case.content['annotations'].index(record)
    assert f'annotations[{number}] (id {record["id"]}), field {field!r}' in str(ours)


@pytest.mark.parametrize('value', [..., None, [1, 2, 3], ['a', 1, 1, 1]], ids=['no', 'null', 'three', 'text'])
def test_a_box_that_cannot_be_evaluated(case, tmp_path, value):
    record = next(r for r in case.content['annotations'] if not r['iscrowd'])
    record['bbox'] = value
    if value is ...:
        del record['bbox']
    for metric in ('bbox', 'proposal'):
        stock, ours = both(case, tmp_path, metric=metric)
        assert stock is not None and isinstance(ours, AnnotationFileError) and "field 'bbox'" in str(ours)
    assert both(case, tmp_path, metric='segm') == [None, None]  # nobody looks at it


@pytest.mark.parametrize('value', [..., None, [], {'size': [40, 50]}, [[1, 2]], 'x'], ids=str)
def test_a_mask_that_cannot_be_evaluated(case, tmp_path, value):
    record = next(r for r in case.content['annotations'] if not r['iscrowd'])
    record['segmentation'] = value
    if value is ...:
        del record['segmentation']
    stock, ours = both(case, tmp_path, metric='segm')
    assert (stock is None) == (ours is None)
    if ours is not None:
        assert isinstance(ours, AnnotationFileError) and "field 'segmentation'" in str(ours)
    assert both(case, tmp_path, metric='bbox') == [None, None]


def test_what_is_not_asked_for_is_not_looked_at(case, tmp_path):
    for record in case.content['annotations']:
        if record['iscrowd']:
            del record['area']
    case.content['annotations'] += [
        {'id': 500, 'image_id': case.ids[0], 'category_id': 99},
        {'id': 501, 'image_id': 'nowhere', 'category_id': 2},
    ]
    assert both(case, tmp_path, metric='bbox') == [None, None]


def test_a_file_is_looked_at_before_the_job_trains(case, tmp_path):
    del case.content['annotations'][1]['iscrowd']
    metric = shared_metric(write(tmp_path, case.content), tmp_path)
    with pytest.raises(
        AnnotationFileError, match=re.escape(f'annotations[1] (id {case.content["annotations"][1]["id"]})')
    ):
        metric.dataset_meta = {'classes': CLASSES}


@pytest.mark.parametrize('missing', ['images', 'categories'])
def test_a_file_without(case, tmp_path, missing):
    del case.content[missing]
    stock, ours = both(case, tmp_path)
    assert isinstance(stock, KeyError) and isinstance(ours, AnnotationFileError) and missing in str(ours)


def test_classes_without_a_category_are_said(case, tmp_path, messages):
    case.content['categories'] = case.content['categories'][:2]
    metric = shared_metric(write(tmp_path, case.content), tmp_path)
    metric.dataset_meta = {'classes': CLASSES}
    assert '2 of its categories are among the 3 classes' in messages()


def test_labels_out_of_range(case, tmp_path):
    sample = next(s for s in case.samples if len(s['pred_instances']['labels']))
    sample['pred_instances']['labels'][0] = 3
    stock, ours = both(case, tmp_path)
    assert isinstance(stock, IndexError) and isinstance(ours, IndexError)
    assert f'label 3 of image {sample["img_id"]!r} (rank 0)' in str(ours)


def test_detections_of_an_unknown_image(case, tmp_path):
    sample = next(s for s in case.samples if len(s['pred_instances']['labels']))
    sample['img_id'] = 777
    stock, ours = both(case, tmp_path)
    assert isinstance(stock, AssertionError) and isinstance(ours, AssertionError)
    assert 'annotations.json does not have, such as 777 (rank 0)' in str(ours)


def test_an_unknown_image_without_detections_is_none(case, tmp_path):
    sample = copy.deepcopy(case.samples[0])
    sample['img_id'] = 777
    found = sample['pred_instances']
    sample['pred_instances'] = {name: value[:0] for name, value in found.items()}
    case.samples.append(sample)
    assert both(case, tmp_path) == [None, None]


def test_masks_are_asked_for_and_there_are_none(case, tmp_path):
    stock, ours = both(case.without_masks(), tmp_path, metric='segm')
    assert isinstance(stock, KeyError) and isinstance(ours, KeyError) and 'segm is not in results' in str(ours)


def test_an_image_has_no_masks(case, tmp_path):
    del case.samples[2]['pred_instances']['masks']
    stock, ours = both(case, tmp_path, metric='segm')
    assert isinstance(stock, KeyError) and isinstance(ours, KeyError)
    assert f'image {case.samples[2]["img_id"]} has none' in str(ours)


def test_only_later_images_have_masks(case, tmp_path):
    del case.samples[0]['pred_instances']['masks']
    assert both(case, tmp_path, metric='bbox') == [None, None]


@pytest.mark.parametrize('name', ['bboxes', 'scores', 'masks'])
def test_fewer_than_labels(case, tmp_path, name):
    sample = next(s for s in case.samples if len(s['pred_instances']['labels']))
    sample['pred_instances'][name] = sample['pred_instances'][name][:-1]
    stock, ours = both(case, tmp_path, metric='segm')
    assert isinstance(stock, IndexError) and isinstance(ours, IndexError) and repr(sample['img_id']) in str(ours)


def test_labels_are_no_integers(case, tmp_path):
    for sample in case.samples:
        sample['pred_instances']['labels'] = sample['pred_instances']['labels'].double()
    stock, ours = both(case, tmp_path)
    assert isinstance(stock, TypeError) and isinstance(ours, TypeError) and 'float64' in str(ours)


def test_no_detections_at_all(tmp_path, messages):
    case = Case({'no_detections'}, 4)
    file = write(tmp_path, case.content)
    for metric in (stock_metric(file), shared_metric(file, tmp_path)):
        assert outcome(metric, case.samples).metrics == {}
        assert 'The testing results of the whole dataset is empty.' in messages()


def test_no_images_at_all(case, tmp_path):
    case.samples.clear()
    stock, ours = both(case, tmp_path)
    assert isinstance(stock, ValueError) and isinstance(ours, ValueError) and 'no image was predicted' in str(ours)


def test_samples_have_no_ground_truth(case, tmp_path):
    del case.samples[1]['instances']
    errors = [outcome(make, case.samples).error for make in (stock_metric(None), shared_metric(None, tmp_path))]
    assert [type(error) for error in errors] == [AssertionError, AssertionError] and str(errors[0]) == str(errors[1])


@pytest.mark.parametrize(
    'options',
    [
        {'metric': 'boxes'},
        {'format_only': True},
        {'file_client_args': {}},
        {'metric_items': ['mAp']},
        {'collect_dir': 'x', 'collect_device': 'gpu'},
        {'backend': 'fast'},
        {'ann_file': 'nowhere.json'},
        {'ann_file': '.'},
        {'backend_args': {'backend': 'local', 'x': 1}},
    ],
    ids=str,
)
def test_refused_when_constructed(tmp_path, options):
    options = {'ann_file': str(write(tmp_path, Case(set(), 0).content)), **options}
    with pytest.raises((KeyError, AssertionError, RuntimeError, ValueError, TypeError, OSError)) as ours:
        SharedCocoMetric(**options)
    assert str(ours.value)
    if not {'backend', 'collect_dir', 'metric_items'} & set(options):
        with pytest.raises(ours.type):
            stock_metric(**{'file': options.pop('ann_file'), **options})


def test_a_backend_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr('mmshared.evaluation.backends.find_spec', lambda name: None)
    with pytest.raises(ImportError, match='pip install ultrafast-pycocotools'):
        SharedCocoMetric(None, backend='ultrafast')


def test_nothing_heavy_is_imported_and_the_file_not_read_when_constructed(tmp_path, repo):
    import subprocess

    file = tmp_path / 'broken.json'
    file.write_text('{"images": ')
    code = (
        'import sys, mmshared.evaluation as e; known = set(sys.modules);'
        f'metric = e.SharedCocoMetric({str(file)!r}, cache_dir={str(tmp_path / "cache")!r});'
        'print([m for m in sys.modules if m not in known and "coco" in m])'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=repo, capture_output=True, text=True, check=True)
    assert done.stdout == '[]\n' and not (tmp_path / 'cache').exists()


def test_is_registered_and_keeps_nothing(case, tmp_path):
    file = write(tmp_path, case.content)
    metric = METRICS.build(dict(type='mmdet.SharedCocoMetric', ann_file=str(file), cache_dir=str(tmp_path / 'cache')))
    first = outcome(metric, case.samples)
    assert len(metric.results) == 0 and metric.img_ids is None
    maps = open('/proc/self/maps').read()  # noqa: SIM115
    assert str(tmp_path / 'cache') not in maps
    assert outcome(metric, case.samples).metrics == first.metrics


def test_results_can_be_looked_at(case, tmp_path):
    file = write(tmp_path, case.content)
    stock, ours = stock_metric(file), shared_metric(file, tmp_path)
    for metric in (stock, ours):
        metric.process({}, copy.deepcopy(case.samples))
    assert len(stock.results) == len(ours.results)
    for (_, one), (_, other) in zip(stock.results, ours.results):
        masks = [{**mask, 'counts': mask['counts'].decode()} for mask in one.pop('masks')]
        assert masks == other.pop('masks') and one.pop('img_id') == other.pop('img_id')
        assert {name: (v.dtype, v.tolist()) for name, v in one.items()} == {
            name: (v.dtype, v.tolist()) for name, v in other.items()
        }
    assert torch.is_tensor(case.samples[0]['pred_instances']['scores'])


def test_takes_stocks_list_of_results(case, tmp_path):
    file = write(tmp_path, case.content)
    stock, ours = stock_metric(file), shared_metric(file, tmp_path)
    stock.process({}, copy.deepcopy(case.samples))
    for metric in (stock, ours):
        metric._dataset_meta = {'classes': CLASSES}
    assert ours.compute_metrics(stock.results) == stock.compute_metrics(stock.results)
