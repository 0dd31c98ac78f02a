"""How long records live, what becomes of changes, and copies."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Callable, Iterator, Tuple

import pytest
from mmdet.datasets.api_wrappers import COCO

from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import exact, small

from .detections import ground_truth
from .helpers import ask, assert_same, cocos_of
from .test_coco_parity import compare_whole

ROOT = Path(__file__).resolve().parents[2]
TRUTH = ground_truth(seed=11)


@pytest.fixture
def cocos() -> Iterator[Tuple[COCO, SharedCOCO]]:
    with cocos_of(json.dumps(TRUTH).encode()) as pair:
        yield pair


# ---- the same objects
@pytest.mark.parametrize('first', ['loadAnns', 'anns', 'imgToAnns', 'dataset', 'values'])
def test_a_record_is_one_object(cocos, first: str) -> None:
    ours = cocos[1]
    record = TRUTH['annotations'][5]
    key, image = record['id'], record['image_id']
    ways = {
        'loadAnns': lambda: ours.loadAnns([key])[0],
        'one id': lambda: ours.loadAnns(key)[0],
        'anns': lambda: ours.anns[key],
        'imgToAnns': lambda: next(a for a in ours.imgToAnns[image] if a['id'] == key),
        'dataset': lambda: ours.dataset['annotations'][5],
        'values': lambda: next(a for a in ours.anns.values() if a['id'] == key),
    }
    one = ways[first]()
    one['ignore'] = 'mine'
    for name, way in ways.items():
        assert way() is one, name
    assert ours.loadImgs([image])[0] is ours.imgs[image]
    assert any(ours.imgs[image] is other for other in ours.dataset['images'])
    assert ours.cats[3] in ours.dataset['categories'] and ours.loadCats(3)[0] is ours.cats[3]
    ours.release()
    assert all(way() is not one and way().get('ignore') != 'mine' for way in ways.values())


def test_the_end_of_a_with_block(cocos) -> None:
    with cocos[1] as ours:
        ours.anns[3]['area'] = -1
        assert ours.anns[3]['area'] == -1
    compare_whole(*cocos)


def test_asking_for_ids_makes_nothing_and_release_gives_all_back() -> None:
    truth = ground_truth(seed=1, images=50, annotations=3000)
    with cocos_of(json.dumps(truth).encode()) as (_, ours):
        ours.loadAnns(ours.getAnnIds()), ours.release(), gc.collect()  # imports and caches
        tracemalloc.start()
        try:
            ids = ours.getAnnIds(catIds=[1, 3], areaRng=[0, 500], iscrowd=0)
            assert len(ours.getAnnIds(imgIds=ours.getImgIds())) == len(ours.anns) == 3000 and 5 in ours.anns
            del ids
            assert tracemalloc.get_traced_memory()[0] < 200_000
            (
                ours.loadAnns(ours.getAnnIds()),
                len(ours.dataset['annotations']),
                ours.imgToAnns[3],
                list(ours.imgs.values()),
            )
            assert tracemalloc.get_traced_memory()[0] > 2_000_000
            ours.release()
            assert tracemalloc.get_traced_memory()[0] < 200_000
        finally:
            tracemalloc.stop()


# ---- changes count as in stock
def _remap(coco: COCO) -> None:
    for record in coco.loadAnns(coco.getAnnIds(iscrowd=0)):
        record.update(category_id=1, area=record['area'] / 2, id=record['id'] + 1000)


def _unset(coco: COCO) -> None:
    del coco.loadAnns([7])[0]['iscrowd']


def _append(coco: COCO) -> None:
    coco.imgToAnns[2].append({'id': 'new', 'category_id': 3, 'area': 1, 'iscrowd': 0})


def _append_to_all(coco: COCO) -> None:
    coco.dataset['annotations'].append({'id': 'new', 'image_id': 2, 'category_id': 3, 'area': 1, 'iscrowd': 0})


def _assign(coco: COCO) -> None:
    coco.anns['new'] = {'id': 'new'}
    coco.imgToAnns['x'] = [{'id': 'new', 'category_id': 3, 'area': 1, 'iscrowd': 0}]
    coco.imgs['x'] = {'id': 'x'}


def _remove(coco: COCO) -> None:
    del coco.anns[5], coco.imgToAnns[2]
    coco.imgs.pop(3)


def _sort_categories(coco: COCO) -> None:  # as mmdet does for Objects365
    coco.cats = dict(sorted(coco.cats.items()))
    coco.dataset['categories'] = list(coco.cats.values())


def _index_again(coco: COCO) -> None:
    coco.dataset['annotations'] = [a for a in coco.dataset['annotations'] if a['id'] % 2]
    coco.createIndex()


def _replace(coco: COCO) -> None:
    coco.dataset = small()
    coco.createIndex()


def _clear(coco: COCO) -> None:
    coco.catToImgs.clear()
    coco.anns.clear()


CHANGES = [_remap, _unset, _append, _append_to_all, _assign, _remove, _sort_categories, _index_again, _replace, _clear]


QUESTIONS = [[], [2], [[2, 3, 'x']], [[], 3], [[2], [1, 3], [0, 100]], [[], [], [0, 100], 0], [[], [], [], 1]]


def compare_after(stock: COCO, ours: SharedCOCO) -> None:
    for _ in range(2):  # the second time, everything has been made
        for arguments in (
            [],
            [2],
            [[2, 3, 'x']],
            [[], 3],
            [[2], [1, 3], [0, 100]],
            [[], [], [0, 100], 0],
            [[], [], [], 1],
        ):
            assert_same(stock, ours, ask, 'getAnnIds', *arguments)
        for method in ('getImgIds', 'getCatIds'):
            assert_same(stock, ours, ask, method)
        assert_same(stock, ours, ask, 'getImgIds', [], [1])
        assert_same(stock, ours, ask, 'loadAnns', [1, 3, 7])
        for attribute in ('anns', 'imgs', 'cats', 'imgToAnns', 'catToImgs', 'dataset'):
            assert_same(stock, ours, getattr, attribute)
            assert_same(stock, ours, lambda coco, a=attribute: len(getattr(coco, a)))
            if attribute != 'dataset':
                assert_same(stock, ours, lambda coco, a=attribute: list(getattr(coco, a)))


@pytest.mark.parametrize('looked', [False, True], ids=['first', 'after looking'])
@pytest.mark.parametrize('change', CHANGES, ids=lambda f: f.__name__)
def test_changes_count_as_in_stock(cocos, change: Callable[[COCO], None], looked: bool) -> None:
    for coco in cocos:
        if looked:
            str([coco.anns, coco.imgs, coco.imgToAnns, coco.catToImgs, coco.dataset['images']])
        with contextlib.redirect_stdout(io.StringIO()):
            change(coco)
    compare_after(*cocos)


@pytest.mark.parametrize('change', [_sort_categories, _replace], ids=lambda f: f.__name__)
def test_what_was_assigned_outlives_records(cocos, change: Callable[[COCO], None]) -> None:
    for coco in cocos:
        with contextlib.redirect_stdout(io.StringIO()):
            change(coco)
    cocos[1].release()
    compare_after(*cocos)


# ---- copies
COPIES = {
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda coco: pickle.loads(pickle.dumps(coco)),
    'pickle of a copy': lambda coco: pickle.loads(pickle.dumps(copy.deepcopy(coco), protocol=2)),
}


@pytest.mark.parametrize('how', COPIES)
def test_copies_are_equal(cocos, how: str) -> None:
    stock, ours = cocos
    compare_whole(stock, COPIES[how](ours))
    ours.release()
    for coco in cocos:
        coco.loadAnns([4])[0]['category_id'] = 'changed'
        coco.imgToAnns[2].pop()
    other = COPIES[how](ours)
    assert other.getAnnIds(catIds=['changed']) == [4]
    assert other.anns[4] is other.loadAnns([4])[0]
    compare_after(stock, other)


@pytest.mark.parametrize('how', ['deepcopy', 'pickle', 'pickle of a copy'])
def test_copies_are_independent(cocos, how: str) -> None:
    stock, ours = cocos
    ours.anns[4]['area'] = -1
    other = COPIES[how](ours)
    assert other.anns[4]['area'] == -1
    other.anns[4]['area'] = -2
    other.cats[3]['name'] = 'other'
    assert ours.anns[4]['area'] == -1 and ours.cats[3]['name'] == '3'
    other.release()
    assert exact(other.anns) == exact(stock.anns) and ours.anns[4]['area'] == -1


def test_a_pickle_is_small_until_records_are_made() -> None:
    with cocos_of(json.dumps(ground_truth(seed=2, images=50, annotations=3000)).encode()) as (_, ours):
        ours.getAnnIds(catIds=[3]), list(ours.anns), len(ours.imgToAnns)
        assert len(pickle.dumps(ours)) < 3000
        assert copy.deepcopy(ours)._table.store is ours._table.store
        ours.loadAnns([5])
        assert len(pickle.dumps(ours)) < 6000


def test_other_processes_map_the_same_store(cocos) -> None:
    stock, ours = cocos
    code = """
        import pickle, sys
        coco = pickle.load(sys.stdin.buffer)
        print([coco.getAnnIds(catIds=[3]), coco.loadAnns([5])[0]['bbox'], len(coco.imgs)])
    """
    code = '\n'.join(line.strip() for line in code.splitlines())
    done = subprocess.run(
        [sys.executable, '-c', code], input=pickle.dumps(ours), capture_output=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout.decode().strip().splitlines()[-1] == str(
        [stock.getAnnIds(catIds=[3]), stock.anns[5]['bbox'], len(stock.imgs)]
    )


def test_mappings_pickle_and_copy_as_what_they_are(cocos) -> None:
    stock, ours = cocos
    for attribute in ('anns', 'imgs', 'imgToAnns', 'catToImgs'):
        for make in (copy.copy, copy.deepcopy, dict, lambda d: d.copy(), lambda d: pickle.loads(pickle.dumps(d))):
            expected, got = make(getattr(stock, attribute)), make(getattr(ours, attribute))
            assert list(got) == list(expected) and exact(got) == exact(expected)
    assert json.loads(json.dumps(ours.anns)) == json.loads(json.dumps(stock.anns))
    assert json.loads(json.dumps(ours.dataset)) == json.loads(json.dumps(stock.dataset))
