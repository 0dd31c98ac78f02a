"""SharedCOCOPanoptic against mmdet's COCOPanoptic on the same files."""

from __future__ import annotations

import copy
import json
import pickle
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdet.datasets.api_wrappers import COCOPanoptic

from mmshared.annotations import AnnotationFileError
from mmshared.annotations.panoptic import PanopticStore, open_panoptic
from mmshared.evaluation.panoptic_api import SharedCOCOPanoptic

CATEGORIES = [{'id': 3, 'name': 'sky', 'isthing': 0}, {'id': 1, 'name': 'dog', 'isthing': 1}]
SEGMENT = {'id': 7, 'category_id': 1}
_ids = st.one_of(st.integers(0, 5), st.sampled_from(['a', 'b', 'é', 1.5]))
_segments = st.lists(
    st.fixed_dictionaries(
        {
            'id': st.integers(0, 1 << 24),
            'category_id': st.sampled_from([1, 3]),
            'area': st.integers(0, 999),
            'bbox': st.lists(st.floats(0, 99, width=32), min_size=4, max_size=4),
            'iscrowd': st.integers(0, 1),
        },
        optional={'note': st.text()},
    ),
    max_size=4,
)
_files = st.fixed_dictionaries(
    {
        'images': st.lists(
            st.fixed_dictionaries(
                {'id': _ids, 'file_name': st.sampled_from(['x.jpg', 'y.png', 'z.jpg.jpg']), 'height': st.just(3)}
            ),
            max_size=6,
        ),
        'annotations': st.lists(
            st.fixed_dictionaries({'image_id': _ids, 'segments_info': _segments}, optional={'file_name': st.text()}),
            max_size=9,
        ),
        'categories': st.permutations(CATEGORIES),
    },
    optional={'info': st.just({'year': 2017})},
)


def both(folder: Path, content: dict) -> tuple:
    path = folder / 'panoptic.json'
    path.write_text(json.dumps(content))
    return COCOPanoptic(str(path)), SharedCOCOPanoptic(open_panoptic(path, str(folder / 'cache')))


@given(_files)
def test_equals_stock(tmp_path_factory: pytest.TempPathFactory, content: dict) -> None:
    stock, ours = both(tmp_path_factory.mktemp('files'), content)
    assert list(stock.imgToAnns.items()) == list(ours.imgToAnns.items())
    assert list(ours.img_ann_map) == list(stock.img_ann_map) and len(ours.imgToAnns) == len(stock.imgToAnns)
    for image_id in [*stock.imgs, 'nowhere']:
        assert (image_id in ours.imgToAnns) == (image_id in stock.imgToAnns)
        assert ours.imgToAnns.get(image_id) == stock.imgToAnns.get(image_id)
        assert ours.imgToAnns[image_id] == copy.copy(stock.imgToAnns)[image_id]
    assert list(ours.cats.items()) == list(stock.cats.items())
    assert list(ours.imgs.items()) == list(stock.imgs.items())
    assert ours.get_img_ids() == stock.get_img_ids() and ours.get_cat_ids() == stock.get_cat_ids()
    assert ours.get_cat_ids(cat_names=['dog', 'cat']) == stock.get_cat_ids(cat_names=['dog', 'cat'])
    assert ours.load_cats([1]) == stock.load_cats([1])
    by_image = defaultdict(list)
    for segments in stock.imgToAnns.values():
        for segment in segments:
            by_image[segment['id']].append(segment)
    assert ours.anns == by_image  # stock's lists are in order of the file, ours by image
    assert {k: sorted(map(str, v)) for k, v in ours.catToImgs.items()} == {
        k: sorted(map(str, v)) for k, v in stock.catToImgs.items()
    }


def test_segments_are_the_callers_own(tmp_path: Path) -> None:
    segments = [{'id': 7, 'category_id': 1, 'area': 2}]
    content = {'images': [], 'annotations': [{'image_id': 4, 'segments_info': segments}], 'categories': CATEGORIES}
    _, ours = both(tmp_path, content)
    ours.imgToAnns[4][0]['area'] = 'changed'
    assert ours.imgToAnns[4] == [{'id': 7, 'category_id': 1, 'area': 2, 'image_id': 4}]


def test_pickles_to_the_path(tmp_path: Path) -> None:
    content = {
        'images': [{'id': i, 'file_name': 'a.jpg'} for i in range(500)],
        'annotations': [{'image_id': i, 'segments_info': [{'id': i, 'category_id': 1}] * 9} for i in range(500)],
        'categories': CATEGORIES,
    }
    stock, ours = both(tmp_path, content)
    pickled = pickle.dumps(ours)
    assert len(pickled) < 500
    assert pickle.loads(pickled).imgToAnns[499] == stock.imgToAnns[499]


def test_annotation_stores_of_the_same_file_are_others(tmp_path: Path) -> None:
    """A file without segments is a COCO file too: one cache holds the stores of both kinds."""
    from mmshared.annotations import open_store

    path, cache = tmp_path / 'a.json', str(tmp_path / 'cache')
    path.write_text(json.dumps({'images': [], 'annotations': [], 'categories': CATEGORIES}))
    first, second = open_panoptic(path, cache), open_store(path, cache, refuse=False)
    assert first.path != second.path
    assert open_panoptic(path, cache).path == first.path and open_store(path, cache, refuse=False).path == second.path


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        ({'annotations': [{'segments_info': [SEGMENT]}]}, "annotations[0], field 'image_id': is missing"),
        ({'annotations': [{'image_id': 1}]}, "annotations[0], field 'segments_info': is missing"),
        ({'annotations': [{'image_id': 1, 'segments_info': 3}]}, "'segments_info': is 3, should be a list"),
        ({'annotations': [{'image_id': [], 'segments_info': [SEGMENT]}]}, "'image_id': is [], cannot serve as a key"),
        (
            {'annotations': [{'image_id': 1, 'segments_info': [{'category_id': 1}]}]},
            "annotations[0] segments_info[0], field 'id': is missing",
        ),
        ({'images': [{'id': 1}]}, "images[0], field 'file_name': is missing"),
        ({'images': 3}, 'images: is 3, should be a list of objects'),
        ({'categories': [{'name': 'dog'}]}, "categories[0], field 'id': is missing"),
    ],
    ids=['image_id', 'segments', 'no-list', 'no-key', 'segment', 'image', 'images', 'category'],
)
def test_errors_say_where(tmp_path: Path, content: dict, said: str) -> None:
    path = tmp_path / 'bad.json'
    path.write_text(json.dumps({'images': [], 'annotations': [], 'categories': CATEGORIES, **content}))
    with pytest.raises((KeyError, TypeError, AttributeError)):
        COCOPanoptic(str(path))
    with pytest.raises(AnnotationFileError) as error:
        open_panoptic(path, str(tmp_path / 'cache'))
    assert str(path) in str(error.value) and said in str(error.value)


def test_without_categories(tmp_path: Path) -> None:
    path = tmp_path / 'a.json'
    path.write_text(json.dumps({'images': [], 'annotations': []}))
    with pytest.raises(AnnotationFileError, match='has no "categories"'):
        SharedCOCOPanoptic(open_panoptic(path, str(tmp_path / 'cache')))


def test_damaged_stores_are_built_anew(tmp_path: Path) -> None:
    content = {'images': [], 'annotations': [{'image_id': 4, 'segments_info': [{'id': 7, 'category_id': 1}]}]}
    path, cache = tmp_path / 'a.json', str(tmp_path / 'cache')
    path.write_text(json.dumps({**content, 'categories': CATEGORIES}))
    store = Path(open_panoptic(path, cache).path)
    data = store.read_bytes()
    store.write_bytes(data[: len(data) // 2])
    assert open_panoptic(path, cache).segments(4) == [{'id': 7, 'category_id': 1, 'image_id': 4}]
    assert PanopticStore(store).image_ids == [4]
