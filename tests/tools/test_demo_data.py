"""The demo's data is valid COCO, deterministic, and has what it is meant to have."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from pycocotools.coco import COCO


@pytest.fixture(scope='module')
def make_demo_data(load_tool):
    return load_tool('make_demo_data')


@pytest.fixture(scope='module')
def folder(make_demo_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp('demo')
    make_demo_data.make_split(folder, 'train', 40, 160, seed=0)
    return folder


def digest(folder):
    files = sorted(path for path in folder.rglob('*') if path.is_file())
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def test_it_is_the_same_every_time(make_demo_data, folder, tmp_path):
    make_demo_data.make_split(tmp_path, 'train', 40, 160, seed=0)
    assert digest(tmp_path) == digest(folder)


def test_pycocotools_agrees_with_the_annotations(make_demo_data, folder):
    coco = COCO(str(folder / 'annotations' / 'train.json'))
    assert {category['name'] for category in coco.loadCats(coco.getCatIds())} == set(make_demo_data.CLASSES)
    assert {annotation['category_id'] for annotation in coco.anns.values()} == {1, 2, 3, 4}
    for annotation in coco.anns.values():
        mask = coco.annToMask(annotation)
        x, y, width, height = annotation['bbox']
        rows, cols = np.nonzero(mask)
        assert abs(mask.sum() - annotation['area']) <= 0.25 * annotation['area'] + 8
        assert abs(cols.min() - x) <= 2 and abs(rows.min() - y) <= 2
        assert abs(cols.max() + 1 - x - width) <= 2 and abs(rows.max() + 1 - y - height) <= 2


def test_crowds_are_rle_and_the_rest_polygons(folder):
    document = json.loads((folder / 'annotations' / 'train.json').read_text())
    crowds = [annotation for annotation in document['annotations'] if annotation['iscrowd']]
    assert crowds and all(sum(crowd['segmentation']['counts']) == 160 * 160 for crowd in crowds)
    others = [annotation for annotation in document['annotations'] if not annotation['iscrowd']]
    assert all(isinstance(annotation['segmentation'], list) for annotation in others)
