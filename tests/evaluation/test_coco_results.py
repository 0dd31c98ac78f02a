"""loadRes of ours against that of stock: results of any kind, and what it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Iterator, Tuple

import numpy as np
import pytest
from pycocotools.coco import COCO

from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import exact

from .detections import detections, ground_truth
from .helpers import ask, assert_same, cocos_of, outcome

TRUTH = ground_truth(seed=7)
ONE = {'image_id': 1, 'category_id': 3, 'score': 0.5}


@pytest.fixture(scope='module')
def cocos() -> Iterator[Tuple[COCO, SharedCOCO]]:
    with cocos_of(json.dumps(TRUTH).encode()) as pair:
        yield pair


def content(coco: Any) -> Any:
    return [coco.dataset, coco.anns, coco.imgs, coco.cats, coco.imgToAnns, coco.catToImgs, coco.getAnnIds()]


def spelled(value: Any) -> str:
    """``repr``, with types, whatever the order of keys."""
    if isinstance(value, dict):
        return f'{{{sorted(spelled(k) + spelled(v) for k, v in value.items())}}}'
    if isinstance(value, (list, tuple)):
        return f'{type(value).__name__}[{", ".join(map(spelled, value))}]'
    return f'{type(value).__name__} {value!r}'


def assert_same_results(cocos: Tuple[COCO, SharedCOCO], results: Any) -> None:
    given = [copy.deepcopy(results) for _ in cocos]
    expected, got = (outcome(lambda c, r: spelled(content(c.loadRes(r))), c, r) for c, r in zip(cocos, given))
    assert got == expected
    if not isinstance(results, np.ndarray):
        assert str(given[0]) == str(given[1])  # records are completed in place


@pytest.mark.parametrize('kind', ['bbox', 'segm', 'keypoints'])
def test_lists(cocos, kind: str) -> None:
    assert_same_results(cocos, detections(TRUTH, kind, seed=1))


RESULTS = {
    'captions': [{'image_id': 2, 'caption': 'a'}, {'image_id': 0, 'caption': 'b'}, {'image_id': 2, 'caption': 'c'}],
    'boxes and masks': [{**ONE, 'bbox': [1, 2, 3, 4], 'segmentation': [[1, 2, 3, 4, 5, 6]]}],
    'nothing known': [ONE],
    'empty box': [{**ONE, 'bbox': []}],
    'none': [],
    'unknown image': [{**ONE, 'image_id': 99, 'bbox': [1, 2, 3, 4]}],
    'unknown category': [{**ONE, 'category_id': 99, 'bbox': [1, 2, 3, 4]}],
    'no image': [{'bbox': [1, 2, 3, 4]}],
    'no category': [{'image_id': 1, 'bbox': [1, 2, 3, 4]}],
    'short box': [{**ONE, 'bbox': [1, 2]}],
    'second without a box': [{**ONE, 'bbox': [1, 2, 3, 4]}, ONE],
    'no list': {'a': 1},
    'a tuple': (ONE,),
    'floats': [{**ONE, 'image_id': 1.0, 'bbox': [1, 2, 3, 4]}],
}


@pytest.mark.parametrize('name', RESULTS)
def test_any_list(cocos, name: str) -> None:
    assert_same_results(cocos, RESULTS[name])


@pytest.mark.parametrize(
    'rows', [[[1, 2, 3, 4, 5, 0.5, 3], [0, 1, 1, 9, 9.5, 0.25, 7]], [[1, 2, 3]], [[99] * 7]], ids=len
)
def test_arrays(cocos, rows: list) -> None:
    assert_same_results(cocos, np.array(rows, float))
    assert_same(*cocos, ask, 'loadNumpyAnnotations', np.array(rows, float))
    assert_same(*cocos, ask, 'loadNumpyAnnotations', rows)


@pytest.mark.parametrize(
    'text', [json.dumps(detections(TRUTH, 'bbox', 3)), '{}', '[', '[]'], ids=['boxes', '{}', '[', '[]']
)
def test_files(cocos, text: str, tmp_path: Path) -> None:
    file = tmp_path / 'results.json'
    file.write_text(text)
    assert_same_results(cocos, str(file))


def test_no_such_file(cocos, tmp_path: Path) -> None:
    assert_same_results(cocos, str(tmp_path / 'nothing.json'))


@pytest.mark.parametrize('section', ['info', 'images', 'annotations', 'categories'])
def test_files_without_a_section(section: str) -> None:
    text = json.dumps({name: value for name, value in TRUTH.items() if name != section})
    with cocos_of(text.encode()) as pair:
        for kind in ('bbox', 'keypoints'):
            assert_same_results(pair, detections(TRUTH, kind, seed=2))


def test_results_are_the_callers_own(cocos) -> None:
    stock, ours = cocos
    ours.release()
    results = detections(TRUTH, 'bbox', seed=4)
    loaded = ours.loadRes(results)
    assert type(loaded) is COCO and isinstance(loaded.dataset, dict)
    assert loaded.anns[1] is results[0]
    loaded.anns[1]['image_id'] = loaded.dataset['categories'][0]['name'] = 'changed'
    ours.release()
    assert exact(ours.dataset) == exact(stock.dataset)
    assert loaded.anns[1]['image_id'] == 'changed' and len(loaded.imgs) == len(stock.imgs)


def test_it_is_quiet(cocos, capsys) -> None:
    ours = cocos[1]
    ours.loadRes(detections(TRUTH, 'bbox', seed=5))
    ours.loadRes(np.array([[1, 2, 3, 4, 5, 0.5, 3]]))
    SharedCOCO().createIndex()
    assert capsys.readouterr().out == ''
