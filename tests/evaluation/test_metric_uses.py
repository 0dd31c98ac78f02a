"""SharedCocoMetric in other hands than those of a validation loop, and while its file is changed."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import os
import pickle
import shutil
import sys
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from mmdet.evaluation.evaluator import MultiDatasetsEvaluator

from mmshared.evaluation import SharedCOCO
from mmshared.evaluation.collected import Collected
from mmshared.evaluation.errors import RankError
from mmshared.evaluation.gathered import PickledResults
from mmshared.evaluation.gathering import _Channel
from mmshared.evaluation.predictions import Predictions

from .metric_cases import CLASSES, Case, assert_same, outcome, shared_metric, stock_metric, write


@pytest.fixture
def case() -> Case:
    return Case({'crowds', 'many'}, 4, images=6)


def test_several_datasets_are_evaluated_as_with_stock(tmp_path: Path, case: Case) -> None:
    file, found = write(tmp_path, case.content), []
    for make in (lambda: stock_metric(file), lambda: shared_metric(file, tmp_path)):
        evaluator = MultiDatasetsEvaluator([make(), make()], ['first', 'second'])
        evaluator.dataset_meta = {'classes': CLASSES, 'cumulative_sizes': [6, 12]}
        for metric in evaluator.metrics:
            metric.dataset_meta = {'classes': CLASSES}
        with contextlib.redirect_stdout(io.StringIO()):
            for sample in copy.deepcopy([*case.samples, *case.samples]):
                evaluator.process([sample])
            found.append(evaluator.evaluate(12))
    assert found[0] == found[1] and len(found[0]) > 6


def test_results_behave_as_a_list(tmp_path: Path, case: Case) -> None:
    file = write(tmp_path, case.content)
    stock, ours = stock_metric(file), shared_metric(file, tmp_path)
    for metric in (stock, ours):
        metric.dataset_meta = {'classes': CLASSES}
        metric.process({}, copy.deepcopy(case.samples))
    for index in (0, -1, 3):
        assert ours.results[index][0]['img_id'] == stock.results[index][0]['img_id']
        assert (ours.results[index][1]['bboxes'] == stock.results[index][1]['bboxes']).all()
    assert len(ours.results[:4]) == 4 and len(list(ours.results)) == len(stock.results)
    ours.results = list(stock.results)
    with contextlib.redirect_stdout(io.StringIO()):
        assert ours.evaluate(6) == stock.evaluate(6)


@pytest.mark.parametrize('kind', [Predictions, PickledResults])
def test_what_is_missing_is_told_to_whoever_asks(kind: Any) -> None:
    results = kind()
    results.failure = 'KeyError: scores'
    for same in (results, pickle.loads(pickle.dumps(results))):
        for ask in (list, lambda r: r[0], lambda r: r[:2]):
            with pytest.raises(RankError, match='KeyError: scores'):
                ask(same)
    results.clear()
    assert list(results) == []


def test_masks_of_another_size(tmp_path: Path) -> None:
    """With them ultrafast-pycocotools does not come back."""
    case = Case(set(), 4, images=2)
    for sample in case.samples:
        sample['pred_instances']['masks'] = torch.nn.functional.pad(sample['pred_instances']['masks'], (0, 3, 0, 2))
    file = write(tmp_path, case.content)
    stock = outcome(stock_metric(file, metric='segm'), case.samples)
    for backend in ('pycocotools', 'faster_coco_eval', 'ultrafast'):
        assert_same(stock, outcome(shared_metric(file, tmp_path, backend, metric='segm'), case.samples), False)


@pytest.mark.parametrize('change', ['deleted', 'replaced', 'cut', 'elsewhere'])
def test_the_file_of_the_start_counts(tmp_path: Path, case: Case, change: str) -> None:
    file = write(tmp_path, case.content)
    expected = outcome(stock_metric(file), case.samples).metrics
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        metric = shared_metric(Path(file.name), tmp_path)
        metric.dataset_meta = {'classes': CLASSES}
        metric.process({}, copy.deepcopy(case.samples))
        if change == 'deleted':
            file.unlink()
        elif change == 'replaced':
            for annotation in case.content['annotations']:
                annotation['bbox'] = [0, 0, 1, 1]
            file.write_text(json.dumps(case.content))
        elif change == 'cut':
            file.write_bytes(file.read_bytes()[:100])
        else:
            os.chdir('/')
        with contextlib.redirect_stdout(io.StringIO()):
            assert metric.evaluate(len(case.samples)) == expected
    finally:
        os.chdir(before)


def test_a_store_that_was_removed_by_hand_is_made_again(tmp_path: Path, case: Case) -> None:
    file = write(tmp_path, case.content)
    metric = shared_metric(file, tmp_path)
    first = outcome(metric, case.samples)
    shutil.rmtree(tmp_path / 'cache')
    assert_same(first, outcome(metric, case.samples))


def test_a_missing_file_says_whose_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match='ann_file of SharedCocoMetric') as error:
        shared_metric(tmp_path / 'nowhere.json', tmp_path)
    assert error.value.filename == str(tmp_path / 'nowhere.json')


def test_nothing_is_kept_of_an_evaluation_that_failed(tmp_path: Path, case: Case) -> None:
    metric = shared_metric(write(tmp_path, case.content), tmp_path)
    samples = copy.deepcopy(case.samples)
    samples[-1]['img_id'] = 'nowhere'
    made = []

    def noted(parts: Any, size: Any = None) -> Collected:
        found = original(parts, size)
        made.append(weakref.ref(found.boxes))
        return found

    original = Collected.of
    gc.collect()
    gc.disable()
    try:
        metric.dataset_meta = {'classes': CLASSES}
        metric.process({}, samples)
        failed = False
        with mock.patch.object(Collected, 'of', noted):
            try:
                metric.evaluate(len(samples))
            except AssertionError:
                failed = True
        assert failed and len(made) == 1 and made[0]() is None
    finally:
        gc.enable()


def test_rank_0_takes_part_though_it_has_no_memory() -> None:
    channel = _Channel.__new__(_Channel)
    channel._rank, channel.failure = 0, None
    assert len(channel._room(7)) == 7 and channel.failure is None
    assert channel._room(1 << 60) is None and 'no memory for' in str(channel.failure)
    assert channel._room(7) is None


def test_two_threads_leave_stdout_alone(tmp_path: Path, case: Case) -> None:
    coco = SharedCOCO(write(tmp_path, case.content), cache_dir=str(tmp_path / 'cache'))
    results = [{'image_id': case.ids[0], 'bbox': [1, 2, 3, 4], 'score': 0.5, 'category_id': 2}]
    before, interval = sys.stdout, sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(target=lambda: [coco.loadRes(copy.deepcopy(results)) for _ in range(200)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.stdout is before
    finally:
        sys.stdout = before
        sys.setswitchinterval(interval)
