"""The oracle harness itself: it sees small differences, and the generated files exercise both sides of stock."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from mmdet.datasets import CocoDataset

from .coco_text import ACCEPTED, CLASSES, REJECTED, CocoText
from .oracle import attempt, compare_builds, compare_datasets, difference


@pytest.mark.parametrize(
    'a, b',
    [
        (0.0, -0.0),
        (0, 0.0),
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        ({'a': 1, 'b': 2}, {'b': 2, 'a': 1}),
        ('a', 'b'),
        ([1], [1, 2]),
        ({'a': [{'b': 0.1}]}, {'a': [{'b': 0.1 + 2**-56}]}),
        (None, False),
        (float('nan'), 0.0),
        ({1: 0}, {1.0: 0}),
    ],
)
def test_difference_is_seen(a, b):
    assert difference(a, b)
    assert difference(a, a) is None


def build(path, **options):
    options = {'metainfo': {'classes': CLASSES}, 'data_prefix': {'img': 'p'}, 'serialize_data': False, **options}
    return attempt(lambda: CocoDataset(ann_file=str(path), **options))


def test_two_datasets_that_differ_are_told_apart(tmp_path):
    path = tmp_path / 'a.json'
    path.write_bytes(CocoText(set(), 5, 12, seed=3).encode())
    assert compare_datasets(build(path), build(path)) is None
    assert compare_datasets(build(path), build(path, data_prefix={'img': 'q'}))
    assert compare_datasets(build(path), build(path, indices=[1, 0, 2, 3, 4]))
    assert compare_builds(build(path), build(tmp_path / 'missing.json'), path)
    assert compare_builds(build(tmp_path / 'missing.json'), build(path), path)


@pytest.mark.parametrize('feature', ACCEPTED)
def test_stock_loads_what_is_meant_to_be_accepted(feature, tmp_path):
    """Else 'both raise' would be all that the parity tests compare."""
    path = tmp_path / 'a.json'
    outcomes = Counter()
    for seed in range(12):
        path.write_bytes(CocoText({feature}, 4, 12, seed).encode())
        outcomes[type(build(path)).__name__] += 1
    assert outcomes['CocoDataset'] >= 9, outcomes


@pytest.mark.parametrize('feature', REJECTED)
def test_stock_rejects_what_is_meant_to_be_rejected(feature, tmp_path):
    path = tmp_path / 'a.json'
    outcomes = Counter()
    for seed in range(12):
        path.write_bytes(CocoText({feature}, 4, 12, seed).encode())
        outcomes[type(build(path)).__name__] += 1
    assert outcomes['CocoDataset'] <= 3, outcomes


def test_files_are_valid_json():
    rng = random.Random(0)
    for seed in range(100):
        features = set(rng.sample(ACCEPTED, 6))
        assert isinstance(json.loads(CocoText(features, 4, 9, seed).encode().decode('utf-8')), dict)
