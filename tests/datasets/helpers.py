"""Small COCO files and dataset pairs for the tests of this folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Callable, Optional

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


def describe(dataset: SharedCocoDataset) -> dict:
    """Return what tells two datasets, or two stores, apart; it can go through JSON."""
    items = [dataset.get_data_info(i) for i in range(len(dataset))]
    return {
        'digest': hashlib.sha256(repr(items).encode()).hexdigest(),
        'count': len(items),
        'inode': os.stat(dataset._store.path).st_ino,
    }


class Child:
    """``action()`` in a forked child: a job of its own, or a rank of one if the environment says so.

    ``result()`` waits for it; a dict as ``action`` returns it, or ``{'error': class name, 'text': message}``.
    """

    def __init__(self, action: Callable[[], Any], stay: Optional[Path] = None) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            self._pipe = os.fdopen(reading)
            return
        try:
            os.close(reading)
            signal.alarm(90)
            try:
                result = action()
            except Exception as error:
                result = {'error': type(error).__name__, 'text': str(error), 'cause': type(error.__cause__).__name__}
            with os.fdopen(writing, 'w') as pipe:
                json.dump(result, pipe)
            while stay is not None and stay.exists():
                time.sleep(0.02)
        finally:
            os._exit(0)

    def result(self) -> Any:
        with self._pipe:
            text = self._pipe.read()
        return json.loads(text) if text else None

    def wait(self) -> None:
        os.waitpid(self.pid, 0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait()
