"""SharedCocoDataset against CocoDataset: same file through both, equal datasets or two errors."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset

from mmshared.datasets import SharedCocoDataset

from .coco_text import ACCEPTED, CLASSES, CocoText, coco_files, dataset_options
from .oracle import attempt, compare_builds

REAL = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'data'
SETTINGS = settings(
    max_examples=250, deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)


def check(content: bytes, options: dict) -> None:
    """Fail unless both classes make the same of ``content``, and leave nothing in the cache where they reject it."""
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder) / 'annotations.json', Path(folder) / 'cache'
        file.write_bytes(content)
        stock = attempt(lambda: CocoDataset(ann_file=str(file), **options))
        ours = attempt(lambda: SharedCocoDataset(ann_file=str(file), cache_dir=str(cache), **options))
        found = compare_builds(stock, ours, file)
        assert found is None, found


@given(coco_files(), dataset_options())
@SETTINGS
def test_files_stock_accepts(file, options):
    check(file.encode(), options)


@given(coco_files(rejected=True), dataset_options())
@settings(SETTINGS, max_examples=100)
def test_files_stock_mostly_rejects(file, options):
    check(file.encode(), options)


@given(
    coco_files(), st.integers(0, 2**16), st.sampled_from([b'', b'\xff', b'"', b'{', b']', b',', b'\x00', b'9' * 400])
)
@settings(SETTINGS, max_examples=100)
def test_files_with_one_place_damaged(file, place, damage):
    content = file.encode()
    place %= len(content)
    options = {'metainfo': {'classes': CLASSES}, 'data_prefix': {'img': ''}, 'serialize_data': False}
    check(content[:place] + damage + content[place + 1 :], options)


@pytest.mark.parametrize('feature', ACCEPTED)
def test_every_peculiarity_by_itself(feature):
    for seed in range(3):
        content = CocoText({feature}, 4, 12, seed).encode()
        for serialize in (True, False):
            check(content, {'metainfo': {'classes': CLASSES}, 'data_prefix': {'img': 'a'}, 'serialize_data': serialize})


@pytest.mark.parametrize(
    'content',
    [
        '{"images": {}, "annotations": {}, "categories": {}}',
        '{"images": [], "annotations": "", "categories": []}',
        '{"categories": []}',
        '{}',
        '[]',
        'null',
        '3',
        '"x"',
        '{"images": null, "categories": []}',
        '{"images": 3, "categories": []}',
        '{"images": [], "annotations": [], "categories": null}',
        '{"images": [5], "categories": []}',
        '{"images": [{"id": [1]}], "categories": []}',
        '{"images": [{"id": 1}], "categories": []}',
        '{"images": [], "annotations": [{"id": 1, "image_id": 1}], "categories": []}',
        '{"images": [], "annotations": [{"id": 1, "image_id": 1, "category_id": {}}], "categories": []}',
        '{"images": [], "annotations": [{"id": 1, "image_id": 1, "category_id": 1}], "categories": []}',
        '{"images": [{"id": 1, "file_name": "a", "height": null, "width": null}], "annotations": [], "categories": []}',
        '{"images": [{"id": 1, "file_name": "a", "height": "4", "width": "x"}], "annotations": [], "categories": []}',
        '{"images": [{"id": 1, "file_name": "", "height": 4, "width": 5}], "categories": [{"id": 1, "name": ["cat"]}]}',
        '{"images": [{"id": 1, "file_name": "a", "height": 4, "width": 5}], "categories": [{"id": {}, "name": "cat"}]}',
        '{"images": [{"id": 1, "file_name": null, "height": 4, "width": 5}], "categories": []}',
    ],
)
def test_odd_shapes_of_a_file(content):
    options = {'metainfo': {'classes': ('cat',)}, 'data_prefix': {'img': 'a'}, 'serialize_data': False}
    check(content.encode(), options)
    check(content.encode(), {**options, 'filter_cfg': {'filter_empty_gt': True, 'min_size': 2}})
    check(content.encode(), {**options, 'serialize_data': True})


@pytest.mark.parametrize('split', ['train', 'val'])
@pytest.mark.parametrize('filter_cfg', [None, {'filter_empty_gt': True, 'min_size': 32}])
@pytest.mark.parametrize('serialize', [True, False])
def test_real_coco_images(split, filter_cfg, serialize, tmp_path):
    folder = REAL / 'coco_tiny'
    if not folder.exists():
        pytest.skip('../shared/data/coco_tiny is missing: this test compares both classes on real annotations')
    options = {
        'ann_file': f'annotations/instances_{split}2017.json',
        'data_root': str(folder),
        'data_prefix': {'img': f'{split}2017/'},
        'filter_cfg': filter_cfg,
        'serialize_data': serialize,
    }
    stock = attempt(lambda: CocoDataset(**options))
    ours = attempt(lambda: SharedCocoDataset(**options, cache_dir=str(tmp_path)))
    assert len(stock) > 70
    assert compare_builds(stock, ours, options['ann_file']) is None


def test_taco_is_rejected_by_both_and_ours_names_the_repeated_ids(tmp_path):
    file = REAL / 'taco' / 'annotations.json'
    if not file.exists():
        pytest.skip('../shared/data/taco is missing: a real file that repeats annotation ids')
    options = {'ann_file': str(file), 'metainfo': {'classes': ('Can', 'Bottle')}, 'data_prefix': {'img': ''}}
    stock = attempt(lambda: CocoDataset(**options))
    ours = attempt(lambda: SharedCocoDataset(**options, cache_dir=str(tmp_path)))
    assert isinstance(stock, AssertionError)
    assert isinstance(ours, ValueError)
    assert '309' in str(ours) and '4040' in str(ours) and str(file.resolve()) in str(ours)


def test_taco_without_the_repeated_ids_is_equal(tmp_path):
    import json

    source = REAL / 'taco' / 'annotations.json'
    if not source.exists():
        pytest.skip('../shared/data/taco is missing: real polygons of phone photos')
    content = json.loads(source.read_text(encoding='utf-8'))
    content['annotations'] = list({a['id']: a for a in content['annotations']}.values())
    file = tmp_path / 'taco.json'
    file.write_text(json.dumps(content), encoding='utf-8')
    options = {
        'ann_file': str(file),
        'metainfo': {'classes': tuple(c['name'] for c in content['categories'])},
        'data_prefix': {'img': 'x'},
        'filter_cfg': {'filter_empty_gt': True},
    }
    stock = attempt(lambda: CocoDataset(**options))
    ours = attempt(lambda: SharedCocoDataset(**options, cache_dir=str(tmp_path)))
    assert len(stock) > 1000
    assert compare_builds(stock, ours, file) is None
