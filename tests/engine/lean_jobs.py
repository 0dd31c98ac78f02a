"""Tiny jobs for the lean loops: what they saw and drew, which workers lived when, and the same with stock's loops."""

from __future__ import annotations

import multiprocessing.process
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Set

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS, TRANSFORMS
from mmengine.runner import Runner

import mmshared  # noqa: F401  (registers the loops)

STOCK = {True: 'EpochBasedTrainLoop', False: 'IterBasedTrainLoop'}
LEAN = {True: 'LeanTrainLoop', False: 'LeanIterTrainLoop'}


@DATASETS.register_module(force=True)
class Numbers(BaseDataset):
    """Samples that are their own index."""

    METAINFO = dict(classes=('number',))

    def __init__(self, size: int = 12, pipeline: Any = (), **kwargs: Any) -> None:
        self.size = size
        super().__init__(pipeline=[*pipeline], serialize_data=False, **kwargs)

    def load_data_list(self) -> List[dict]:
        return [dict(index=index, width=index % 3, height=1) for index in range(self.size)]

    def __getitem__(self, index: int) -> dict:
        return self.pipeline(self.get_data_info(index))


@TRANSFORMS.register_module(name='LeanDraw', force=True)
class Draw:
    """Draws from every global generator; the numbers, and the process, go into the sample."""

    def __call__(self, results: dict) -> dict:
        draws = np.random.rand(), random.random(), torch.rand(1).item()
        return dict(results, draws=draws, pid=os.getpid())


@TRANSFORMS.register_module(name='LeanMark', force=True)
class Mark:
    """Names the pipeline that a sample went through."""

    def __init__(self, name: str = 'first', delay: float = 0.0) -> None:
        self.name, self.delay = name, delay

    def __call__(self, results: dict) -> dict:
        time.sleep(self.delay)
        return dict(results, mark=self.name)


class Step(NamedTuple):
    """One training step."""

    indices: List[int]
    loss: float
    marks: List[str]
    draws: List[Any]
    pids: List[int]
    at: float


@MODELS.register_module(name='LeanNet', force=True)
class Net(BaseModel):
    """A linear layer whose loss depends on the samples and on random numbers of the main process.

    Args:
        noise: False to draw only from PyTorch's generator, as detectors do.
    """

    def __init__(self, noise: bool = True) -> None:
        super().__init__()
        self.noise = noise
        self.linear = torch.nn.Linear(1, 1)
        self.bbox_head = torch.nn.Identity()  # where YOLOXModeSwitchHook leaves a mark
        self.steps: List[Step] = []
        self.seen: List[List[int]] = []
        self.evaluators: Set[int] = set()

    def forward(self, index: Any, pid: Any, draws: Any, mark: Any, mode: str, **_: Any) -> Any:
        if isinstance(index, int):  # a sample that is no batch
            index, pid, draws, mark = [index], [pid], [[draw] for draw in draws], [mark]
        indices, pids = list(index), list(pid)
        if mode != 'loss':
            self.seen.append(indices)
            self.evaluators.update(pids)
            return [dict(index=one) for one in indices]
        noise = torch.rand(len(indices), 1) + (np.random.rand() + random.random() if self.noise else 0)
        loss = (self.linear(torch.tensor(indices)[:, None] / 10) - noise).pow(2).mean()
        self.steps.append(Step(indices, float(loss.detach()), list(mark), list(zip(*draws)), pids, time.monotonic()))
        return dict(loss=loss)


class Count(BaseMetric):
    """How many samples there were, after a while."""

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__()
        self.delay = delay
        self.spans: List[tuple] = []

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.extend(data_samples)

    def compute_metrics(self, results: list) -> Dict[str, float]:
        begin = time.monotonic()
        time.sleep(self.delay)
        self.spans.append((begin, time.monotonic()))
        return dict(count=len(results), total=sum(result['index'] for result in results))


class Watch(threading.Thread):
    """Looks every ten milliseconds which workers of this process are alive.

    Attributes:
        looks: the process ids at each look. (Only those that ``multiprocessing`` has started: MMEngine calls ``git``
            for checkpoints, which is a copy of this process until it becomes another command.)
        first: when each was seen for the first time.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = children()
        self.looks: List[Set[int]] = []
        self.first: Dict[int, float] = {}
        self._of_multiprocessing: Set[Optional[int]] = set()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.01):
            alive = children() - self.before
            self.looks.append(alive)
            self._of_multiprocessing.update(process.pid for process in list(multiprocessing.process._children))
            for pid in alive:
                self.first.setdefault(pid, time.monotonic())

    def stop(self) -> None:
        self._done.set()
        self.join()
        self.looks = [look & self._of_multiprocessing for look in self.looks]


def children(pid: Optional[int] = None) -> Set[int]:
    """Process ids of the workers of a process (of this one): its living children that are Python, helpers aside.

    Those that a fork server started are its children, and look like it.
    """
    found = {child: command for child in _children(pid or os.getpid()) if (command := _python(child))}
    servers = {child for child, command in found.items() if 'forkserver' in command}
    helpers = {child for child, command in found.items() if 'tracker' in command}
    served = {child for server in servers for child in _children(server) if _python(child)}
    return set(found) - servers - helpers | served


def _children(pid: int) -> Set[int]:
    found = set()
    for path in Path(f'/proc/{pid}/task').glob('*/children'):
        try:
            found.update(int(word) for word in path.read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def is_worker(pid: int) -> bool:
    """Whether that process runs Python and is no zombie."""
    return bool(_python(pid))


def _python(pid: int) -> str:
    """The command of that process, if it runs Python and is no zombie, else nothing."""
    try:
        state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
        command = Path(f'/proc/{pid}/cmdline').read_text()
    except OSError:
        return ''
    return command if state != 'Z' and 'python' in command else ''


class Job(NamedTuple):
    """What a job did."""

    runner: Any
    steps: List[Step]
    seen: List[List[int]]
    weights: List[Any]
    randomness: tuple
    watch: Watch
    left: Set[int]
    scalars: Dict[str, Any]

    @property
    def indices(self) -> List[List[int]]:
        return [step.indices for step in self.steps]

    @property
    def training(self) -> tuple:
        """What has to be equal to stock's."""
        losses = [step.loss for step in self.steps]
        return self.indices, losses, self.seen, self.weights, self.randomness, self.scalars

    @property
    def most(self) -> int:
        """The largest number of workers that were seen at once."""
        return max(map(len, self.watch.looks), default=0)

    @property
    def metric(self) -> Count:
        return self.runner.val_loop.evaluator.metrics[0]


def loader(
    shuffle: bool, workers: int = 2, size: int = 12, sampler: Any = None, pipeline: Any = None, **changes: Any
) -> dict:
    """A dataloader's config, persistent as in mmdet's configs."""
    pipeline = [Mark(), Draw()] if pipeline is None else pipeline
    return {
        **dict(batch_size=2, num_workers=workers, persistent_workers=workers > 0),
        **dict(dataset=dict(type='Numbers', size=size, pipeline=pipeline)),
        **dict(sampler=sampler or dict(type='DefaultSampler', shuffle=shuffle)),
        **changes,
    }


def build(folder: Path, lean: Any, by_epoch: bool = True, **changes: Any) -> Any:
    """The runner of a job.

    Args:
        folder: for its files.
        lean: None for stock's loops, or what ``release_workers`` is.
        by_epoch: three epochs with a validation after each, or 20 steps with one after every seven.
        changes: ``train``, ``val`` (dataloaders), ``train_cfg``, ``val_cfg``, ``delay`` of the metric, or arguments of
            ``Runner``.
    """
    sampler = None if by_epoch else dict(type='InfiniteSampler', shuffle=True)
    length = dict(max_epochs=3) if by_epoch else dict(max_iters=20, val_interval=7)
    kind = {} if lean is None else dict(release_workers=lean)
    train_cfg = dict(length, type=(STOCK if lean is None else LEAN)[by_epoch], **kind)
    val_cfg = dict(type='ValLoop' if lean is None else 'LeanValLoop', **kind)
    arguments = dict(
        model=dict(type='LeanNet'),
        work_dir=str(folder),
        train_dataloader=changes.pop('train') if 'train' in changes else loader(True, sampler=sampler),
        val_dataloader=changes.pop('val') if 'val' in changes else loader(False, size=6),
        train_cfg={**train_cfg, **changes.pop('train_cfg', {})},
        val_cfg=changes.pop('val_cfg', val_cfg),
        val_evaluator=[Count(changes.pop('delay', 0.0))],
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        randomness=dict(seed=3),
        default_hooks=dict(checkpoint=None, logger=dict(type='LoggerHook', interval=5)),
        experiment_name=f'{folder.name}-{time.monotonic_ns()}',
        log_level='WARNING',
    )
    return changes.pop('runner', Runner)(**{**arguments, **changes})


def train(folder: Path, lean: Any, by_epoch: bool = True, **changes: Any) -> Job:
    """Run a job; see :func:`build`."""
    runner = build(folder, lean, by_epoch, **changes)
    return follow(runner, runner.train)


def follow(runner: Any, call: Any) -> Job:
    """Do ``call`` and tell what happened. Workers that stock leaves behind are ended."""
    watch = Watch()
    watch.start()
    try:
        call()
    finally:
        watch.stop()
    randomness = torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()
    left = children() - watch.before
    for loop in (runner._train_loop, runner._val_loop, runner._test_loop):
        iterator = getattr(getattr(loop, 'dataloader', None), '_iterator', None)
        if hasattr(iterator, '_shutdown_workers'):
            iterator._shutdown_workers()
            loop.dataloader._iterator = None
    net = runner.model.module if hasattr(runner.model, 'module') else runner.model
    weights = [parameter.tolist() for parameter in net.parameters()] if isinstance(net, Net) else []
    scalars = {
        key: [float(value) for value in buffer.data[0]]
        for key, buffer in runner.message_hub.log_scalars.items()
        if not key.endswith('time')
    }
    steps, seen = (net.steps, net.seen) if isinstance(net, Net) else ([], [])
    return Job(runner, steps, seen, weights, randomness, watch, left, scalars)


def assert_one_pool(job: Job, workers: int = 2) -> None:
    """At no time was there more than one pool, and none is left."""
    assert 0 < job.most <= workers, max(job.watch.looks, key=len)
    net = job.runner.model.module if hasattr(job.runner.model, 'module') else job.runner.model
    trainers = {pid for step in job.steps for pid in step.pids}
    assert not trainers & net.evaluators
    assert not any(look & trainers and look & net.evaluators for look in job.watch.looks)
    assert not job.left


class Recorder(Hook):
    """Notes when the loops come to which point, which is not a point that holds up workers."""

    def __init__(self) -> None:
        self.notes: List[tuple] = []

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        self.notes.append(('val', runner.epoch, runner.iter, dict(metrics)))

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.notes.append(('train', runner.epoch, runner.iter))
