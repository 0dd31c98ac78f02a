"""Training jobs with MMEngine's loops and with the lean ones, alike in all else: tasks of :mod:`tasks`."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import mmdet.datasets
import mmdet.evaluation
import mmdet.models  # noqa: F401  (a real job has imported all of it, and its workers are forks of that)
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner

import mmshared  # noqa: F401  (registers the loops)

Reply = Dict[str, Any]
LOOPS = {'stock': ('EpochBasedTrainLoop', 'ValLoop'), 'lean': ('LeanTrainLoop', 'LeanValLoop')}
SIDE = 320
#: What the time of a validation is a little longer than asked for.
MARGIN = 1.05


class Slow:
    """A dataset of images that each take a while to come, as from a network: waiting, not computing."""

    metainfo: Dict[str, Any] = {}

    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Dict[str, Any]:
        time.sleep(self.seconds)
        return {'inputs': torch.zeros(3, SIDE, SIDE, dtype=torch.uint8), 'index': index}


class EnoughError(Exception):
    """All that is to be measured has happened."""


class Steps(BaseModel):
    """A linear layer whose training steps take a set time, as if an accelerator computed.

    Args:
        seconds: a step.
        most: end the job when so many steps are over and the next one's batch is there.

    Attributes:
        spans: when each training step began (its batch was there) and ended.
    """

    def __init__(self, seconds: float, most: Optional[int] = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seconds, self.most = seconds, most
        self.spans: List[Tuple[float, float]] = []

    def train_step(self, data: Any, optim_wrapper: Any) -> Dict[str, torch.Tensor]:
        """A step, timed."""
        begin = time.monotonic()
        if len(self.spans) == self.most:
            self.spans.append((begin, begin))
            raise EnoughError
        losses = super().train_step(data, optim_wrapper)
        self.spans.append((begin, time.monotonic()))
        return losses

    def forward(self, inputs: Sequence[torch.Tensor], mode: str = 'tensor', **_: Any) -> Any:
        """A loss that takes its time, or no predictions."""
        if mode != 'loss':
            return [{} for _ in inputs]
        time.sleep(self.seconds)
        return {'loss': self.linear(torch.ones(1, 1)).sum()}


class Metric(BaseMetric):
    """A metric that takes a set time when all predictions are there.

    Args:
        seconds: it takes; those of several take turns.

    Attributes:
        begins: when it was asked for.
    """

    default_prefix = 'bench'

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__()
        self.seconds = seconds
        self.begins: List[float] = []

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count."""
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list) -> Dict[str, float]:
        """Take the time."""
        self.begins.append(time.monotonic())
        time.sleep(self.seconds[(len(self.begins) - 1) % len(self.seconds)])
        return {'samples': sum(results)}


def build(
    kind: str, folder: str, model: BaseModel, loaders: Tuple[dict, dict], metric: Metric, epochs: int, **options: Any
) -> Runner:
    """A job with a validation after each epoch, with stock's loops or the lean ones; both start workers by fork."""
    train_loop, val_loop = LOOPS[kind]
    return Runner(
        model=model,
        work_dir=folder,
        train_dataloader=loaders[0],
        val_dataloader=loaders[1],
        train_cfg={'type': train_loop, 'max_epochs': epochs, 'val_interval': 1},
        val_cfg={'type': val_loop},
        val_evaluator=[metric],
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
        randomness={'seed': 0},
        default_hooks={'checkpoint': None},
        env_cfg={'mp_cfg': {'mp_start_method': 'fork', 'opencv_num_threads': 0}},
        log_level='WARNING',
        experiment_name='bench',
        **options,
    )


def loader(dataset: Any, workers: int, batch_size: int, shuffle: bool) -> Dict[str, Any]:
    """A dataloader's config, as most of mmdet's are."""
    return {
        'dataset': dataset,
        'batch_size': batch_size,
        'num_workers': workers,
        'persistent_workers': True,
        'sampler': {'type': 'DefaultSampler', 'shuffle': shuffle},
    }


def switches(
    kind: str,
    folder: str,
    workers: int,
    batch_size: int,
    sample: float,
    step: float,
    validation: float,
    metric: Sequence[float],
    count: int,
) -> Iterator[Reply]:
    """How long it takes from training through a validation to training, ``count`` times for each metric, in turns.

    One more comes first and is not counted: there stock's loops start the workers of the validation too.

    Args:
        kind: stock or lean.
        folder: of the job.
        workers: of training, and of validation.
        batch_size: of both.
        sample, step: seconds each takes.
        validation: seconds that loading for it takes at least.
        metric: seconds that its metric takes.
        count: validations with each.
    """
    batches = workers * math.ceil(validation * MARGIN / (batch_size * sample))
    epoch, times = 4 * workers, count * len(metric) + 1
    model, slow = Steps(step, most=epoch * (times + 1)), Metric(metric)
    loaders = (
        loader(Slow(epoch * batch_size, sample), workers, batch_size, True),
        loader(Slow(batches * batch_size, sample), workers, batch_size, False),
    )
    runner = build(kind, f'{folder}/{kind}', model, loaders, slow, times + 2)
    gc.collect()
    yield {}
    with contextlib.suppress(EnoughError):
        runner.train()
    spans = model.spans
    found: List[List[Dict[str, float]]] = [[] for _ in metric]
    for number in range(1, times):
        last = (number + 1) * epoch - 1
        found[number % len(metric)].append(
            {
                'switch': spans[last + 1][0] - spans[last][1],
                'around': spans[last + 1][0] - spans[last - 1][1],
                'until_metric': slow.begins[number] - spans[last][1],
            }
        )
    yield {'found': found}


def pools(
    kind: str,
    folder: str,
    file: str,
    classes: Sequence[str],
    workers: int,
    batch_size: int,
    scale: List[int],
    step: float,
) -> Iterator[Reply]:
    """Three epochs with a pipeline of mmdet's over a :class:`SharedCocoDataset`, and as many validations.

    Args:
        kind: stock or lean.
        folder: of the job; ``images`` in it has the images.
        file: their annotations.
        classes: names of its categories.
        workers: of training, and of validation.
        batch_size: of both.
        scale: of ``Resize``.
        step: seconds that a step takes.
    """
    pipeline = [
        {'type': 'LoadImageFromFile'},
        {'type': 'LoadAnnotations', 'with_bbox': True},
        {'type': 'Resize', 'scale': tuple(scale), 'keep_ratio': True},
        {'type': 'RandomFlip', 'prob': 0.5},
        {'type': 'PackDetInputs'},
    ]
    dataset = {
        'type': 'mmdet.SharedCocoDataset',
        'ann_file': file,
        'data_prefix': {'img': f'{folder}/images'},
        'metainfo': {'classes': tuple(classes)},
        'cache_dir': f'{folder}/cache',
    }
    loaders = tuple(
        loader({**dataset, 'pipeline': pipeline, 'test_mode': validates}, workers, batch_size, not validates)
        for validates in (False, True)
    )
    model = Steps(step)
    runner = build(kind, f'{folder}/{kind}', model, loaders, Metric([0.5]), 3, default_scope='mmdet')
    gc.collect()
    yield {}
    runner.train()
    yield {'steps': len(model.spans)}
