"""Ground truth and detections for evaluators, from a seed."""

from __future__ import annotations

import random
from typing import Any, Dict, List

import numpy as np
from pycocotools import mask as mask_utils

SIDE = 60


def ground_truth(seed: int, images: int = 12, annotations: int = 60) -> Dict[str, Any]:
    """A file with polygons, crowds as run lengths, ``ignore`` and keypoints; image 0 and annotation 0 among them."""
    rng = random.Random(seed)
    records = []
    for i in range(annotations):
        x, y, w, h = (round(rng.uniform(*span), 2) for span in ((0, 30), (0, 30), (3, 28), (3, 28)))
        crowd = int(rng.random() < 0.15)
        outline: Any = [[x, y, x + w, y, x + w, y + h, x, y + h]]
        if crowd:
            outline = {'size': [SIDE, SIDE], 'counts': [i, 200, SIDE * SIDE - 200 - i]}
        visible = [rng.choice([0, 1, 2]) for _ in range(17)]
        points = [v for k in visible for v in (round(x + rng.random() * w), round(y + rng.random() * h), k)]
        records.append(
            {
                'id': i,
                'image_id': rng.randrange(images),
                'category_id': rng.choice([1, 3, 7]),
                'bbox': [x, y, w, h],
                'area': w * h,
                'iscrowd': crowd,
                'segmentation': outline,
                'keypoints': points,
                'num_keypoints': sum(v > 0 for v in visible),
            }
        )
        if rng.random() < 0.1:
            records[-1]['ignore'] = rng.choice([0, 1])
    rng.shuffle(records)
    return {
        'info': {'year': 2024},
        'images': [{'id': i, 'file_name': f'{i}.jpg', 'height': SIDE, 'width': SIDE} for i in range(images)],
        'annotations': records,
        'categories': [{'id': i, 'name': str(i), 'supercategory': 'x'} for i in (7, 1, 3)],
    }


def detections(truth: Dict[str, Any], kind: str, seed: int, tied: bool = False) -> List[Dict[str, Any]]:
    """Results near the ground truth: boxes, masks (str and bytes counts), or keypoints."""
    rng = random.Random(seed)
    sizes = {image['id']: (image['height'], image['width']) for image in truth['images']}
    results = []
    for record in truth['annotations']:
        for _ in range(rng.randrange(3)):
            x, y, w, h = (max(0.5, v + rng.uniform(-4, 4)) for v in record['bbox'])
            result = {'image_id': record['image_id'], 'category_id': record['category_id']}
            result['score'] = 0.5 if tied else round(rng.random(), 3)
            if kind == 'bbox':
                result['bbox'] = [x, y, w, h]
            elif kind == 'segm':
                height, width = sizes[record['image_id']]
                mask = np.zeros((height, width), np.uint8, order='F')
                mask[int(y) : int(y + h), int(x) : int(x + w)] = 1
                result['segmentation'] = mask_utils.encode(mask)
                if rng.random() < 0.5:
                    result['segmentation']['counts'] = result['segmentation']['counts'].decode()
            else:
                result['keypoints'] = [v + rng.choice([0, 0, 1, 2]) for v in record['keypoints']]
            results.append(result)
    return results
