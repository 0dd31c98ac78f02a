"""Jobs without epochs that are resumed far into their data: tasks of :mod:`tasks`."""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from itertools import islice
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import mmdet.models  # noqa: F401  (as a real job)
import torch
from loop_jobs import EnoughError, Reply, Steps, loader
from mmdet.datasets.samplers import AspectRatioBatchSampler
from mmengine.dataset import InfiniteSampler
from mmengine.runner import Runner
from torch.utils.data import BatchSampler

import mmshared  # noqa: F401  (registers dataset and loops)
from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from mmshared.engine.resume import KEY

LOOPS = {'stock': 'IterBasedTrainLoop', 'lean': 'LeanIterTrainLoop'}
BATCHING = {'infinite': BatchSampler, 'aspect': AspectRatioBatchSampler}
SEED = 0


class Wait:
    """A transform that takes a while, and leaves a sample's number of it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, results: dict) -> Dict[str, Any]:
        """The sample."""
        time.sleep(self.seconds)
        return {'inputs': torch.zeros(1), 'index': results['sample_idx']}


class Numbers(Steps):
    """Notes which samples each step has.

    Attributes:
        indices: of each step.
        processor: processor time of this process when it began.
    """

    def __init__(self, most: int) -> None:
        super().__init__(0, most)
        self.indices: List[List[int]] = []
        self.processor: List[float] = []

    def train_step(self, data: Any, optim_wrapper: Any) -> Dict[str, torch.Tensor]:
        """See the parent."""
        self.processor.append(time.process_time())
        self.indices.append(list(data['index']))
        return super().train_step(data, optim_wrapper)


class Sizes:
    """The sizes of a COCO file's images, read from the JSON: what samplers want to know of a dataset."""

    def __init__(self, file: Path) -> None:
        images = json.loads(file.read_text())['images']
        self._infos = [{'width': image['width'], 'height': image['height']} for image in images]

    def __len__(self) -> int:
        return len(self._infos)

    def get_data_info(self, index: int) -> Dict[str, int]:
        """Width and height."""
        return self._infos[index]


def build(
    kind: str, settings: Dict[str, Any], sampling: Dict[str, Any], most: int, iters: int, **options: Any
) -> Runner:
    """A job over a :class:`SharedCocoDataset`, with stock's loop or the lean one.

    Args:
        kind: stock or lean.
        settings: ``folder`` of the job, ``file`` of annotations, ``classes``, ``workers``, ``sample`` (seconds).
        sampling: ``batching`` (a key of :data:`BATCHING`) and ``batch_size``.
        most: steps to take, at most.
        iters: ``max_iters``.
        options: further ones of ``Runner``.
    """
    dataset = {
        'type': 'SharedCocoDataset',
        'ann_file': settings['file'],
        'data_prefix': {'img': 'img'},
        'metainfo': {'classes': tuple(settings['classes'])},
        'cache_dir': f'{settings["folder"]}/cache',
        'pipeline': [Wait(settings['sample'])],
    }
    data = loader(dataset, settings['workers'], sampling['batch_size'], True)
    data['sampler'] = {'type': 'InfiniteSampler', 'shuffle': True}
    if sampling['batching'] == 'aspect':
        data['batch_sampler'] = {'type': 'AspectRatioBatchSampler'}
    return Runner(
        model=Numbers(most),
        train_dataloader=data,
        train_cfg={'type': LOOPS[kind], 'max_iters': iters},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
        randomness={'seed': SEED},
        env_cfg={'mp_cfg': {'mp_start_method': 'fork', 'opencv_num_threads': 0}},
        default_scope='mmdet',
        log_level='WARNING',
        experiment_name='bench',
        **options,
    )


def uninterrupted(file: str, batching: str, batch_size: int, skipped: int, count: int) -> Tuple[int, List[List[int]]]:
    """What a job has before and after iteration ``skipped``: CRC-32 of the batches before, ``count`` batches after it.

    MMEngine's and mmdet's samplers are iterated directly; nothing of mmshared is used.
    """
    batches = iter(BATCHING[batching](InfiniteSampler(Sizes(Path(file)), seed=SEED), batch_size, False))
    fingerprint = 0
    for batch in islice(batches, skipped):
        fingerprint = zlib.crc32(repr(batch).encode(), fingerprint)
    return fingerprint, list(islice(batches, count))


def checkpoints(
    settings: Dict[str, Any], samplings: Sequence[Dict[str, Any]], places: Sequence[int]
) -> Iterator[Reply]:
    """Make checkpoints at these iterations, and tell the batches that come after the last.

    A job is trained for one iteration; where its checkpoint says that it was made is then rewritten.
    """
    allow_mmengine_checkpoints()
    yield {}
    expected = []
    for sampling in samplings:
        folder = f'{settings["folder"]}/{name_of(sampling)}'
        hooks = {'checkpoint': {'type': 'CheckpointHook', 'by_epoch': False, 'interval': 1}}
        build('lean', settings, sampling, 2, 1, work_dir=folder, default_hooks=hooks).train()
        made = torch.load(f'{folder}/iter_1.pth', weights_only=False)
        for place in places:
            fingerprint, following = uninterrupted(settings['file'], **sampling, skipped=place, count=settings['steps'])
            made['meta']['iter'] = made['message_hub']['runtime_info']['iter'] = place
            made['message_hub']['runtime_info'][KEY].update(iteration=place, batch=place, fingerprint=fingerprint)
            torch.save(made, f'{folder}/{place}.pth')
        expected.append(following)
    yield {'expected': expected}


def name_of(sampling: Dict[str, Any]) -> str:
    """A file name for it."""
    return f'{sampling["batching"]}{sampling["batch_size"]}'


def resume(settings: Dict[str, Any], sampling: Dict[str, Any], runs: Sequence[Tuple[str, int]]) -> Iterator[Reply]:
    """Resume the job with each loop (stock or lean) at each iteration of ``runs``, one after the other."""
    allow_mmengine_checkpoints()
    yield {}
    for kind, place in runs:
        folder = f'{settings["folder"]}/{name_of(sampling)}'
        hooks = {'checkpoint': None}
        options = {'work_dir': f'{folder}/work', 'default_hooks': hooks, 'resume': True}
        steps = settings['steps']
        runner = build(kind, settings, sampling, steps, 10**9, load_from=f'{folder}/{place}.pth', **options)
        start, used = time.monotonic(), time.process_time()
        with contextlib.suppress(EnoughError):
            runner.train()
        model = runner.model
        yield {
            'seconds': model.spans[0][0] - start,
            'processor': model.processor[0] - used,
            'indices': model.indices[:steps],
        }
