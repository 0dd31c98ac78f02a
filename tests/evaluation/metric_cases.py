"""Small evaluations with every peculiarity that files and detectors have, and both metrics run on them.

Hypothesis draws which peculiarities a case has and a seed; the details come from a seeded generator.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import math
import random
from pathlib import Path
from typing import Any, Iterator, NamedTuple
from unittest import mock

import numpy as np
import pycocotools.mask as mask_utils
import torch
from mmdet.datasets.api_wrappers import COCOeval
from mmdet.evaluation import CocoMetric

from mmshared.evaluation import SharedCocoMetric

CLASSES = ('cat', 'dog', 'bird')
BACKENDS = ('pycocotools', 'faster_coco_eval', 'ultrafast')
FEATURES = """
ties crowds ignore empty_images string_ids ids_from_0 negative_ids unsorted no_detections no_objects many unknown_class
negative_label duplicate_id float_image_ids odd_numbers negative_sides nan_scores mask_scores repeated_image doubles
uncompressed odd_crowd unknown_image zero_area mixed_masks integers text_annotation_ids more_categories
""".split()  # noqa: SIM905


class Case:
    """One evaluation.

    Args:
        features: names out of :data:`FEATURES`.
        seed: of everything else.
        images: how many.

    Attributes:
        content: the annotation file.
        samples: what a detector hands to ``process``.
    """

    def __init__(self, features: set[str], seed: int, images: int = 4) -> None:
        self.features, self.rng = features, random.Random(seed)
        numbers = self.rng.sample(range(0 if 'ids_from_0' in features else 1, 3 * images + 1), images)
        self.ids = [self._image_id(number) for number in numbers]
        self.categories = [{'id': i, 'name': name} for i, name in zip((2, 4, 7), CLASSES)]
        if 'more_categories' in features:
            self.categories.insert(1, {'id': 3, 'name': 'unlisted'})
        if 'unsorted' in features:
            self.rng.shuffle(self.categories)
        self.content = {'images': self._images(), 'annotations': self._annotations(), 'categories': self.categories}
        self.samples = [self._sample(key) for key in self.ids]
        if 'repeated_image' in features:
            self.samples.append(self._sample(self.ids[0]))

    def has(self, feature: str, chance: float = 1.0) -> bool:
        return feature in self.features and self.rng.random() < chance

    def _image_id(self, number: int) -> Any:
        if 'string_ids' in self.features:
            return f'image {number}'
        return number + 0.5 if 'float_image_ids' in self.features else number

    def _images(self) -> list[dict]:
        return [{'id': key, 'file_name': f'{i}.jpg', 'height': 40, 'width': 50} for i, key in enumerate(self.ids)]

    def _box(self, found: bool = False) -> list[float]:
        x, y = self.rng.choice([0, 5, 10.5, 20]), self.rng.choice([0, 2.25, 10])
        sides = [0, 5, 10, 20.125, 300] if self.has('zero_area') else [5, 10, 20.125, 30]
        width, height = self.rng.choice(sides), self.rng.choice(sides)
        if found and self.has('negative_sides', 0.3):
            width = -width
        if not found and self.has('odd_numbers', 0.1):
            width = self.rng.choice([math.nan, math.inf, -4, 12345678901234567890, True])
        return [x, y, width, height]

    def _polygon(self, box: list[float]) -> Any:
        x, y, w, h = (value if math.isfinite(value) and value < 1e6 else 5 for value in box)
        polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
        if self.has('uncompressed', 0.5):
            rle = mask_utils.frPyObjects([polygon], 40, 50)[0]
            mask = mask_utils.decode(rle).ravel(order='F')
            cuts = np.flatnonzero(np.diff(mask)) + 1
            counts = np.diff([0, *cuts, mask.size]).tolist()
            return {'size': [40, 50], 'counts': [0, *counts] if mask[0] else counts}
        return [polygon] if self.rng.random() < 0.7 else [polygon, [0, 0, 4, 0, 4, 4]]

    def _annotations(self) -> list[dict]:
        if 'no_objects' in self.features:
            return []
        start = 0 if 'ids_from_0' in self.features else -5 if 'negative_ids' in self.features else 1
        records = [self._annotation(start + i) for i in range(self.rng.randrange(14))]
        if self.has('duplicate_id') and len(records) > 2:
            records[self.rng.randrange(len(records))]['id'] = records[self.rng.randrange(len(records))]['id']
        return records

    def _annotation(self, number: int) -> dict:
        box = self._box()
        record = {
            'id': str(number) if self.has('text_annotation_ids') else number,
            'image_id': self.rng.choice(self.ids[: max(1, len(self.ids) // 2)])
            if 'empty_images' in self.features
            else self.rng.choice(self.ids),
            'category_id': self.rng.choice(self.categories)['id'],
            'bbox': box,
            'area': box[2] * box[3] * self.rng.choice([1, 0.5, 30]),
            'iscrowd': int(self.has('crowds', 0.3)),
            'segmentation': self._polygon(box),
        }
        if self.has('ignore', 0.5):
            record['ignore'] = self.rng.choice([0, 1])
        if self.has('odd_crowd', 0.2):
            record['iscrowd'] = self.rng.choice([2, True, '1', 0.5, 1.0])
        if self.has('unknown_class', 0.2):
            record['category_id'] = 99
        if self.has('unknown_image', 0.2):
            record['image_id'] = 'nowhere'
        return record

    def _sample(self, key: Any) -> dict:
        most = 40 if 'many' in self.features else 12
        count = 0 if 'no_detections' in self.features else self.rng.choice([0, 3, 8, most])
        kind = np.float64 if 'doubles' in self.features else np.float32
        guesses = [self._guess(key) for _ in range(count)]
        boxes = np.array([box for box, _ in guesses], kind).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        if 'integers' in self.features:
            boxes = boxes.astype(np.int64)
        scores = [self.rng.choice([0.25, 0.5]) if 'ties' in self.features else self.rng.random() for _ in range(count)]
        if self.has('nan_scores', 0.5) and count:
            scores[0] = self.rng.choice([math.nan, math.inf])
        labels = [label - 3 * self.has('negative_label', 0.5) for _, label in guesses]
        found = {
            'bboxes': torch.from_numpy(boxes),
            'scores': torch.tensor(scores, dtype=torch.float32),
            'labels': torch.tensor(labels, dtype=torch.int64),
        }
        masks = np.zeros((count, 40, 50), bool)
        for i, (x1, y1, x2, y2) in enumerate(np.nan_to_num(boxes, posinf=50).astype(int).tolist()):
            masks[i, max(y1, 0) : y2, max(x1, 0) : x2] = self.rng.random() < 0.9
        found['masks'] = torch.from_numpy(masks)
        if self.has('mask_scores', 0.7):
            found['mask_scores'] = torch.rand(count, generator=torch.Generator().manual_seed(self.rng.randrange(99)))
        return {'img_id': key, 'ori_shape': (40, 50), 'pred_instances': found, 'instances': self._instances(key)}

    def _guess(self, key: Any) -> tuple[list[float], int]:
        """Box and label, often nearly those of an object."""
        objects = [(box, label) for *box, label in self._objects(key) if all(abs(value) < 1e6 for value in box)]
        if not objects or self.rng.random() < 0.3:
            return self._box(found=True), self.rng.randrange(3)
        box, label = self.rng.choice(objects)
        box = [value + self.rng.choice([0, 0, 0.5, 1]) for value in box]
        if self.has('negative_sides', 0.2):
            box[2] = -box[2]
        return box, label if self.rng.random() < 0.8 else self.rng.randrange(3)

    def _objects(self, key: Any) -> list[tuple]:
        """x, y, width, height and label of the objects in an image."""
        ids = [category['id'] for category in self.categories if category['name'] in CLASSES]
        records = [record for record in self.content['annotations'] if record['image_id'] == key]
        return [(*r['bbox'], ids.index(r['category_id'])) for r in records if r['category_id'] in ids]

    def _instances(self, key: Any) -> list[dict]:
        ids = [category['id'] for category in self.categories if category['name'] in CLASSES]
        instances = []
        for record in self.content['annotations']:
            if record['image_id'] == key and record['category_id'] in ids:
                x, y, w, h = record['bbox']
                instance = {'bbox': [x, y, x + w, y + h], 'bbox_label': ids.index(record['category_id'])}
                instances.append({**instance, 'ignore_flag': record['iscrowd'], 'mask': record['segmentation']})
        return instances

    def without_masks(self) -> Case:
        """The same of a detector without masks."""
        for sample in self.samples:
            for name in ('masks', 'mask_scores'):
                sample['pred_instances'].pop(name, None)
        return self


class Outcome(NamedTuple):
    """What came of an evaluation: ``error`` is (type, text) if it failed."""

    metrics: Any
    evaluations: list
    printed: str
    error: Any


@contextlib.contextmanager
def recorded(module: str) -> Iterator[list]:
    """The evaluations that ``module`` summarizes."""
    summarized = []

    class Recorded(COCOeval):
        def summarize(self) -> None:
            super().summarize()
            summarized.append(self)

    with mock.patch(f'{module}.COCOeval', Recorded):
        yield summarized


def outcome(metric: Any, samples: list, size: int | None = None, classes: tuple = CLASSES) -> Outcome:
    """Process ``samples`` and evaluate."""
    stock = not isinstance(metric, SharedCocoMetric)
    module = 'mmdet.evaluation.metrics.coco_metric' if stock else 'mmshared.evaluation.coco_evaluation'
    samples, out = copy.deepcopy(samples), io.StringIO()
    metrics = error = None
    with recorded(module) as summarized, contextlib.redirect_stdout(out):
        try:
            metric.dataset_meta = {'classes': classes}
            for start in range(0, len(samples), 2):
                metric.process({}, samples[start : start + 2])
            metrics = metric.evaluate(len(samples) if size is None else size)
        except Exception as raised:
            error = raised
    table = '\n'.join(line for line in out.getvalue().splitlines() if line.startswith(' Average'))
    return Outcome(metrics, summarized, table, error)


def stock_metric(file: Path | None, **options: Any) -> CocoMetric:
    """Stock's, without pycocotools' prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return CocoMetric(None if file is None else str(file), **options)


def shared_metric(file: Path | None, folder: Path, backend: str = 'pycocotools', **options: Any) -> SharedCocoMetric:
    """Ours."""
    file = None if file is None else str(file)
    return SharedCocoMetric(file, backend=backend, cache_dir=str(folder / 'cache'), **options)


def write(folder: Path, content: dict) -> Path:
    """The annotation file of ``content``."""
    file = folder / 'annotations.json'
    file.write_text(json.dumps(content), encoding='utf-8')
    return file


def assert_same(stock: Outcome, ours: Outcome, exactly: bool = True) -> None:
    """Metrics, statistics, precision and recall, and what was printed; or both refuse."""
    if stock.error is not None:
        assert ours.error is not None, f'only stock refuses: {stock.error!r}'
        return
    if ours.error is not None:
        raise AssertionError('only ours refuses') from ours.error
    assert list(stock.metrics) == list(ours.metrics)
    assert len(stock.evaluations) == len(ours.evaluations)
    for one, other in zip(stock.evaluations, ours.evaluations):
        for name in ('precision', 'recall'):
            _assert_equal(one.eval[name], other.eval[name], exactly)
        _assert_equal(np.asarray(one.stats), np.asarray(other.stats), exactly)
        assert list(one.params.catIds) == list(other.params.catIds)
    assert stock.printed == ours.printed
    values = [np.array([*outcome.metrics.values()], float) for outcome in (stock, ours)]
    _assert_equal(*values, exactly)
    assert [*map(type, stock.metrics.values())] == [*map(type, ours.metrics.values())]


def _assert_equal(one: np.ndarray, other: np.ndarray, exactly: bool) -> None:
    assert one.shape == other.shape
    if exactly:
        np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
