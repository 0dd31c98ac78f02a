"""Datasets whose ``backend_args`` name an archive: what they read from it, what from the disk, and when it is built."""

from __future__ import annotations

import copy
import json
import os
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric
from mmengine.registry import init_default_scope

from mmshared.datasets import SharedCocoDataset
from mmshared.evaluation import SharedCOCO, SharedCocoMetric

from .oracle import difference

PIPELINE = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='Resize', scale=(32, 32)),
    dict(type='PackDetInputs'),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    init_default_scope('mmdet')
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten images with boxes; the images also as a zip file, and the annotations in another one."""
    root, rng = tmp_path / 'data', np.random.default_rng(0)
    (root / 'train2017').mkdir(parents=True)
    (root / 'annotations').mkdir()
    images, annotations = [], []
    with zipfile.ZipFile(root / 'train2017.zip', 'w') as archive:
        for i in range(10):
            name = f'{i:012}.jpg'
            cv2.imwrite(str(root / 'train2017' / name), rng.integers(0, 255, (40, 50, 3), np.uint8))
            archive.write(root / 'train2017' / name, f'train2017/{name}')
            images.append(dict(id=i, file_name=name, width=50, height=40))
            annotations.append(dict(id=i + 1, image_id=i, category_id=1, bbox=[1, 2, 10 + i, 9], area=90, iscrowd=0))
    content = dict(images=images, annotations=annotations, categories=[dict(id=1, name='person')])
    (root / 'annotations' / 'train.json').write_text(json.dumps(content))
    with zipfile.ZipFile(root / 'annotations.zip', 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.write(root / 'annotations' / 'train.json', 'annotations/train.json')
    return root


def make(kind: type, root: Path, backend_args: object, **more: object) -> CocoDataset:
    pipeline = [dict(PIPELINE[0], backend_args=backend_args), *copy.deepcopy(PIPELINE[1:])]
    return kind(
        ann_file='annotations/train.json',
        data_root=str(root),
        data_prefix=dict(img='train2017/'),
        metainfo=dict(classes=('person',)),
        pipeline=pipeline,
        backend_args=backend_args,
        **more,
    )


def the_same(ours: CocoDataset, expected: CocoDataset) -> None:
    assert len(ours) == len(expected) == 10
    for i in range(10):
        one, other = ours[i], expected[i]
        assert (one['inputs'] == other['inputs']).all()
        assert difference(one['data_samples'].metainfo, other['data_samples'].metainfo) is None
        found, wanted = one['data_samples'].gt_instances, other['data_samples'].gt_instances
        assert (found.bboxes.tensor == wanted.bboxes.tensor).all() and (found.labels == wanted.labels).all()
        assert len(found) == len(wanted) == 1


@pytest.mark.parametrize('kind', [CocoDataset, SharedCocoDataset])
def test_images_of_an_archive_and_annotations_of_the_disk(data: Path, kind: type) -> None:
    expected = make(CocoDataset, data, None)
    the_same(make(kind, data, dict(backend='record', archive=str(data / 'train2017.zip'))), expected)


def test_the_store_is_that_of_the_file_on_the_disk(data: Path, cache: Path) -> None:
    make(SharedCocoDataset, data, None)
    before = {path.name for path in cache.iterdir()}
    make(SharedCocoDataset, data, dict(backend='record', archive=str(data / 'train2017.zip')))
    added = {path.name for path in cache.iterdir()} - before
    assert len(added) == 1 and 'train2017-v' in added.pop()  # the index, and no store fetched as of a remote file


@pytest.mark.parametrize('kind', [CocoDataset, SharedCocoDataset])
def test_annotations_of_an_archive(data: Path, cache: Path, kind: type) -> None:
    expected = make(CocoDataset, data, None)
    os.unlink(data / 'annotations' / 'train.json')
    args = dict(backend='record', archive=[str(data / 'train2017.zip'), str(data / 'annotations.zip')])
    the_same(make(kind, data, args), expected)
    assert not [path for path in cache.iterdir() if path.suffix == '.json' or path.is_dir()]


def test_metrics_take_the_same_arguments(data: Path) -> None:
    args = dict(backend='record', archive=[str(data / '*.zip')])
    file = str(data / 'annotations' / 'train.json')
    os.unlink(file)
    results = []
    for metric in (CocoMetric, SharedCocoMetric):
        made = metric(ann_file=file, backend_args=args)
        made.dataset_meta = dict(classes=('person',))
        for i in range(10):
            boxes = dict(bboxes=np.array([[1, 2, 11, 11.0]]), scores=np.array([0.5]), labels=np.array([0]))
            prediction = {key: torch.as_tensor(value) for key, value in boxes.items()}
            made.process({}, [dict(img_id=i, ori_shape=(40, 50), pred_instances=prediction)])
        results.append(made.evaluate(10))
    assert results[0] == pytest.approx(results[1], abs=1e-9) and results[0]['coco/bbox_mAP'] > 0.1
    with SharedCOCO(file, backend_args=args) as coco:
        assert len(coco.getImgIds()) == 10
    with SharedCOCO(f'record://{data}/annotations.zip/annotations/train.json') as coco:
        assert len(coco.getAnnIds()) == 10


def test_an_address_is_all_it_takes(data: Path) -> None:
    expected = make(CocoDataset, data, None)
    os.unlink(data / 'annotations' / 'train.json')
    for kind in (CocoDataset, SharedCocoDataset):
        dataset = kind(
            ann_file=f'record://{data}/annotations.zip/annotations/train.json',
            data_prefix=dict(img=f'record://{data}/train2017.zip/train2017/'),
            metainfo=dict(classes=('person',)),
            pipeline=copy.deepcopy(PIPELINE),
        )
        for i in range(10):
            assert (dataset[i]['inputs'] == expected[i]['inputs']).all()
