"""Small COCO files and dataset pairs for the tests of this folder."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

from mmdet.datasets import CocoDataset

from mmshared.datasets import SharedCocoDataset

CLASSES = ('cat', 'dog', 'bird')
REAL = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'data'


def content(images: int = 12, annotations: int = 50, seed: int = 0) -> dict:
    """Return plain, valid COCO annotations; the first image has none."""
    rng = random.Random(seed)
    sizes = [(480, 640), (640, 480), (300, 300), (20, 30)]
    return {
        'images': [
            {'id': 10 + i, 'file_name': f'{i}.jpg', 'height': h, 'width': w}
            for i, (h, w) in enumerate(rng.choice(sizes) for _ in range(images))
        ],
        'annotations': [
            {
                'id': 100 + i,
                'image_id': rng.randrange(11, 10 + images),
                'category_id': rng.choice([3, 5, 7, 9]),
                'bbox': [rng.randrange(10), 2.5, rng.randrange(1, 40), rng.uniform(1, 40)],
                'area': 5.5,
                'iscrowd': int(rng.random() < 0.1),
                'segmentation': [[round(rng.uniform(0, 99), 2) for _ in range(6)]],
            }
            for i in range(annotations)
        ],
        'categories': [{'id': i, 'name': n} for i, n in zip((5, 3, 9, 7), ('dog', 'cat', 'other', 'bird'))],
    }


def write(path: Path, data: Any) -> str:
    """Write ``data`` as JSON and return the path."""
    path.write_text(json.dumps(data), encoding='utf-8')
    return str(path)


def options(**more: Any) -> dict:
    """Return keyword arguments both datasets take."""
    return {'metainfo': {'classes': CLASSES}, 'data_prefix': {'img': 'img'}, **more}


def stock(file: str, cls: type = CocoDataset, **more: Any) -> CocoDataset:
    """Build the stock dataset without pycocotools' prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return cls(ann_file=file, **options(**more))


def shared(file: str, cls: type = SharedCocoDataset, **more: Any) -> SharedCocoDataset:
    """Build ours, its cache next to the file."""
    with contextlib.redirect_stdout(io.StringIO()):
        return cls(ann_file=file, cache_dir=str(Path(file).parent / 'cache'), **options(**more))
