"""Processes that evaluate: the ranks of a job, and one that times stock and shared in turns.

Each is a generator that stops where the benchmark looks at its memory; see ``tasks.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from typing import Any, Dict, Iterator, List, Sequence

import numpy as np
import torch
import torch.distributed as dist
from mmdet.evaluation import CocoMetric
from mmengine.logging import MMLogger

from mmshared.evaluation import SharedCocoMetric

Reply = Dict[str, Any]
BATCH = 16


def make_metric(kind: str, file: str, cache: str, **options: Any) -> CocoMetric:
    """Stock's or ours; pycocotools prints into nothing."""
    if kind == 'shared':
        return SharedCocoMetric(file, cache_dir=cache, **options)
    with contextlib.redirect_stdout(io.StringIO()):
        return CocoMetric(file, **options)


class Predictions:
    """What a detector predicts, one image at a time, from a file that every rank maps.

    Args:
        path: of an ``.npz``'s folder: ``ids.npy`` int64 (I,), ``boxes.npy`` float32 (I, D, 4) x1, y1, x2, y2 in pixels,
            ``scores.npy`` float32 (I, D), ``labels.npy`` int64 (I, D).
    """

    def __init__(self, path: str) -> None:
        names = ('ids', 'boxes', 'scores', 'labels')
        self._arrays = {name: np.load(f'{path}/{name}.npy', mmap_mode='r') for name in names}
        self.images = len(self._arrays['ids'])

    def batches(self, first: int = 0, step: int = 1) -> Iterator[List[dict]]:
        """Samples of every ``step``-th image, from the ``first`` on; as a sampler does, the last ones begin anew."""
        indices = np.arange(first, self.images + (-self.images % step), step) % self.images
        for start in range(0, len(indices), BATCH):
            yield [self._sample(int(i)) for i in indices[start : start + BATCH]]

    def _sample(self, i: int) -> dict:
        found = {f'{name}': torch.from_numpy(np.array(self._arrays[name][i])) for name in ('scores', 'labels')}
        found['bboxes'] = torch.from_numpy(np.array(self._arrays['boxes'][i]))
        return {'img_id': int(self._arrays['ids'][i]), 'ori_shape': (480, 640), 'pred_instances': found}


def evaluate(metric: CocoMetric, size: int) -> Reply:
    """Metrics, and seconds of it."""
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        metrics = metric.evaluate(size)
    return {'metrics': metrics, 'seconds': time.perf_counter() - start}


def ranks(
    kind: str, rank: int, world: int, rendezvous: str, folder: str, classes: Sequence[str], times: int, **source: Any
) -> Iterator[Reply]:
    """One rank of a job: stops without a metric; with one; then with predictions and after evaluation, ``times``."""
    torch.set_num_threads(1)
    os.chdir(folder)  # stock collects in a folder that it makes here
    MMLogger.get_current_instance().setLevel('ERROR')
    dist.init_process_group('gloo', init_method=f'file://{rendezvous}', rank=rank, world_size=world)
    dist.all_reduce(torch.ones(1))
    predictions = Predictions(f'{folder}/predictions')
    next(predictions.batches())
    yield {}
    start = time.perf_counter()
    metric = make_metric(kind, **source)
    constructed = time.perf_counter() - start
    metric.dataset_meta = {'classes': tuple(classes)}
    looked = time.perf_counter() - start - constructed
    dist.barrier()
    yield {'construct': constructed, 'look': looked}
    for _ in range(times):
        for batch in predictions.batches(rank, world):
            metric.process({}, batch)
        yield {}
        dist.barrier()
        yield evaluate(metric, predictions.images)
    dist.barrier()
    dist.destroy_process_group()


def in_turns(folder: str, classes: Sequence[str], repeats: int, **source: Any) -> Iterator[Reply]:
    """Seconds of evaluations in one process, shared and stock in turns; the metrics must be equal."""
    torch.set_num_threads(1)
    MMLogger.get_current_instance().setLevel('ERROR')
    predictions = Predictions(f'{folder}/predictions')
    kinds = ('shared', 'stock')
    metrics = {kind: make_metric(kind, **source) for kind in kinds}
    for metric in metrics.values():
        metric.dataset_meta = {'classes': tuple(classes)}
    yield {}
    seconds: Dict[str, List[float]] = {kind: [] for kind in kinds}
    found = []
    for turn in range(repeats):
        for kind in kinds[:: -1 if turn % 2 else 1]:
            for batch in predictions.batches():
                metrics[kind].process({}, batch)
            reply = evaluate(metrics[kind], predictions.images)
            seconds[kind].append(reply['seconds'])
            found.append(reply['metrics'])
    yield {'seconds': seconds, 'equal': all(metrics == found[0] for metrics in found), 'metrics': found[0]}
