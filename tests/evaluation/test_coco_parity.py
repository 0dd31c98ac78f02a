"""SharedCOCO against pycocotools: every method and attribute, on any file that pycocotools takes."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, List

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets.api_wrappers import COCO
from pycocotools.coco import COCO as PyCOCO

from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import small
from tests.annotations.json_text import TextWriter
from tests.datasets.coco_text import CocoText, coco_files

from .helpers import ask, assert_same, cocos_of

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
ATTRIBUTES = ['dataset', 'anns', 'cats', 'imgs', 'imgToAnns', 'catToImgs', 'img_ann_map', 'cat_img_map']


def id_argument(ids: List[Any], rng: random.Random) -> Any:
    """An argument for ids, some of them in ``ids``."""
    some = [rng.choice([*ids, *ids, 1, 3, 'a', 1.0, True, None, 2**70, -1]) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
    one = rng.choice([*ids, 1, 'nowhere', 2.0, None])
    integers = [i for i in ids if isinstance(i, int) and abs(i) < 2**60] or [1]
    return rng.choice(
        [
            *([some] * 4),
            tuple(some),
            dict.fromkeys(some),
            set(some),
            (i for i in some),  # it has no length, so it counts as one id and is not read
            one,
            [one],
            np.array(integers),
            np.int64(integers[0]),
            [np.int32(integers[-1] % 2**31), np.float64(integers[0])],
            range(5),
            'ab',
            [[1]],
        ]
    )


def area_argument(rng: random.Random) -> Any:
    numbers = [0, 5.5, 12, 1e10, float('inf'), -1, float('nan'), 10**30, np.float32(7.25), '1', None]
    pair = [rng.choice(numbers[:6] if rng.random() < 0.8 else numbers) for _ in range(2)]
    return rng.choice([[], [], [], pair, pair, tuple(pair), [pair[0]], [0, 1e10]])


def compare(stock: COCO, ours: SharedCOCO, rng: random.Random, calls: int = 12) -> None:
    """Ask both the same, in random order; what was asked before must not matter."""
    content = [stock.dataset.get(name) or [] for name in ('images', 'annotations', 'categories')]
    images, annotations, categories = ([record['id'] for record in records] for records in content)
    images += [record['image_id'] for record in content[1]]
    named = [record.get('category_id') for record in content[1]]
    categories += [c for c in named if isinstance(c, (int, str, float, type(None)))]
    for _ in range(calls):
        in_images, in_categories, ids = (id_argument(known, rng) for known in (images, categories, annotations))
        names, crowd = (
            rng.choice([[], 'cat', ['cat', 'dog'], ['unlisted'], 3]),
            rng.choice([None, None, 0, 1, False, '0']),
        )
        for methods, arguments in (
            (('getAnnIds', 'get_ann_ids'), (in_images, in_categories, area_argument(rng), crowd)),
            (('getAnnIds', 'get_ann_ids'), (in_images, [], [], rng.choice([True, 2, 1.0, None]))),
            (('getImgIds', 'get_img_ids'), (in_images, in_categories)),
            (('getImgIds', 'get_img_ids'), ([], in_categories)),
            (('loadAnns', 'load_anns'), (ids,)),
            (('loadImgs', 'load_imgs'), (in_images,)),
            (('loadCats', 'load_cats'), (in_categories,)),
            (('getCatIds', 'get_cat_ids'), (names, [], in_categories)),
            (('getCatIds', 'get_cat_ids'), ([], ['thing'], [])),
        ):
            assert_same(stock, ours, ask, rng.choice(methods), *arguments)
        keys = [*images, *annotations, *categories, 'x', 1.0, np.int64(3), 'images']
        compare_mapping(stock, ours, rng.choice(ATTRIBUTES), rng.choice(keys))
        if rng.random() < 0.1:
            ours.release()


MAPPING = {
    'len': lambda d, key: len(d),
    'list': lambda d, key: list(d),
    'keys': lambda d, key: list(d.keys()),
    'in': lambda d, key: key in d,
    'in keys': lambda d, key: key in d.keys(),  # noqa: SIM118
    'get': lambda d, key: d.get(key, 'none'),
    'look up': lambda d, key: d[key],
    'bool': lambda d, key: bool(d),
}


def compare_mapping(stock: COCO, ours: SharedCOCO, attribute: str, key: Any) -> None:
    for name, operation in MAPPING.items():
        if attribute == 'dataset' and name in ('list', 'keys'):
            continue  # the order of the file's members is not kept
        assert_same(stock, ours, lambda coco, o=operation: o(getattr(coco, attribute), key))


def compare_whole(stock: COCO, ours: SharedCOCO) -> None:
    """All that is there."""
    for attribute in ATTRIBUTES[1:]:
        assert_same(stock, ours, getattr, attribute)
        assert_same(stock, ours, lambda coco, name=attribute: list(getattr(coco, name).values()))
        assert_same(stock, ours, lambda coco, name=attribute: list(map(list, getattr(coco, name).items())))
    assert_same(stock, ours, getattr, 'dataset')
    for key in itertools.islice(ours.anns, 5):
        if key == key:
            record = ours.anns[key]
            assert ours.loadAnns([key])[0] is record
            assert any(other is record for other in ours.imgToAnns[record['image_id']])
            assert any(other is record for other in ours.dataset['annotations'])


@settings(PROPERTY, max_examples=60)
@given(file=coco_files(), seed=st.integers(0, 2**32))
def test_any_annotation_file(file: CocoText, seed: int) -> None:
    text = file.encode()
    if not isinstance(json.loads(text).get('annotations', []), list):
        return
    with cocos_of(text) as (stock, ours):
        compare(stock, ours, random.Random(seed))
        ours.release()
        compare_whole(stock, ours)


@settings(PROPERTY, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_text(seed: int) -> None:
    with cocos_of(TextWriter(seed).file()) as (stock, ours):
        compare(stock, ours, random.Random(seed))
        ours.release()
        compare_whole(stock, ours)


def test_an_area_that_is_no_range() -> None:
    with cocos_of(json.dumps(small()).encode()) as (stock, ours):
        for image_ids in ([], [7], 7):
            assert_same(stock, ours, ask, 'getAnnIds', image_ids, [], 3)


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
