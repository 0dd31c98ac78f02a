"""Samples whose way from the workers to the main process is measured, and the passes over them: tasks of :mod:`tasks`.

What is sent is new in each batch, as a pipeline's results are. That matters: PyTorch moves a tensor into shared memory
where it lies, so whoever sends one twice pays once. But nothing is computed for it: the new objects have the memory of
samples that were made beforehand. (Only the samples of ``jpeg`` are loaded, as in a training.)

The consumer does what every preprocessor does at least: it looks at each field of each sample, and reads one byte of
every page (4 kB) of each tensor and array, of small ones the first element. So what it costs to map shared memory is in
the figures, and no arithmetic is.
"""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import cv2
import numpy as np
import psutil
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import LoadAnnotations, PackDetInputs
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import FUNCTIONS
from mmengine.structures import BaseDataElement, InstanceData
from torch.utils.data import DataLoader, Dataset

import mmshared  # noqa: F401  (registers its collate function)

Reply = Dict[str, Any]
Sample = Dict[str, Any]
PAGE = 4096
PREFETCH = 2
LEAST_BATCHES = 3
#: How many batches are held when the first and when the second count of objects is taken.
HELD = (1, 3)
#: Prefixes of the names that shared memory has in /proc: PyTorch's files, memfd_create's, anonymous mappings.
SHARED = ('/dev/shm/', '/memfd:', '/dev/zero')


class NotEqualError(RuntimeError):
    """Stock and ours do not give the same batch: their figures mean nothing."""


# ---- samples
class Samples(Dataset):
    """Samples made beforehand; each access gives new objects over their memory. They come again and again.

    Args:
        count: how many there are.
        size: height and width of the images (3, h, w), uint8.
        instances: of each sample.
        masks: 'bitmap' (``BitmapMasks``), 'tensor' (``torch.uint8`` of (n, h, w)) or None.
    """

    def __init__(self, count: int, size: Sequence[int], instances: int, masks: Optional[str]) -> None:
        self._made_of = count, size, instances, masks
        rng = np.random.default_rng(0)
        self._samples = [make_sample(rng, number, tuple(size), instances, masks) for number in range(count)]

    def __getitem__(self, index: int) -> Sample:
        return {key: anew(value) for key, value in self._samples[index % len(self._samples)].items()}

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), self._made_of  # not by value: what is sent by a spawned worker's start would be shared


class JpegSamples(Dataset):
    """Samples that a pipeline of mmdet's makes: ``LoadImageFromFile``, ``LoadAnnotations``, ``PackDetInputs``.

    Args:
        folder: has the JPEGs.
        instances: of each sample.
    """

    def __init__(self, folder: str, instances: int) -> None:
        self._made_of = folder, instances
        rng = np.random.default_rng(0)
        self._pipeline = Compose([LoadImageFromFile(), LoadAnnotations(with_bbox=True), PackDetInputs()])
        self._records = [self._record(rng, path, instances) for path in sorted(Path(folder).glob('*.jpg'))]

    @staticmethod
    def _record(rng: np.random.Generator, path: Path, instances: int) -> Dict[str, Any]:
        height, width = cv2.imread(str(path)).shape[:2]
        found = [
            {'bbox': box, 'bbox_label': int(rng.integers(80)), 'ignore_flag': 0}
            for box in make_boxes(rng, instances, height, width).tolist()
        ]
        return {'img_path': str(path), 'img_id': path.stem, 'height': height, 'width': width, 'instances': found}

    def __getitem__(self, index: int) -> Sample:
        return self._pipeline(dict(self._records[index % len(self._records)]))

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), self._made_of


def make_dataset(case: Dict[str, Any]) -> Union[Samples, JpegSamples]:
    """The samples of a case: see ``bench_handoff.Case``."""
    if case['folder'] is not None:
        return JpegSamples(case['folder'], case['instances'])
    # No two batches of a worker that are on their way at a time have the same memory; masks would take too much of it.
    count = case['batch_size'] * (1 if case['masks'] else PREFETCH + 1)
    return Samples(count, case['size'], case['instances'], case['masks'])


def make_sample(
    rng: np.random.Generator, number: int, size: Tuple[int, int], instances: int, masks: Optional[str]
) -> Sample:
    """What ``PackDetInputs`` gives: an image, instances and an empty set of ignored ones."""
    sample = DetDataSample()
    for field, count in (('gt_instances', instances), ('ignored_instances', 0)):
        boxes = make_boxes(rng, count, *size)
        found = InstanceData()
        found.bboxes = HorizontalBoxes(torch.from_numpy(boxes))
        found.labels = torch.from_numpy(rng.integers(0, 80, count))
        if masks:
            bits = make_masks(boxes, size)
            found.masks = BitmapMasks(bits, *size) if masks == 'bitmap' else torch.from_numpy(bits)
        setattr(sample, field, found)
    path = f'data/coco/train2017/{number:012d}.jpg'
    image = {'img_id': number, 'img_path': path, 'ori_shape': size, 'img_shape': size}
    sample.set_metainfo({**image, 'scale_factor': (1.0, 1.0), 'flip': False, 'flip_direction': None})
    return {'inputs': torch.from_numpy(rng.integers(0, 256, (3, *size), dtype=np.uint8)), 'data_samples': sample}


def make_boxes(rng: np.random.Generator, count: int, height: int, width: int) -> np.ndarray:
    """Corners (count, 4), float32, within the image: a few large boxes and many small ones, as in COCO."""
    limit = np.array([width, height])
    sides = np.clip(limit * np.exp(rng.normal(-2.5, 0.9, (count, 2))), 1, limit)
    corner = rng.uniform(0, 1, (count, 2)) * (limit - sides)
    return np.hstack([corner, corner + sides]).astype(np.float32)


def make_masks(boxes: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """An ellipse within each box: (n, h, w), uint8."""
    masks = np.zeros((len(boxes), *size), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.tolist()):
        middle, axes = ((left + right) / 2, (top + bottom) / 2), (right - left, bottom - top)
        cv2.ellipse(mask, (middle, axes, 0), 1, -1)
    return masks


def anew(value: Any) -> Any:
    """New objects over the same memory: a tensor has a storage of its own, so that nobody has sent it before."""
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(value.numpy())
    if isinstance(value, (BaseDataElement, HorizontalBoxes, BitmapMasks)):
        new = object.__new__(type(value))
        new.__dict__.update((name, anew(part)) for name, part in value.__dict__.items())
        return new
    return set(value) if isinstance(value, set) else value


# ---- loading
def collate_functions(ours: str) -> Dict[str, Callable[[Sequence[Sample]], Any]]:
    """The kinds: stock, ours, and the same loader from which no batch comes."""
    function = FUNCTIONS.get(ours)
    if function is None:
        raise LookupError(f'no collate function {ours!r} is registered (mmengine.registry.FUNCTIONS)')
    return {'stock': pseudo_collate, 'ours': function, 'none': collate_and_drop}


def collate_and_drop(batch: Sequence[Sample]) -> None:
    """Stock's work in the worker, but nothing is sent."""
    pseudo_collate(batch)


class InTurns:
    """Batches of indices without end."""

    def __init__(self, batch_size: int) -> None:
        self._size = batch_size

    def __iter__(self) -> Iterator[List[int]]:
        for start in itertools.count(step=self._size):
            yield list(range(start, start + self._size))


def begin(strategy: str, worker: Optional[int] = None) -> None:
    """What a process does first, the main one and each worker: one thread, and how tensors are to be shared."""
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    torch.multiprocessing.set_sharing_strategy(strategy)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # stock may need thousands of descriptors


def open_loader(
    dataset: Dataset,
    batch_size: int,
    collate: Callable,
    workers: int,
    strategy: str,
    start_method: str,
    pin_memory: bool = False,
) -> Iterator[Any]:
    """A ``DataLoader``'s batches without end; its workers end when the iterator is forgotten."""
    context = multiprocessing.get_context(start_method)
    if start_method == 'forkserver':
        context.set_forkserver_preload(['mmdet.datasets', 'mmshared'])  # or each worker of each pass imports them
    loader = DataLoader(
        dataset,
        batch_sampler=InTurns(batch_size),
        num_workers=workers,
        prefetch_factor=PREFETCH,
        collate_fn=collate,
        multiprocessing_context=context,
        worker_init_fn=functools.partial(begin, strategy),
        pin_memory=pin_memory,
    )
    return iter(loader)


def touch(batch: Any) -> None:
    """Read a batch as the module's text says. None, what the loader without batches gives, has nothing to read."""
    if batch is None:
        return
    for image in batch['inputs']:
        _read(image)
    for sample in batch['data_samples']:
        for instances in (sample.gt_instances, sample.ignored_instances):
            for value in instances.values():
                _read(value)


def _read(value: Any) -> None:
    array = value if isinstance(value, np.ndarray) else _array(value)
    if array.nbytes > PAGE:
        array.reshape(-1).view(np.uint8)[::PAGE].sum()
    elif array.size:
        array.item(0)


def _array(value: Any) -> np.ndarray:
    """The array of a tensor, of boxes or of masks."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return value.masks if isinstance(value, BitmapMasks) else value.tensor.numpy()


def check_equal(stock: Any, ours: Any, where: str = 'batch') -> None:
    """Compare two batches: types, order of keys, dtypes, shapes, every bit.

    Raises:
        NotEqualError: they differ; the message says where.
    """
    if type(stock) is not type(ours):
        raise NotEqualError(f'{where} is a {type(ours).__name__}, stock has a {type(stock).__name__}')
    if isinstance(stock, torch.Tensor):
        stock, ours = stock.numpy(), ours.numpy()
    if isinstance(stock, np.ndarray):
        if (stock.dtype, stock.shape) != (ours.dtype, ours.shape) or stock.tobytes() != ours.tobytes():
            raise NotEqualError(f'{where} is not what stock has there')
    elif isinstance(stock, (dict, BaseDataElement, HorizontalBoxes, BitmapMasks)):
        parts = [value if isinstance(value, dict) else vars(value) for value in (stock, ours)]
        check_equal(list(parts[0]), list(parts[1]), f'keys of {where}')
        for name in parts[0]:
            check_equal(parts[0][name], parts[1][name], f'{where}[{name!r}]')
    elif isinstance(stock, (list, tuple)) and len(stock) == len(ours):
        for number, pair in enumerate(zip(stock, ours)):
            check_equal(*pair, f'{where}[{number}]')
    elif stock != ours:
        raise NotEqualError(f'{where} is {ours!r}, stock has {stock!r}')


# ---- tasks
def passes(case: Dict[str, Any], ours: str, loading: Dict[str, Any], repeats: int, seconds: float) -> Iterator[Reply]:
    """Passes of every kind in turns, ``repeats`` times; each reply has one pass of each.

    Args:
        case: what is loaded.
        ours: the registered name of the collate function that is compared with stock.
        loading: ``workers``, ``strategy`` and ``start_method``.
        repeats: passes of each kind.
        seconds: a pass takes, at least three batches.
    """
    begin(loading['strategy'])
    dataset, kinds = make_dataset(case), collate_functions(ours)
    size = case['batch_size']
    check_equal(
        pseudo_collate([dataset[index] for index in range(size)]),
        next(open_loader(dataset, size, kinds['ours'], **loading)),
    )
    gc.collect()
    yield {}
    for number in range(repeats):
        order = list(kinds)[:: -1 if number % 2 else 1]
        yield {kind: one_pass(dataset, size, kinds[kind], loading, seconds) for kind in order}


def one_pass(
    dataset: Dataset, batch_size: int, collate: Callable, loading: Dict[str, Any], seconds: float
) -> Dict[str, float]:
    """Milliseconds a batch, by the clock and of processor time, of a loader that has been running for a while.

    It goes on loading until the time is over, so no batch comes from a queue that is only emptied.
    """
    batches = open_loader(dataset, batch_size, collate, **loading)
    for _ in range(2 * PREFETCH * loading['workers']):  # all that is made once has been made
        touch(next(batches))
    workers = [psutil.Process(child.pid) for child in multiprocessing.active_children()]
    count, main_before, before = 0, time.process_time(), _processor_time(workers)
    start = now = time.perf_counter()
    while now - start < seconds or count < LEAST_BATCHES:
        batch = next(batches)
        touch(batch)
        count, now = count + 1, time.perf_counter()
    main = time.process_time() - main_before
    every = main + _processor_time(workers) - before
    scale = 1e3 / count
    return {'ms': (now - start) * scale, 'main_cpu_ms': main * scale, 'cpu_ms': every * scale, 'batches': count}


def _processor_time(processes: Sequence[psutil.Process]) -> float:
    """Seconds of processor time that these have used, in steps of 10 ms."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def held(case: Dict[str, Any], ours: str, kind: str, loading: Dict[str, Any], seconds: float) -> Iterator[Reply]:
    """A job to be looked at from outside, then what a batch is made of that the main process holds.

    The stops: before the loader, its workers have begun, ``seconds`` later. Then the counts: with one worker, so that
    no other batch has come to the main process than those it has asked for.
    """
    begin(loading['strategy'])
    dataset, collate, size = make_dataset(case), collate_functions(ours)[kind], case['batch_size']
    gc.collect()
    yield {}
    batches = open_loader(dataset, size, collate, **loading)
    for _ in range(2 * PREFETCH * loading['workers']):
        touch(next(batches))
    yield {}
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end or count < LEAST_BATCHES:
        batch = next(batches)
        touch(batch)
        count += 1
    yield {'batches': count}
    batch = batches = None  # its workers end
    batches, kept, counts = open_loader(dataset, size, collate, **{**loading, 'workers': 1}), [], []
    for number in HELD:
        kept += [next(batches) for _ in range(number - len(kept))]
        counts.append(shared_objects())
    batches = kept = None
    yield {name: (counts[1][name] - counts[0][name]) / (HELD[1] - HELD[0]) for name in counts[0]}


def shared_objects() -> Dict[str, int]:
    """Open descriptors of this process, and its mappings of shared memory."""
    mappings = [line.split(maxsplit=5) for line in Path('/proc/self/maps').read_text().splitlines()]
    shared = [parts for parts in mappings if 's' in parts[1] and parts[-1].startswith(SHARED)]
    return {'descriptors': len(os.listdir('/proc/self/fd')), 'mappings': len(shared)}
