"""LVIS files and detections, made from seeds: the same under every version of Python and numpy."""

from __future__ import annotations

import random
from typing import Any, Dict, List, Tuple

CASES: Dict[str, Dict[str, Any]] = {
    'plain': {'seed': 1},
    'ties': {'seed': 2, 'scores': (0.5, 0.25)},
    'many': {'seed': 24, 'images': 3, 'detections': 400, 'categories': 3},
    'ignored': {'seed': 4, 'ignore': True},
    'sparse': {'seed': 5, 'images': 20, 'categories': 25, 'detections': 8},
    'unsorted': {'seed': 6, 'reverse': True},
    'from_zero': {'seed': 7, 'first_id': 0},
}
"""Name of a case -> arguments of :func:`make_case`."""

_GRID = 240.0


def make_case(
    seed: int,
    images: int = 12,
    categories: int = 7,
    detections: int = 40,
    scores: Tuple[float, ...] = (),
    ignore: bool = False,
    reverse: bool = False,
    first_id: int = 1,
) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """An LVIS file, and what a detector found.

    Args:
        seed: of everything random.
        images, categories: how many there are.
        detections: how many a picture has, on average.
        scores: those that occur; any at all if empty.
        ignore: whether some annotations have an ``ignore``.
        reverse: whether ids of images and categories fall.
        first_id: of annotations, images and categories.

    Returns:
        The file, and per image a dict of ``img_id``, ``bboxes`` (x1, y1, x2, y2), ``scores``, ``labels`` (0, 1, ...)
        and ``polygons`` (one each), all plain lists. Coordinates are multiples of 1/4: float32 holds them exactly.
    """
    rng = random.Random(seed)
    image_ids, category_ids = ([first_id + i for i in range(count)] for count in (images, categories))
    if reverse:
        image_ids.reverse()
        category_ids.reverse()
    file: Dict[str, Any] = {'images': [], 'annotations': [], 'categories': []}
    for i, category_id in enumerate(category_ids):
        file['categories'].append({'id': category_id, 'name': f'class {i}', 'frequency': 'rcf'[i % 3]})
    predictions = []
    for image_id in image_ids:
        present = rng.sample(category_ids, min(3, categories))
        absent = [c for c in category_ids if c not in present]
        file['images'].append(
            {
                'id': image_id,
                'height': 250,
                'width': 250,
                'coco_url': f'http://images.cocodataset.org/val2017/{image_id:012d}.jpg',
                'neg_category_ids': rng.sample(absent, min(2, len(absent))),
                'not_exhaustive_category_ids': rng.sample(present, 1) + rng.sample(absent, min(1, len(absent))),
            }
        )
        truths = []
        for _ in range(rng.randrange(1, 9)):
            box, category_id = _box(rng), rng.choice(present)
            truths.append((box, category_id))
            annotation = {
                'id': first_id + len(file['annotations']),
                'image_id': image_id,
                'category_id': category_id,
                'bbox': [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                'area': (box[2] - box[0]) * (box[3] - box[1]),
                'segmentation': [_polygon(box)],
            }
            if ignore and rng.random() < 0.4:
                annotation['ignore'] = rng.randrange(2)
            file['annotations'].append(annotation)
        predictions.append(_detections(rng, image_id, truths, category_ids, detections, scores))
    return file, predictions


def _detections(
    rng: random.Random,
    image_id: int,
    truths: List[tuple],
    category_ids: List[int],
    count: int,
    scores: Tuple[float, ...],
) -> Dict[str, Any]:
    found: Dict[str, Any] = {'img_id': image_id, 'bboxes': [], 'scores': [], 'labels': [], 'polygons': []}
    for _ in range(rng.randrange(2 * count)):
        box, category_id = rng.choice(truths) if rng.random() < 0.6 else (_box(rng), rng.choice(category_ids))
        moved = [min(max(value + rng.randrange(-24, 25) / 4, 0.0), _GRID) for value in box]
        box = [*moved[:2], max(moved[2], moved[0] + 1), max(moved[3], moved[1] + 1)]
        found['bboxes'].append(box)
        found['scores'].append(rng.choice(scores) if scores else rng.randrange(1, 1 << 20) / (1 << 20))
        found['labels'].append(category_ids.index(category_id))
        found['polygons'].append(_polygon(box))
    return found


def _box(rng: random.Random) -> List[float]:
    size = rng.choice((16, 60, 130))
    x, y = (rng.randrange(int(4 * (_GRID - size))) / 4 for _ in range(2))
    return [x, y, x + rng.randrange(8, 4 * size) / 4 + 2, y + rng.randrange(8, 4 * size) / 4 + 2]


def _polygon(box: List[float]) -> List[float]:
    x1, y1, x2, y2 = box
    return [x1, y1, x2, y1 + (y2 - y1) / 4, x2, y2, x1 + (x2 - x1) / 2, y2]
