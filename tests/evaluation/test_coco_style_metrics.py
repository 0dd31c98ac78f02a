"""Metrics over a COCO-style file against mmdet's own: results, and what they hold when."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any, Dict, List, Tuple

import mmengine
import numpy as np
import pycocotools.mask as mask_utils
import pytest
import torch
from mmdet.evaluation.metrics import (
    CocoOccludedSeparatedMetric,
    CocoVideoMetric,
    DODCocoMetric,
    OVCocoMetric,
    RefExpMetric,
    gRefCOCOMetric,
)
from mmdet.structures import DetDataSample, TrackDataSample
from mmengine.structures import InstanceData

from mmshared.annotations import AnnotationFileError
from mmshared.evaluation import (
    SharedCocoOccludedSeparatedMetric,
    SharedCocoVideoMetric,
    SharedDODCocoMetric,
    SharedgRefCOCOMetric,
    SharedOVCocoMetric,
    SharedRefExpMetric,
)

CLASSES = (
    'cat',
    'a bird that sings',
    'a dog that runs after a cat',
    'a very old and very slow elephant on the way to water',
)  # DODCocoMetric needs some of each length
META = {'classes': CLASSES, 'base_classes': CLASSES[:2], 'novel_classes': CLASSES[2:]}
PAIRS = [
    (OVCocoMetric, SharedOVCocoMetric),
    (CocoOccludedSeparatedMetric, SharedCocoOccludedSeparatedMetric),
    (CocoVideoMetric, SharedCocoVideoMetric),
    (DODCocoMetric, SharedDODCocoMetric),
    (RefExpMetric, SharedRefExpMetric),
    (gRefCOCOMetric, SharedgRefCOCOMetric),
]


def make_case(folder: Path) -> Tuple[str, List[dict]]:
    """An annotation file, one object an image, and samples that nearly find them."""
    rng = random.Random(3)
    content: Dict[str, Any] = {
        'images': [],
        'annotations': [],
        'categories': [{'id': i, 'name': name} for i, name in enumerate(CLASSES)],
    }
    samples = []
    for i in range(12):
        x, y, w, h = rng.randrange(10), rng.randrange(10), rng.randrange(5, 20), rng.randrange(5, 20)
        label = i % 4
        source = ('refcoco', 'refcoco+', 'refcocog')[i % 3]
        image = {'id': 5 * i + 1, 'file_name': f'{i}.jpg', 'height': 40, 'width': 40, 'dataset_name': source}
        content['images'].append(image)
        content['annotations'].append(
            {
                'id': i + 1,
                'image_id': image['id'],
                'category_id': label,
                'bbox': [x, y, w, h],
                'area': w * h,
                'iscrowd': 0,
                'segmentation': [[x, y, x + w, y, x + w, y + h, x, y + h]],
            }
        )
        boxes = [[x + rng.choice([0, 1, 3]), y, x + w, y + h + rng.choice([0, 2])] for _ in range(11)]
        boxes += [[30, 30, 35, 39]]
        masks = np.zeros((12, 40, 40), bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes):
            mask[y1:y2, x1:x2] = True
        samples.append(
            {
                'img_id': image['id'],
                'ori_shape': (40, 40),
                'sent_ids': np.arange(4),
                'pred_instances': {
                    'bboxes': torch.tensor(boxes, dtype=torch.float32),
                    'scores': torch.tensor([rng.randrange(1, 999) / 1000 for _ in boxes]),
                    'labels': torch.tensor([label if rng.random() < 0.8 else rng.randrange(4) for _ in boxes]),
                    'masks': torch.from_numpy(masks),
                },
            }
        )
    path = folder / 'truth.json'
    path.write_text(json.dumps(content))
    return str(path), samples


def options_of(kind: type, folder: Path) -> Dict[str, Any]:
    """What it needs besides its file."""
    if not issubclass(kind, CocoOccludedSeparatedMetric):
        return {}
    mask = np.zeros((40, 40), np.uint8, order='F')
    mask[2:12, 2:14] = 1
    rle = mask_utils.encode(mask)
    items = [[f'{i}.jpg', CLASSES[i % 4], i, [2, 2, 12, 10], rle] for i in range(12)]
    mmengine.dump(items, folder / 'occluded.pkl')
    return {'occluded_ann': str(folder / 'occluded.pkl'), 'separated_ann': str(folder / 'occluded.pkl'), 'iou_thr': 0.3}


def run(metric: Any, samples: List[dict]) -> Dict[str, float]:
    metric.dataset_meta = META
    if isinstance(metric, CocoVideoMetric):
        for sample in samples:
            frame = DetDataSample(metainfo={'img_id': sample['img_id'], 'ori_shape': (40, 40), 'ori_video_length': 1})
            frame.pred_instances = InstanceData(**sample['pred_instances'])
            track = TrackDataSample()
            track.video_data_samples = [frame]
            metric.process(None, [track.to_dict() | {'video_data_samples': [frame]}])
        return metric.evaluate(len(samples))
    for start in range(0, len(samples), 5):
        metric.process({}, copy.deepcopy(samples[start : start + 5]))
    return metric.evaluate(len(samples))


@pytest.mark.parametrize(('stock', 'ours'), PAIRS, ids=[stock.__name__ for stock, _ in PAIRS])
def test_equals_stock(tmp_path: Path, stock: type, ours: type) -> None:
    path, samples = make_case(tmp_path)
    if stock is gRefCOCOMetric:  # needs an image in which nothing is meant
        content = json.loads(Path(path).read_text())
        content['annotations'][4]['category_id'] = -1
        Path(path).write_text(json.dumps(content))
    options = options_of(stock, tmp_path)
    expected = run(stock(ann_file=path, **options), samples)
    metric = ours(ann_file=path, cache_dir=str(tmp_path / 'cache'), **options)
    assert isinstance(metric, stock)
    for _ in range(2):
        found = run(metric, samples)
        assert list(found) == list(expected)
        np.testing.assert_array_equal(list(found.values()), list(expected.values()))
        assert metric._api is None, 'the ground truth is kept'
    assert any(value not in (0, -1) and value == value for value in found.values())


@pytest.mark.parametrize(('stock', 'ours'), PAIRS, ids=[stock.__name__ for stock, _ in PAIRS])
def test_bad_files_are_found_early(tmp_path: Path, stock: type, ours: type) -> None:
    options = options_of(stock, tmp_path)
    with pytest.raises(FileNotFoundError):
        stock(ann_file=str(tmp_path / 'nowhere.json'), **options)
    with pytest.raises(FileNotFoundError):
        ours(ann_file=str(tmp_path / 'nowhere.json'), **options)
    (tmp_path / 'bad.json').write_text('{"images": [{"id": 1}], "annotations": [3]}')
    metric = ours(ann_file=str(tmp_path / 'bad.json'), cache_dir=str(tmp_path / 'cache'), **options)
    with pytest.raises(AnnotationFileError, match='annotations'):
        metric.dataset_meta = META


@pytest.mark.parametrize('ours', [SharedDODCocoMetric, SharedRefExpMetric, SharedgRefCOCOMetric])
def test_a_file_is_needed(ours: type) -> None:
    with pytest.raises(TypeError, match='needs an ann_file'):
        ours()


def test_truth_of_the_samples(tmp_path: Path) -> None:
    _, samples = make_case(tmp_path)
    for sample in samples:
        sample['instances'] = [{'bbox': [2, 2, 20, 20], 'bbox_label': 1, 'ignore_flag': 0}]
    assert run(SharedOVCocoMetric(), samples) == run(OVCocoMetric(), samples)
