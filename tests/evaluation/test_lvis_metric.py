"""SharedLVISMetric against what lvis 0.5.3 says (``make_lvis_table.py``), and against LVISMetric where that works."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple
from unittest import mock

import numpy as np
import pycocotools.mask as mask_utils
import pytest
import torch

from mmshared.annotations import AnnotationFileError
from mmshared.evaluation import SharedLVISFixedAPMetric, SharedLVISMetric

from .lvis_cases import CASES, make_case

lvis = pytest.importorskip('lvis', reason='the package lvis is not installed')
from mmdet.evaluation.metrics.lvis_metric import LVISFixedAPMetric, LVISMetric  # noqa: E402

TABLE = json.loads((Path(__file__).parent / 'lvis_table.json').read_text())
BACKENDS = ('pycocotools', 'faster_coco_eval', 'ultrafast')


def prepared(tmp_path: Path, case: str) -> Tuple[Dict[str, Any], str, List[dict]]:
    """The case's file, its path, and what a detector hands to ``process``."""
    file, samples = copy.deepcopy(_made(case))
    path = tmp_path / 'lvis.json'
    path.write_text(json.dumps(file))
    return file, str(path), samples


@functools.cache
def _made(case: str) -> Tuple[Dict[str, Any], List[dict]]:
    file, predictions = make_case(**CASES[case])
    return file, [_sample(found) for found in predictions]


def _sample(found: Dict[str, Any]) -> dict:
    masks = [mask_utils.merge(mask_utils.frPyObjects([p], 250, 250)) for p in found['polygons']]
    bits = np.stack([mask_utils.decode(m) for m in masks]) if masks else np.zeros((0, 250, 250), np.uint8)
    return {
        'img_id': found['img_id'],
        'ori_shape': (250, 250),
        'pred_instances': {
            'bboxes': torch.tensor(found['bboxes'], dtype=torch.float32).reshape(-1, 4),
            'scores': torch.tensor(found['scores'], dtype=torch.float32),
            'labels': torch.tensor(found['labels'], dtype=torch.long),
            'masks': torch.from_numpy(bits).bool(),
        },
    }


def run(metric: Any, file: Dict[str, Any], samples: List[dict]) -> Tuple[Dict[str, float], str]:
    """The metrics, and what is printed."""
    metric.dataset_meta = {'classes': tuple(category['name'] for category in file['categories'])}
    for start in range(0, len(samples), 3):
        metric.process({}, copy.deepcopy(samples[start : start + 3]))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        values = metric.evaluate(len(samples))
    return values, out.getvalue()


@contextlib.contextmanager
def summaries() -> Any:
    """The results of lvis before they are rounded, in order."""
    found, original = [], lvis.LVISEval.summarize

    def summarize(self: Any) -> None:
        original(self)
        found.append(self)

    with mock.patch.object(lvis.LVISEval, 'summarize', summarize):
        yield found


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('case', sorted(CASES))
def test_equals_lvis(tmp_path: Path, case: str, backend: str) -> None:
    file, path, samples = prepared(tmp_path, case)
    metric = SharedLVISMetric(path, ['bbox', 'segm'], backend=backend, cache_dir=str(tmp_path / 'cache'))
    with summaries() as found:
        values, _ = run(metric, file, samples)
    for kind, summary in zip(('bbox', 'segm'), found):
        expected = TABLE[case][kind]
        assert dict(summary.get_results()) == pytest.approx(expected['results'], rel=0, abs=1e-9)
        for name in ('AP', 'AP50', 'AP75', 'APs', 'APm', 'APl', 'APr', 'APc', 'APf'):
            assert values[f'lvis/{kind}_{name}'] == float(f'{expected["results"][name]:.3f}')
        for k, value in enumerate(expected['classes']):
            precision = summary.eval['precision'][:, :, k, 0]
            precision = precision[precision > -1]
            assert precision.size or value is None
            assert not precision.size or np.mean(precision) == pytest.approx(value, rel=0, abs=1e-9)
    assert len(found) == 2


@pytest.mark.parametrize('metric', ['bbox', 'segm', ['proposal', 'bbox']], ids=str)
@pytest.mark.parametrize('case', sorted(CASES))
def test_equals_stock(tmp_path: Path, case: str, metric: Any) -> None:
    """Stock gets a ``numpy.float``, without which it fails (:func:`test_stock_fails_without_help`)."""
    file, path, samples = prepared(tmp_path, case)
    options = {'metric': metric, 'classwise': case != 'unsorted', 'proposal_nums': (10, 300)}
    ours = SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache'), **options)
    with mock.patch.object(np, 'float', float, create=True):
        stock = run(LVISMetric(path, **options), file, samples)
    for _ in range(2):
        values, printed = run(ours, file, samples)
        assert (list(values), printed) == (list(stock[0]), stock[1])
        np.testing.assert_array_equal(list(values.values()), list(stock[0].values()))  # some are NaN


@pytest.mark.skipif(hasattr(np, 'float'), reason='this numpy has numpy.float')
def test_stock_fails_without_help(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    with pytest.raises(AttributeError, match=r'np\.float|numpy'):
        run(LVISMetric(path), file, samples)


def test_classes_have_their_own_figures(tmp_path: Path) -> None:
    """Stock gives categories that are not sorted by id the figures of others."""
    file, path, samples = prepared(tmp_path, 'unsorted')
    values, _ = run(SharedLVISMetric(path, classwise=True, cache_dir=str(tmp_path / 'cache')), file, samples)
    expected = dict(zip(sorted(c['id'] for c in file['categories']), TABLE['unsorted']['bbox']['classes']))
    for category in file['categories']:
        assert values[f'lvis/{category["name"]}_precision'] == round(expected[category['id']], 3)
    with mock.patch.object(np, 'float', float, create=True):
        stock, _ = run(LVISMetric(path, classwise=True), file, samples)
    assert stock['lvis/class 0_precision'] == values[f'lvis/class {len(file["categories"]) - 1}_precision']


def test_proposal_fast(tmp_path: Path) -> None:
    """Of objects that LVIS knows no reason to leave out, crowds and ignored ones."""
    file, path, samples = prepared(tmp_path, 'ignored')
    for annotation in file['annotations']:
        annotation['iscrowd'] = 1
    Path(path).write_text(json.dumps(file))
    same = [samples[0]] * len(samples)
    file['annotations'] = [{**a, 'image_id': i['id']} for i in file['images'] for a in file['annotations'][:5]]
    for number, annotation in enumerate(file['annotations']):
        annotation['id'] = number + 1
    Path(path).write_text(json.dumps(file))
    options = {'metric': 'proposal_fast', 'proposal_nums': (5, 20)}
    samples = [{**sample, 'img_id': image['id']} for sample, image in zip(same, file['images'])]
    ours, _ = run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache'), **options), file, samples)
    stock, _ = run(LVISMetric(path, **options), file, samples)
    assert ours == stock and ours['lvis/AR@20'] > 0


def test_files_are_equal(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    for kind, name in ((LVISMetric, 'stock'), (SharedLVISMetric, 'ours')):
        metric = kind(path, ['bbox', 'segm'], format_only=True, outfile_prefix=str(tmp_path / name))
        assert run(metric, file, samples)[0] == {}
    for kind in ('bbox', 'segm'):
        assert (tmp_path / f'ours.{kind}.json').read_bytes() == (tmp_path / f'stock.{kind}.json').read_bytes()


def test_nothing_found(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    for sample in samples:
        sample['pred_instances'] = {k: v[:0] for k, v in sample['pred_instances'].items()}
    ours = run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache')), file, samples)
    assert ours == run(LVISMetric(path), file, samples) == ({}, '')


@pytest.mark.parametrize('field', ['neg_category_ids', 'not_exhaustive_category_ids'])
def test_other_files_are_refused(tmp_path: Path, field: str) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    del file['images'][2][field]
    Path(path).write_text(json.dumps(file))
    with pytest.raises(AnnotationFileError) as error:
        run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache')), file, samples)
    assert f"images[2] (id 3), field '{field}': is missing. Is it an LVIS file?" in str(error.value)
    with pytest.raises(KeyError, match=field):
        run(LVISMetric(path), file, samples)


def test_unknown_images_are_refused(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    samples[1]['img_id'] = 77
    with pytest.raises(AssertionError, match='do not correspond'):
        run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache')), file, samples)
    with pytest.raises(AssertionError, match='do not correspond'):
        run(LVISMetric(path), file, samples)


def test_the_scores_of_masks_choose_among_them(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'many')
    for sample in samples:
        scores = sample['pred_instances']['scores']
        sample['pred_instances']['mask_scores'] = 1 - scores
    options = {'metric': ['bbox', 'segm']}
    ours = run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache'), **options), file, samples)
    with mock.patch.object(np, 'float', float, create=True):
        assert ours == run(LVISMetric(path, **options), file, samples)


@pytest.mark.parametrize('topk', [10000, 9])
@pytest.mark.parametrize('case', sorted(CASES))
def test_fixed_ap(tmp_path: Path, case: str, topk: int) -> None:
    file, path, samples = prepared(tmp_path, case)
    with mock.patch.object(np, 'float', float, create=True):
        stock = run(LVISFixedAPMetric(path, topk), file, samples)
    metric = SharedLVISFixedAPMetric(path, topk, cache_dir=str(tmp_path / 'cache'))
    for _ in range(2):
        values, printed = run(metric, file, samples)
        assert printed == stock[1]
        assert values == pytest.approx(stock[0], rel=0, abs=1e-9)
    assert values['lvis_fixed_ap/AP'] > 0


def test_fixed_ap_of_nothing(tmp_path: Path) -> None:
    file, path, samples = prepared(tmp_path, 'plain')
    for metric in (LVISFixedAPMetric(path), SharedLVISFixedAPMetric(path, cache_dir=str(tmp_path / 'cache'))):
        with pytest.raises(IndexError):
            run(metric, file, [])


@pytest.mark.parametrize('change', ['areas', 'repeated'])
@pytest.mark.parametrize('seed', range(6))
def test_odd_objects(tmp_path: Path, seed: int, change: str) -> None:
    """Areas that are no number or beyond all, and repeated annotation ids, count as in lvis."""
    file, predictions = make_case(seed=100 + seed, images=6, detections=12)
    for i, annotation in enumerate(file['annotations']):
        if change == 'areas' and i % 3 == 0:
            annotation['area'] = (float('inf'), float('nan'), 0, -4)[seed % 4]
        if change == 'repeated' and i % 3 == 0:
            annotation['id'] = file['annotations'][seed % 5]['id']
    path = str(tmp_path / 'lvis.json')
    Path(path).write_text(json.dumps(file))
    samples = [_sample(found) for found in predictions]
    with mock.patch.object(np, 'float', float, create=True):
        stock = run(LVISMetric(path), file, samples)
    ours = run(SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache')), file, samples)
    np.testing.assert_equal(ours, stock)


@pytest.mark.parametrize('frequency', ['x', None], ids=str)
def test_a_category_without_frequency_is_found_early(tmp_path: Path, frequency: Any) -> None:
    file, path, _ = prepared(tmp_path, 'plain')
    file['categories'][2]['frequency'] = frequency
    Path(path).write_text(json.dumps(file))
    metric = SharedLVISMetric(path, cache_dir=str(tmp_path / 'cache'))
    with pytest.raises(AnnotationFileError, match="the category with id 3, field 'frequency'"):
        metric.dataset_meta = {'classes': tuple(category['name'] for category in file['categories'])}
