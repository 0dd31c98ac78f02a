"""The detection view and the category map against mmdet and pycocotools, on the same text."""

from __future__ import annotations

import copy
import json
import pickle
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationFileError, AnnotationStore, DetectionView

from .helpers import exact, pieces, small, stock, store_of
from .json_text import TextWriter

CocoDataset = pytest.importorskip('mmdet.datasets', reason='mmdet with its mmcv is the oracle here').CocoDataset
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def stock_infos(text: bytes, cat_ids: list) -> list:
    """The data infos that ``CocoDataset.load_data_list`` makes of ``text``; raises what it raises."""
    coco = stock(text)
    dataset = SimpleNamespace(
        data_prefix={'img': 'p', 'seg': 's'},
        seg_map_suffix='.png',
        return_classes=False,
        cat_ids=cat_ids,
        cat2label={cat_id: i for i, cat_id in enumerate(cat_ids)},
    )
    infos, ids = [], []
    for image_id in list(coco.imgs):
        annotations = [a['id'] for a in coco.imgToAnns.get(image_id, [])]
        ids += annotations
        image = coco.imgs[image_id]
        image['img_id'] = image_id
        infos.append(
            CocoDataset.parse_data_info(
                dataset, {'raw_img_info': image, 'raw_ann_info': [coco.anns[i] for i in annotations]}
            )
        )
    assert len(set(ids)) == len(ids)
    return infos


def assert_as_stock(text: bytes, cat_ids: list) -> None:
    try:
        expected = stock_infos(text, cat_ids)
    except Exception:
        expected = None
    with store_of(text) as store:
        assert (store.violation is None) == (expected is not None), store.violation
        if expected is None:
            return
        view = DetectionView(store, cat_ids)
        found = [view.data_info(row, 'p', 's') for row in range(len(view))]
        assert exact(found) == exact(expected)
        assert [view.labels(row) for row in range(len(view))] == [
            [i['bbox_label'] for i in info['instances']] for info in expected
        ]


@settings(PROPERTY, max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_any_text(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    pieces(monkeypatch, random.Random(seed).choice([64, 1 << 19]))
    text = ViewText(seed).file()
    if all(isinstance(json.loads(text).get(name, []), list) for name in ('images', 'annotations')):
        assert_as_stock(text, random.Random(seed).choice([[0, 1, 2, 3], [2, 0], [], [1, 1, 0]]))


class ViewText(TextWriter):
    """Boxes that mostly lie in the image, so that most annotations are kept."""

    def annotation(self, i: int) -> str:
        text = super().annotation(i)
        if self.rng.random() < 0.8:
            box = self.array(
                [self.rng.choice(['0', '1.5', '-2.0', '-0.0', '3']) for _ in range(2)]
                + [self.rng.choice(['1', '7.25', '20', '100.0', '1e1']) for _ in range(2)]
            )
            text = text[:-1] + ', "bbox": ' + box + ', "area": ' + self.rng.choice(['5', '2.5', '1e3']) + '}'
        return text


def test_an_image_given_three_times() -> None:
    data = small()
    data['images'] = [{**image, 'id': i} for i in (1, 2, 1.0, 3, True, 2) for image in data['images'][:1]]
    for annotation in data['annotations']:
        annotation['image_id'] = annotation['id'] % 3 + 1
    assert_as_stock(json.dumps(data).encode(), [3])


@settings(PROPERTY, max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_category_map(seed: int) -> None:
    text = TextWriter(seed).file()
    if not isinstance(json.loads(text).get('annotations', []), list):
        return
    expected = stock(text).catToImgs
    with store_of(text) as store:
        found = store.cat_img_map()
    assert list(found) == list(expected)
    assert [str(v) for v in found.values()] == [str(v) for v in expected.values()] or found == expected


def test_category_map_of_mixed_ids() -> None:
    text = (
        '{"images": [{"id": 1}], "categories": [], "annotations": ['
        + ','.join(
            f'{{"id": {i}, "image_id": {image}, "category_id": {category}}}'
            for i, (image, category) in enumerate(
                [
                    ('1', '2'),
                    ('1.0', '"2"'),
                    ('true', '2.0'),
                    ('"1"', '1'),
                    ('NaN', 'NaN'),
                    ('NaN', 'NaN'),
                    ('9', 'true'),
                ]
            )
        )
        + ']}'
    ).encode()
    with store_of(text) as store:
        assert repr(list(store.cat_img_map().items())) == repr(list(stock(text).catToImgs.items()))


@pytest.mark.parametrize('annotations', [1, 2000])
def test_handles_are_small_and_open_again(annotations: int) -> None:
    data = small()
    data['annotations'] = [{**data['annotations'][0], 'id': i} for i in range(annotations)]
    with store_of(data) as store:
        view = DetectionView(store, [3, 4])
        view.data_info(2, '')  # goes by way of the records, which are not part of the handle
        assert len(pickle.dumps(view)) < 1000 and len(pickle.dumps(store)) < 1000
        other = pickle.loads(pickle.dumps(view))
        assert exact(other.data_info(0, '')) == exact(view.data_info(0, ''))
        assert pickle.loads(pickle.dumps(store)).to_dict() == store.to_dict()
        for copied in (copy.copy, copy.deepcopy):
            assert copied(store) is store and copied(view) is view


CASES: Any = [
    (lambda d: d['annotations'][2].update(bbox=[1, 2, 3]), 'annotations[2]', 3, 'bbox'),
    (lambda d: d['annotations'][2].update(bbox=['x'] * 10000), 'annotations[2]', 3, 'bbox'),
    (lambda d: d['annotations'][2].update(area=None), 'annotations[2]', 3, 'area'),
    (lambda d: d['annotations'][1].pop('area'), 'annotations[1]', 2, 'area'),
    (lambda d: d['annotations'][1].pop('bbox'), 'annotations[1]', 2, 'bbox'),
    (lambda d: d['annotations'][1].pop('image_id'), 'annotations[1]', 2, 'image_id'),
    (lambda d: d['annotations'][1].pop('category_id'), 'annotations[1]', 2, 'category_id'),
    (lambda d: d['annotations'][1].update(category_id=[]), 'annotations[1]', 2, 'category_id'),
    (lambda d: d['images'][0].pop('height'), 'images[0]', 7, 'height'),
    (lambda d: d['images'][0].update(width='30'), 'images[0]', 7, 'width'),
    (lambda d: d['images'][1].update(file_name=5), 'images[1]', 'x', 'file_name'),
    (lambda d: d['images'][0].update(id={'a': 1}), 'images[0]', None, 'id'),
]


@pytest.mark.parametrize('spoil, record, key, field', CASES)
def test_an_error_names_file_record_id_and_field(spoil: Any, record: str, key: Any, field: str) -> None:
    data = small()
    spoil(data)
    try:
        with store_of(data) as store:
            error = store.violation
    except AnnotationFileError as raised:
        error = raised
    assert isinstance(error, AnnotationFileError)
    assert error.field == field and error.record.startswith(record)
    assert key is None or f'(id {key!r})' in error.record
    assert len(str(error)) < 1500
    for part in ('some/annotations.json', record, field):
        assert part in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_duplicate_annotation_ids_are_named() -> None:
    data = small()
    data['annotations'] = [{**data['annotations'][0], 'id': i % 500} for i in range(1000)]
    with store_of(data) as store:
        assert 'id 0 at annotations[0, 500]' in str(store.violation) and len(str(store.violation)) <= 1500
        assert isinstance(AnnotationStore(store.path).violation, AnnotationFileError)
