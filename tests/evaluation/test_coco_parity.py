"""SharedCOCO against pycocotools: every method and attribute, on any file that pycocotools takes."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, Callable, List

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets.api_wrappers import COCO
from pycocotools.coco import COCO as PyCOCO

from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import small
from tests.annotations.json_text import TextWriter
from tests.datasets.coco_text import CocoText, coco_files

from .helpers import assert_same, cocos_of

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ATTRIBUTES = ['dataset', 'anns', 'cats', 'imgs', 'imgToAnns', 'catToImgs', 'img_ann_map', 'cat_img_map']


def id_arguments(ids: List[Any], rng: random.Random) -> Callable[[], Any]:
    """What makes an argument for ids, some of them in ``ids``."""
    never_read = (i for i in ids)  # it has no length, so it counts as one id
    some = [rng.choice([*ids, *ids, 1, 3, 'a', 1.0, True, None, 2**70, -1]) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
    one = rng.choice([*ids, 1, 'nowhere', 2.0, None])
    integers = [i for i in ids if isinstance(i, int) and abs(i) < 2**60] or [1]
    makers: List[Callable[[], Any]] = [
        lambda: some,
        lambda: some,
        lambda: tuple(some),
        lambda: dict.fromkeys(some),
        lambda: set(some),
        lambda: never_read,
        lambda: one,
        lambda: [one],
        lambda: np.array(integers),
        lambda: np.int64(integers[0]),
        lambda: [np.int32(integers[-1] % 2**31), np.float64(integers[0])],
        lambda: range(5),
        lambda: 'ab',
        lambda: [[1]],
    ]
    return rng.choice(makers)


def area_argument(rng: random.Random) -> Any:
    numbers = [0, 5.5, 12, 1e10, float('inf'), -1, float('nan'), 10**30, np.float32(7.25), '1', None]
    pair = [rng.choice(numbers[:6] if rng.random() < 0.8 else numbers) for _ in range(2)]
    return rng.choice([[], [], [], pair, pair, tuple(pair), [pair[0]], [0, 1e10]])


def compare(stock: COCO, ours: SharedCOCO, rng: random.Random, calls: int = 12) -> None:
    """Ask both the same, in random order; what was asked before must not matter."""
    images, annotations, categories = (
        [record.get('id') for record in stock.dataset.get(name) or []]
        for name in ('images', 'annotations', 'categories')
    )
    images = images + [a['image_id'] for a in stock.dataset.get('annotations') or []]
    categories = categories + [a.get('category_id') for a in stock.dataset.get('annotations') or []]
    categories = [c for c in categories if isinstance(c, (int, str, float, type(None)))]
    for _ in range(calls):
        image_ids, category_ids, ids = (id_arguments(known, rng) for known in (images, categories, annotations))
        area, crowd = area_argument(rng), rng.choice([None, None, 0, 1, False, True, '0', 2, 1.0])
        name = rng.choice(['getAnnIds', 'getAnnIds', 'getAnnIds', 'get_ann_ids'])
        assert_same(
            stock,
            ours,
            lambda coco: getattr(coco, name)(image_ids(), category_ids(), area, crowd),
            (name, image_ids(), category_ids(), area, crowd),
        )
        for name in ('getImgIds', 'get_img_ids'):
            assert_same(stock, ours, lambda coco: getattr(coco, name)(image_ids(), category_ids()), name)
        for name in ('loadAnns', 'load_anns'):
            assert_same(stock, ours, lambda coco: getattr(coco, name)(ids()), (name, ids()))
        for name in ('loadImgs', 'load_imgs'):
            assert_same(stock, ours, lambda coco: getattr(coco, name)(image_ids()), (name, image_ids()))
        for name in ('loadCats', 'load_cats'):
            assert_same(stock, ours, lambda coco: getattr(coco, name)(category_ids()), (name, category_ids()))
        names = rng.choice([[], 'cat', ['cat', 'dog'], ['unlisted'], 3])
        for name in ('getCatIds', 'get_cat_ids'):
            assert_same(stock, ours, lambda coco: getattr(coco, name)(names, [], category_ids()), (name, names))
            assert_same(stock, ours, lambda coco: getattr(coco, name)([], ['thing'], []), name)
        compare_keys(stock, ours, rng.choice(ATTRIBUTES), [*images, *annotations, *categories, 'x', 1.0, np.int64(3)], rng)
        if rng.random() < 0.1:
            ours.release()


def compare_keys(stock: COCO, ours: SharedCOCO, attribute: str, keys: List[Any], rng: random.Random) -> None:
    key = rng.choice(keys)
    operations: List[Callable[[Any], Any]] = [
        lambda d: len(d),
        lambda d: list(d),
        lambda d: list(d.keys()),
        lambda d: key in d,
        lambda d: key in d.keys(),
        lambda d: d.get(key, 'none'),
        lambda d: bool(d),
    ]
    if 'img' not in attribute and 'cat' not in attribute or attribute in ('imgs', 'cats'):
        operations.append(lambda d: d[key] if key in d else None)
    for i, operation in enumerate(operations):
        if attribute == 'dataset' and i in (1, 2):
            continue  # the order of the file's members is not kept
        assert_same(stock, ours, lambda coco: operation(getattr(coco, attribute)), (attribute, i, key))


def compare_whole(stock: COCO, ours: SharedCOCO) -> None:
    """All that is there."""
    for attribute in ATTRIBUTES[1:]:
        assert_same(stock, ours, lambda coco: getattr(coco, attribute), attribute)
        assert_same(stock, ours, lambda coco: list(getattr(coco, attribute).values()), attribute)
        assert_same(stock, ours, lambda coco: list(map(list, getattr(coco, attribute).items())), attribute)
    assert_same(stock, ours, lambda coco: coco.dataset, 'dataset')
    for id in itertools.islice(ours.anns, 5):
        if id == id:
            assert ours.loadAnns([id])[0] is ours.anns[id]
            assert any(a is ours.anns[id] for a in ours.imgToAnns[ours.anns[id]['image_id']])
            assert any(a is ours.anns[id] for a in ours.dataset['annotations'])


@settings(PROPERTY, max_examples=150)
@given(file=coco_files(), seed=st.integers(0, 2**32))
def test_any_annotation_file(file: CocoText, seed: int) -> None:
    text = file.encode()
    if not isinstance(json.loads(text).get('annotations', []), list):
        return
    with cocos_of(text) as (stock, ours):
        compare(stock, ours, random.Random(seed))
        ours.release()
        compare_whole(stock, ours)


@settings(PROPERTY, max_examples=80)
@given(seed=st.integers(0, 2**32))
def test_any_text(seed: int) -> None:
    with cocos_of(TextWriter(seed).file()) as (stock, ours):
        compare(stock, ours, random.Random(seed))
        ours.release()
        compare_whole(stock, ours)


def test_an_area_that_is_no_range() -> None:
    with cocos_of(json.dumps(small()).encode()) as (stock, ours):
        for image_ids in ([], [7], 7):
            assert_same(stock, ours, lambda coco, ids=image_ids: coco.getAnnIds(ids, areaRng=3), image_ids)


def test_the_public_surface_is_known() -> None:
    """A method or attribute that another release adds has to be looked at."""
    known = """
        annToMask annToRLE anns catToImgs cats createIndex dataset download getAnnIds getCatIds getImgIds imgToAnns imgs
        info loadAnns loadCats loadImgs loadNumpyAnnotations loadRes showAnns
        cat_img_map get_ann_ids get_cat_ids get_img_ids img_ann_map load_anns load_cats load_imgs
    """
    assert {name for name in dir(COCO()) if not name.startswith('_')} == set(known.split())
    assert {name for name in dir(SharedCOCO()) if not name.startswith('_')} == {*known.split(), 'release', 'from_store'}
    assert isinstance(SharedCOCO(), COCO) and isinstance(SharedCOCO(), PyCOCO)
