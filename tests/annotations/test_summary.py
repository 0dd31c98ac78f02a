"""What an annotation file holds and what in it bites: against a recount in plain Python, and against stock itself."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationStore
from mmshared.annotations.parsing.detection import is_kept
from mmshared.annotations.summary import Level, Oddity, find_oddities, overview
from mmshared.annotations.summary import blocks as blocks_module
from mmshared.annotations.summary.oddities import CROWDED, EXAMPLES, EXTREMELY_CROWDED, SMALL_IMAGE

from ..datasets.coco_text import ACCEPTED, CocoText
from .helpers import build


def number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def kind_of(annotation: Dict[str, Any]) -> str:
    if 'segmentation' not in annotation:
        return 'missing'
    value = annotation['segmentation']
    if value is None:
        return 'null'
    if not value:
        return 'empty'
    if isinstance(value, list):
        return 'polygons'
    if not isinstance(value, dict) or value.get('size') is None:
        return 'other'
    return {str: 'rle_string', list: 'rle_list'}.get(type(value.get('counts')), 'other')


class Recount:
    """The summary of a parsed file, record by record."""

    def __init__(self, data: Dict[str, Any]) -> None:
        self.annotations: List[dict] = data.get('annotations') or []
        self.images: Dict[Any, dict] = {image['id']: image for image in data.get('images') or []}
        self.repeated_images = [
            i for i, n in Counter(image['id'] for image in data.get('images') or []).items() if n > 1
        ]
        self.categories: List[dict] = data.get('categories') or []
        self.found: Counter = Counter()
        self.kept_in: Counter = Counter()
        self.in_image: Counter = Counter()
        self.of_category: Counter = Counter()
        self.kinds: Counter = Counter()
        self.crowd = self.ignored = self.kept = 0
        self._seen: set = set()
        for annotation in self.annotations:
            self._count(annotation)
        self._count_images()

    def _count(self, annotation: Dict[str, Any]) -> None:
        image = self.images.get(annotation['image_id'])
        kept = image is not None and self._is_kept(annotation, image)
        kind = kind_of(annotation)
        self.kinds[kind] += 1
        self.kept += kept
        self.crowd += bool(annotation.get('iscrowd'))
        self.ignored += bool(annotation.get('ignore'))
        if image is not None:
            self.in_image[annotation['image_id']] += 1
            self.of_category[annotation['category_id']] += 1
            self.kept_in[annotation['image_id']] += kept
        box = annotation.get('bbox')
        box = [number(v) for v in box] if isinstance(box, list) and len(box) == 4 else [math.nan] * 4
        area = number(annotation.get('area'))
        x, y, w, h = box
        width, height = (number(image.get(k)) if image else math.nan for k in ('width', 'height'))
        outside = x >= width or y >= height or x + w <= 0 or y + h <= 0
        polygons = annotation['segmentation'] if kind == 'polygons' else []
        drawable = any(isinstance(p, list) and len(p) >= 6 and len(p) % 2 == 0 for p in polygons)
        key = annotation['id']
        self.found.update(
            {
                'no_iscrowd': 'iscrowd' not in annotation,
                'no_mask': kept and kind in ('missing', 'null', 'empty'),
                'bad_mask': kept and kind == 'other',
                'not_finite': not all(map(math.isfinite, (*box, area))),
                'zero_area': area <= 0,
                'small_box': w < 1 or h < 1,
                'outside': outside and w >= 1 and h >= 1,
                'short_polygon': kept and kind == 'polygons' and not drawable,
                'rle_list': kept and kind == 'rle_list',
                'rle': kept and kind == 'rle_string',
                'zero_id': key == 0,
                'text_id': type(key) is not int or not -(2**63) <= key < 2**63,
                'text_image_id': type(annotation['image_id']) is not int
                or not -(2**63) <= annotation['image_id'] < 2**63,
                'repeated_id': key in self._seen,
                'unknown_image': image is None,
                'unknown_category': annotation['category_id'] not in [c['id'] for c in self.categories],
            }
        )
        self._seen.add(key)

    @staticmethod
    def _is_kept(annotation: Dict[str, Any], image: Dict[str, Any]) -> bool:
        try:
            return is_kept(annotation, image['width'], image['height'])
        except (TypeError, KeyError, ValueError):
            return False

    def _count_images(self) -> None:
        for key, image in self.images.items():
            sides = [number(image.get(k)) for k in ('width', 'height')]
            self.found.update(
                {
                    'empty_image': not self.in_image[key],
                    'nothing_left': self.in_image[key] > 0 and not self.kept_in[key],
                    'small_image': not any(map(math.isnan, sides)) and min(sides) < SMALL_IMAGE,
                    'crowded': self.in_image[key] > CROWDED,
                    'extremely_crowded': self.in_image[key] > EXTREMELY_CROWDED,
                }
            )
        self.found['repeated_image_id'] = len(self.repeated_images)
        self.found['unused_category'] = sum(not self.of_category[c['id']] for c in self.categories)


def check(text: bytes, folder: Path) -> None:
    data = json.loads(text)
    build(text, folder / 'store')
    store, expected = AnnotationStore(folder / 'store'), Recount(data)
    found = overview(store)
    per_image = [expected.in_image[key] for key in expected.images]
    assert (found.images, found.annotations) == (len(expected.images), len(expected.annotations))
    assert (found.kept, found.crowd, found.ignored) == (expected.kept, expected.crowd, expected.ignored)
    assert found.segmentation == {kind: n for kind, n in expected.kinds.items() if n}
    assert [(key, count) for key, _, count in found.categories] == [
        (c['id'], expected.of_category[c['id']]) for c in expected.categories
    ]
    if per_image:
        assert found.per_image == pytest.approx(
            {'min': min(per_image), 'max': max(per_image), 'median': np.median(per_image), 'mean': np.mean(per_image)}
        )
    assert sum(n for _, _, n in found.histogram) == len(per_image)
    for low, high, n in found.histogram:
        assert n == sum(low <= count <= high for count in per_image)
    counts = {oddity.name: oddity.count for oddity in find_oddities(store)}
    names = set(Recount({}).found) | set(expected.found)
    assert {n: c for n, c in counts.items() if n in names} == {n: int(c) for n, c in expected.found.items() if c}


@settings(deadline=None, max_examples=60)
@given(st.sets(st.sampled_from(ACCEPTED), max_size=4), st.integers(0, 6), st.integers(0, 30), st.integers(0, 10**6))
def test_generated_files(tmp_path_factory, features, images, annotations, seed):
    folder = tmp_path_factory.getbasetemp()
    check(CocoText(features, images, annotations, seed).encode(), folder)


def test_in_blocks(tmp_path, monkeypatch):
    """What is first, and where it is, does not depend on how many annotations are looked at at a time."""
    text = CocoText({'unknown_image', 'odd_mask', 'odd_numbers'}, 5, 60, 7).encode()
    build(text, tmp_path / 'store')
    store = AnnotationStore(tmp_path / 'store')
    expected = overview(store), find_oddities(store)
    monkeypatch.setattr(blocks_module, '_BLOCK', 7)
    assert (overview(store), find_oddities(store)) == expected
    check(text, tmp_path)


# ---- one by one
def clean() -> Dict[str, Any]:
    """A file with nothing odd in it."""
    return {
        'info': {},
        'images': [{'id': i, 'file_name': f'{i}.jpg', 'height': 100, 'width': 200} for i in (1, 2)],
        'annotations': [
            {
                'id': 10 + i,
                'image_id': 1 + i % 2,
                'category_id': 1 + i % 2,
                'bbox': [5, 6, 20, 30],
                'area': 300.5,
                'iscrowd': 0,
                'segmentation': [[5, 6, 25, 6, 25, 36]],
            }
            for i in range(4)
        ],
        'categories': [{'id': 1, 'name': 'cat'}, {'id': 2, 'name': 'dog'}],
    }


def oddities_of(data: Any, tmp_path: Path) -> Dict[str, Oddity]:
    build(json.dumps(data).encode(), tmp_path / 'store')
    return {oddity.name: oddity for oddity in find_oddities(AnnotationStore(tmp_path / 'store'))}


def test_a_clean_file(tmp_path):
    assert oddities_of(clean(), tmp_path) == {}


SECOND = ('annotations[1] (id 11)',)
ANNOTATION_CASES = {
    'no_iscrowd': ({'iscrowd': ...}, Level.ERROR),
    'no_mask': ({'segmentation': ...}, Level.ERROR),
    'bad_mask': ({'segmentation': {'counts': 5, 'size': [100, 200]}}, Level.ERROR),
    'not_finite': ({'bbox': [math.nan, 6, 20, 30]}, Level.ERROR),
    'zero_area': ({'area': 0}, Level.WARNING),
    'small_box': ({'bbox': [5, 6, 0.5, 30]}, Level.WARNING),
    'outside': ({'bbox': [200, 6, 20, 30]}, Level.WARNING),
    'short_polygon': ({'segmentation': [[5, 6, 25, 36]]}, Level.WARNING),
    'rle_list': ({'segmentation': {'counts': [0, 20000], 'size': [100, 200]}}, Level.WARNING),
    'rle': ({'segmentation': {'counts': 'PPYo1', 'size': [100, 200]}}, Level.NOTE),
    'unknown_image': ({'image_id': 7}, Level.WARNING),
    'unknown_category': ({'category_id': 7}, Level.WARNING),
}


@pytest.mark.parametrize('name', ANNOTATION_CASES)
def test_an_odd_annotation(name, tmp_path):
    changes, level = ANNOTATION_CASES[name]
    data = clean()
    data['annotations'][1].update(changes)
    data['annotations'][1] = {k: v for k, v in data['annotations'][1].items() if v is not ...}
    oddity = oddities_of(data, tmp_path)[name]
    assert (oddity.level, oddity.count, oddity.examples) == (level, 1, SECOND)
    assert oddity.bites and len(oddity.bites) < 300


@pytest.mark.parametrize('key, name', [(0, 'zero_id'), ('a', 'text_id'), (2**70, 'text_id'), (1.5, 'text_id')])
def test_an_odd_annotation_id(key, name, tmp_path):
    data = clean()
    data['annotations'][1]['id'] = key
    oddity = oddities_of(data, tmp_path)[name]
    assert oddity.examples == (f'annotations[1] (id {key!r})',)


def test_repeated_annotation_ids(tmp_path):
    data = clean()
    data['annotations'][2]['id'] = 11
    found = oddities_of(data, tmp_path)
    assert found['repeated_id'].examples == ('annotations[2] (id 11)',) and found['repeated_id'].count == 1
    assert found['refused'].level is Level.ERROR and 'not unique' in found['refused'].bites


def test_what_only_lvis_takes_is_a_note(tmp_path):
    data = clean()
    for image in data['images']:
        image['coco_url'] = image.pop('file_name')
    found = oddities_of(data, tmp_path)['refused']
    assert found.level is Level.NOTE and 'LVIS' in found.bites and found.examples[0].startswith('images[0]')
    del data['images'][0]['coco_url']
    assert oddities_of(data, tmp_path)['refused'].level is Level.ERROR


FILE_CASES = {
    'no_info': (lambda d: d.pop('info'), Level.NOTE, ()),
    'no_categories': (lambda d: d.pop('categories'), Level.ERROR, ()),
    'no_images': (lambda d: d.pop('images'), Level.ERROR, ()),
    'no_annotations': (lambda d: d.pop('annotations'), Level.NOTE, ()),
    'empty_image': (
        lambda d: d['images'].append({**d['images'][0], 'id': 3}),
        Level.NOTE,
        ('images[2] (id 3)',),
    ),
    'repeated_image_id': (lambda d: d['images'].append(dict(d['images'][0])), Level.WARNING, ('images[2] (id 1)',)),
    'small_image': (lambda d: d['images'][1].update(width=31), Level.NOTE, ('images[1] (id 2)',)),
    'nothing_left': (
        lambda d: [a.update(ignore=1) for a in d['annotations'] if a['image_id'] == 2],
        Level.WARNING,
        ('images[1] (id 2)',),
    ),
    'repeated_category_id': (
        lambda d: d['categories'].append({'id': 1, 'name': 'x'}),
        Level.ERROR,
        ("categories[2] (id 1, 'x')",),
    ),
    'repeated_category_name': (
        lambda d: d['categories'].append({'id': 3, 'name': 'cat'}),
        Level.ERROR,
        ("categories[2] (id 3, 'cat')",),
    ),
    'unnamed_category': (lambda d: d['categories'][1].pop('name'), Level.ERROR, ('categories[1] (id 2, None)',)),
    'text_category_id': (
        lambda d: d['categories'].append({'id': 'c', 'name': 'x'}),
        Level.NOTE,
        ("categories[2] (id 'c', 'x')",),
    ),
    'unused_category': (
        lambda d: d['categories'].append({'id': 9, 'name': 'x'}),
        Level.NOTE,
        ("categories[2] (id 9, 'x')",),
    ),
}


@pytest.mark.parametrize('name', FILE_CASES)
def test_an_odd_file(name, tmp_path):
    change, level, examples = FILE_CASES[name]
    data = clean()
    change(data)
    oddity = oddities_of(data, tmp_path)[name]
    assert (oddity.level, oddity.count, oddity.examples) == (level, 1, examples)


def test_crowded_images(tmp_path):
    data = clean()
    template = data['annotations'][0]
    data['annotations'] += [{**template, 'id': 100 + i} for i in range(EXTREMELY_CROWDED)]
    found = oddities_of(data, tmp_path)
    for name in ('crowded', 'extremely_crowded'):
        assert found[name].count == 1 and found[name].examples == ('images[0] (id 1)',)
    masks = (EXTREMELY_CROWDED + 2) * 100 * 200 / 1e9
    assert f'{masks:.1f} GB' in found['extremely_crowded'].bites


def test_a_file_of_boxes_only_is_fine(tmp_path):
    data = clean()
    for annotation in data['annotations']:
        del annotation['segmentation']
    found = oddities_of(data, tmp_path)
    assert found['no_mask'].level is Level.NOTE and found['no_mask'].count == 4


def test_the_first_few_in_order_of_the_file(tmp_path):
    data = clean()
    template = data['annotations'].pop()
    data['annotations'] += [
        {**template, 'id': 100 + i, 'image_id': 2 - i % 2, 'area': 0, 'iscrowd': 1} for i in range(20)
    ]
    oddity = oddities_of(data, tmp_path)['zero_area']
    assert oddity.count == 20
    assert oddity.examples == tuple(f'annotations[{3 + i}] (id {100 + i})' for i in range(EXAMPLES))


def test_errors_come_first(tmp_path):
    data = clean()
    del data['info']
    data['annotations'][1].update(area=0)
    del data['annotations'][2]['iscrowd']
    levels = [oddity.level for oddity in oddities_of(data, tmp_path).values()]
    assert levels == sorted(levels, key=list(Level).index) and len(set(levels)) == 3


def test_hostile_ids_are_cut(tmp_path):
    data = clean()
    data['annotations'][1]['id'] = 'x' * 10**6
    data['categories'].append({'id': 'y' * 10**6, 'name': 'z' * 10**6})
    for oddity in oddities_of(data, tmp_path).values():
        assert all(len(example) < 200 for example in oddity.examples)


@pytest.mark.parametrize(
    'images, annotations', [([], []), ([{'id': 1, 'file_name': 'a', 'height': 1, 'width': 1}], [])]
)
def test_empty_files(images, annotations, tmp_path):
    check(json.dumps({'images': images, 'annotations': annotations, 'categories': []}).encode(), tmp_path)
    check(json.dumps({'images': images, 'categories': []}).encode(), tmp_path)


# ---- are the consequences true?
def evaluate(data: Dict[str, Any], results: Optional[List[dict]] = None) -> float:
    """pycocotools' box AP of perfect ``results`` for ``data``."""
    import contextlib
    import io

    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = json.loads(json.dumps(data))
        coco.createIndex()
        results = results or [
            {'image_id': a['image_id'], 'category_id': a['category_id'], 'bbox': a['bbox'], 'score': 0.9}
            for a in data['annotations']
        ]
        evaluation = COCOeval(coco, coco.loadRes(json.loads(json.dumps(results))), 'bbox')
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def apart() -> Dict[str, Any]:
    """A clean file whose boxes do not overlap."""
    data = clean()
    for i, annotation in enumerate(data['annotations']):
        annotation['bbox'] = [5 + 40 * i, 6, 20, 30]
    return data


def test_evaluation_of_a_clean_file():
    assert evaluate(apart()) == 1.0


def test_evaluation_without_iscrowd_fails():
    data = apart()
    del data['annotations'][1]['iscrowd']
    with pytest.raises(KeyError, match='iscrowd'):
        evaluate(data)


def test_evaluation_of_text_ids_fails():
    data = apart()
    data['annotations'][1]['id'] = 'a'
    with pytest.raises(ValueError, match='could not convert'):
        evaluate(data)


def test_evaluation_of_id_0_is_lower():
    data = apart()
    data['annotations'][1]['id'] = 0
    assert evaluate(data) < 1.0


def test_evaluation_expects_what_training_drops():
    data = apart()
    data['annotations'][1].update(area=0)
    results = [
        {'image_id': a['image_id'], 'category_id': a['category_id'], 'bbox': a['bbox'], 'score': 0.9}
        for a in data['annotations']
        if a['area']
    ]
    assert evaluate(data, results) < 1.0


@pytest.fixture
def load(tmp_path):
    """A function: the first image of ``data`` through stock's dataset and ``LoadAnnotations``."""
    from mmdet.datasets import CocoDataset
    from mmdet.datasets.transforms import LoadAnnotations

    def load(data, poly2mask=True, classes=('cat', 'dog')):
        path = tmp_path / 'a.json'
        path.write_text(json.dumps(data))
        dataset = CocoDataset(ann_file=str(path), metainfo={'classes': classes}, data_prefix={'img': ''})
        info = dataset.get_data_info(0)
        info['ori_shape'] = info['height'], info['width']
        return LoadAnnotations(with_bbox=True, with_mask=True, poly2mask=poly2mask)(info)

    return load


def test_loading_masks_that_are_missing_fails(load):
    for value in (..., None, []):
        data = clean()
        data['annotations'][0]['segmentation'] = value
        if value is ...:
            del data['annotations'][0]['segmentation']
        with pytest.raises(KeyError, match='mask'):
            load(data)


@pytest.mark.parametrize(
    'segmentation, poly2mask',
    [
        ([[5, 6, 25, 36]], False),
        ({'counts': 'PPYo1', 'size': [100, 200]}, False),
        ({'counts': [0, 20000], 'size': [100, 200]}, False),
    ],
)
def test_masks_that_are_ignored(load, segmentation, poly2mask):
    data = clean()
    data['annotations'][0]['segmentation'] = segmentation
    assert load(data, poly2mask)['gt_ignore_flags'].tolist() == [True, False]
    assert load(clean(), poly2mask)['gt_ignore_flags'].tolist() == [False, False]


def test_a_repeated_category_name_shifts_labels(load):
    data = clean()
    data['categories'].insert(1, {'id': 3, 'name': 'cat'})
    for annotation in data['annotations']:
        annotation['category_id'] = 2
    assert load(data)['gt_bboxes_labels'].tolist() == [2, 2]  # of two classes


def test_what_mmdet_drops(load):
    for name in ('zero_area', 'small_box', 'outside', 'unknown_category'):
        data = clean()
        data['annotations'][0].update(ANNOTATION_CASES[name][0])
        assert len(load(data)['gt_bboxes_labels']) == 1
