"""Evaluators give the same numbers whether stock's COCO or ours holds the ground truth."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmdet.datasets.api_wrappers import COCOevalMP
from pycocotools.cocoeval import COCOeval

from mmshared.evaluation import SharedCOCO

from .detections import detections, ground_truth
from .helpers import REAL, stock_coco


def faster() -> type:
    return pytest.importorskip('faster_coco_eval', reason='needs faster-coco-eval').COCOeval_faster


def ultrafast() -> type:
    return pytest.importorskip('ultrafast_pycocotools', reason='needs ultrafast-pycocotools').COCOeval


EVALUATORS = {'pycocotools': lambda: COCOeval, 'faster': faster, 'ultrafast': ultrafast, 'mmdet': lambda: COCOevalMP}


def results_of(evaluator: type, coco: Any, results: list) -> Any:
    loaded = coco.loadRes(results)
    if evaluator.__module__.startswith('ultrafast'):  # it takes any ground truth, but results in its own class only
        own = sys.modules['ultrafast_pycocotools'].COCO()
        own.dataset = loaded.dataset
        own.createIndex()
        return own
    return loaded


def evaluate(evaluator: type, coco: Any, results: list, kind: str, use_categories: int = 1) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = evaluator(coco, results_of(evaluator, coco, copy.deepcopy(results)), kind)
        evaluation.params.useCats = use_categories
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def assert_equal_evaluations(expected: Any, got: Any) -> None:
    assert np.array_equal(expected.stats, got.stats)
    assert len(set(np.asarray(expected.stats).tolist())) > 2, 'nothing was evaluated'
    for name in ('precision', 'recall', 'scores'):
        if name in expected.eval:
            assert np.array_equal(expected.eval[name], got.eval[name]), name
    assert expected.params.imgIds == got.params.imgIds and expected.params.catIds == got.params.catIds
    if type(expected) is COCOeval:
        assert str(expected.evalImgs) == str(got.evalImgs)


# mmdet's starts eight processes each time, and knows no keypoints
GENERATED = [
    *itertools.product(['pycocotools', 'faster', 'ultrafast'], ['bbox', 'segm', 'keypoints'], [False, True]),
    ('mmdet', 'bbox', False),
    ('mmdet', 'segm', False),
]


@pytest.mark.parametrize(('name', 'kind', 'tied'), GENERATED)
def test_generated(name: str, kind: str, tied: bool, tmp_path: Path) -> None:
    truth = ground_truth(seed=1)
    results = detections(truth, kind, seed=2, tied=tied)
    file = tmp_path / 'annotations.json'
    file.write_text(json.dumps(truth))
    evaluator = EVALUATORS[name]()
    with SharedCOCO(file, cache_dir=str(tmp_path / 'cache')) as ours:
        for use_categories in (1, 0) if kind == 'bbox' and name != 'mmdet' else (1,):
            expected = evaluate(evaluator, stock_coco(file), results, kind, use_categories)
            assert_equal_evaluations(expected, evaluate(evaluator, ours, results, kind, use_categories))


@pytest.mark.parametrize('name', ['pycocotools', 'faster', 'ultrafast'])
def test_several_kinds_one_after_the_other(name: str, tmp_path: Path) -> None:
    """As a metric does: on one ground truth, changed by each evaluation, with and without letting go of it."""
    truth = ground_truth(seed=3)
    file = tmp_path / 'annotations.json'
    file.write_text(json.dumps(truth))
    evaluator, stock = EVALUATORS[name](), stock_coco(file)
    ours = SharedCOCO(file, cache_dir=str(tmp_path / 'cache'))
    for i, kind in enumerate(['segm', 'bbox', 'segm', 'bbox']):
        results = detections(truth, kind, seed=i)
        expected = evaluate(evaluator, stock, results, kind)
        assert_equal_evaluations(expected, evaluate(evaluator, ours, results, kind))
        if i == 2:
            ours.release()


COCO_TINY, TACO = 'coco_tiny/annotations/instances_val2017.json', 'taco/annotations.json'


@pytest.mark.parametrize('name', ['pycocotools', 'faster', 'ultrafast'])
@pytest.mark.parametrize(('source', 'kind'), [(COCO_TINY, 'bbox'), (COCO_TINY, 'segm'), (TACO, 'bbox')])
def test_real_files(source: str, name: str, kind: str, tmp_path: Path) -> None:
    file = REAL / source
    if not file.is_file():
        pytest.skip(f'{file} is not there')
    truth = json.loads(file.read_text())
    results = detections(truth, kind, seed=5)
    evaluator = EVALUATORS[name]()
    ours = SharedCOCO(file, cache_dir=str(tmp_path / 'cache'))
    expected = evaluate(evaluator, stock_coco(file), results, kind)
    assert_equal_evaluations(expected, evaluate(evaluator, ours, results, kind))


def test_every_match_can_be_looked_up(tmp_path: Path) -> None:
    """faster-coco-eval's ``extra_calc`` walks all annotations and writes into them."""
    evaluator = faster()
    truth = ground_truth(seed=4)
    file = tmp_path / 'annotations.json'
    file.write_text(json.dumps(truth))
    found = []
    for coco in (stock_coco(file), SharedCOCO(file, cache_dir=str(tmp_path / 'cache'))):
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation = evaluator(coco, coco.loadRes(detections(truth, 'bbox', 6)), 'bbox', extra_calc=True)
            evaluation.run()
        found.append([(k, a.get('dt_id'), a.get('fn')) for k, a in coco.anns.items()])
    assert found[0] == found[1] and any(match[1] is not None for match in found[0])
