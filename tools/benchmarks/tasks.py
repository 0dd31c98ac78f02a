"""What a measured process does, step by step: run by :class:`probe.Probe`, with nothing but the task in the process.

A task is a generator. It imports first, then stops at each ``yield``, whose value goes to the benchmark as a line of
JSON; while it waits there, the benchmark looks at its memory.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

DIGEST_SAMPLES = 1000
BLOCK = 20
BLOCKS = 200
LEAST_BLOCKS, MOST_SECONDS = 4, 30
COMPARED = 20
BATCH = 128
Reply = Dict[str, Any]


def make_dataset(kind: str, file: str, classes: Sequence[str], cache: str) -> Any:
    """The dataset: ``kind`` is stock or shared, with the filter that mmdet's training configs use."""
    options = {
        'ann_file': file,
        'data_prefix': {'img': 'img'},
        'metainfo': {'classes': tuple(classes)},
        'filter_cfg': {'filter_empty_gt': True, 'min_size': 32},
        'pipeline': [],
    }
    if kind == 'stock':
        from mmdet.datasets import CocoDataset

        return CocoDataset(**options)
    from mmshared.datasets import SharedCocoDataset

    return SharedCocoDataset(**options, cache_dir=cache)


def import_all(kinds: Sequence[str]) -> None:
    """What a training process has imported anyway, and the classes to be measured."""
    import mmdet.datasets  # noqa: F401
    import torch.utils.data  # noqa: F401

    if 'shared' in kinds:
        import mmshared.datasets  # noqa: F401
    gc.collect()


def digest(dataset: Any) -> str:
    """A hash of the length and of up to a thousand samples: keys, their order, types and every bit of the numbers."""
    result = hashlib.blake2b(str(len(dataset)).encode(), digest_size=16)
    for index in range(0, len(dataset), max(1, len(dataset) // DIGEST_SAMPLES)):
        result.update(repr(dataset.get_data_info(index)).encode())
    return result.hexdigest()


def load(kind: str, **source: Any) -> Iterator[Reply]:
    """One process loads the dataset: seconds, then what it holds."""
    import_all([kind])
    yield {}
    start = time.perf_counter()
    dataset = make_dataset(kind, **source)
    seconds = time.perf_counter() - start
    yield {'seconds': seconds}
    pickled = dataset.data_bytes.nbytes if kind == 'stock' else 0
    yield {'digest': digest(dataset), 'length': len(dataset), 'pickled_bytes': pickled}


def rank(kind: str, workers: int, samples: int, empty: str, file: str, **source: Any) -> Iterator[Reply]:
    """One rank of a training job whose workers each read every sample: first of a file of one image, then of the real.

    The steps of each: before loading, loaded, all read. ``samples`` are read either way, which is why the first shows
    what the processes cost without a dataset. With no workers the rank itself reads.
    """
    import_all([kind])
    _read_everything(make_dataset(kind, empty, **source), workers, 1)  # what is imported and kept at first use
    for path in (empty, file):
        gc.collect()
        yield {}
        dataset = make_dataset(kind, path, **source)
        yield {}
        workers_alive, reads = _read_everything(dataset, workers, samples)
        yield {'reads': reads}
        del workers_alive, dataset


def _read_everything(dataset: Any, workers: int, samples: int) -> Tuple[object, List[int]]:
    """Has every worker read every sample; returns what keeps the workers alive, and how many samples each has read."""
    from torch.utils.data import DataLoader

    class Reads:
        """Reads a sample and passes on only who read it, so that no data travel between the processes."""

        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> int:
            dataset.get_data_info(index % len(dataset))
            return os.getpid()

    class Batches:
        """Every batch once for each worker: they take turns."""

        def __iter__(self) -> Iterator[List[int]]:
            for start in range(0, samples, BATCH):
                for _ in range(max(1, workers)):
                    yield list(range(start, min(start + BATCH, samples)))

    loader = DataLoader(
        Reads(), batch_sampler=Batches(), num_workers=workers, persistent_workers=workers > 0, collate_fn=list
    )
    reads: Dict[int, int] = {}
    batches = iter(loader)
    for pids in batches:
        reads[pids[0]] = reads.get(pids[0], 0) + len(pids)
    return batches, list(reads.values())


def epoch(kind: str, workers: int, stops: int, file: str, part: float = 1, **source: Any) -> Iterator[Reply]:
    """One rank whose workers each read every sample once, shuffled, in ``stops`` equal steps.

    If ``part`` is less than 1, they read so much of the samples; if it is 0, all of them, as they lie in the store.

    The first two stops are before loading and loaded; then comes one when the workers have begun.
    """
    from torch.utils.data import DataLoader

    import_all([kind])
    yield {}
    start = time.perf_counter()
    dataset = make_dataset(kind, file, **source)
    yield {'seconds': time.perf_counter() - start}
    everything = range(len(dataset))
    order = random.Random(0).sample(everything, int(len(dataset) * part)) if part else everything
    ends = [len(order) * i // stops for i in range(stops + 1)]

    class Reads:
        """Each item is a whole step, so that every worker can have one; passes on only who read it."""

        def __getitem__(self, step: int) -> int:
            for index in order[ends[step - 1] if step else 0 : ends[step]]:
                dataset.get_data_info(index)
            return os.getpid()

    steps = [step for step in range(stops + 1) for _ in range(workers)]
    loader = iter(DataLoader(Reads(), sampler=steps, batch_size=None, num_workers=workers, prefetch_factor=1))
    for _ in range(stops + 1):
        yield {'workers': [next(loader) for _ in range(workers)]}


def lookups(file: str, **source: Any) -> Iterator[Reply]:
    """``get_data_info`` of both datasets in one process, in small blocks of the same samples, in turns.

    Processor time, in microseconds a call: equal to time on the clock, but for other processes getting in between.
    """
    import_all(['stock', 'shared'])
    yield {}
    datasets = {kind: make_dataset(kind, file, **source) for kind in ('stock', 'shared')}
    _read_all(datasets)
    yield from _in_turns({kind: dataset.get_data_info for kind, dataset in datasets.items()}, len(datasets['stock']))


def _in_turns(calls: Dict[str, Callable[[int], Any]], length: int) -> Iterator[Dict[str, List[float]]]:
    """Microseconds of processor time a call, of each block of each kind; fewer blocks if calls take long."""
    end = time.monotonic() + MOST_SECONDS
    indices = random.Random(0).choices(range(length), k=BLOCK * BLOCKS)
    times: Dict[str, List[float]] = {kind: [] for kind in calls}
    for number in range(BLOCKS):
        block = indices[number * BLOCK : (number + 1) * BLOCK]
        for kind in list(calls)[:: 1 if number % 2 else -1]:
            call = calls[kind]
            start = time.thread_time()
            for index in block:
                call(index)
            times[kind].append((time.thread_time() - start) / BLOCK * 1e6)
        if number >= LEAST_BLOCKS and time.monotonic() > end:
            break
    yield times


def _read_all(datasets: Dict[str, Any]) -> None:
    """As in training, each sample has been read before, though not just now."""
    for index in range(len(datasets['stock'])):
        for dataset in datasets.values():
            dataset.get_data_info(index)


def loading(file: str, variants: Sequence[Dict[str, Any]], **source: Any) -> Iterator[Reply]:
    """``dataset[i]`` with nothing but the transform that loads annotations in the pipeline; else as :func:`lookups`.

    ``variants`` are the transform's options. Replies with one dict of times a variant.
    """
    import_all(['stock', 'shared'])
    from mmdet.datasets.transforms import LoadAnnotations
    from mmengine.dataset import Compose

    from mmshared.datasets import LoadSharedAnnotations

    yield {}
    transforms = {'stock': LoadAnnotations, 'shared': LoadSharedAnnotations}
    datasets = {kind: make_dataset(kind, file, **source) for kind in transforms}
    _read_all(datasets)
    for options in variants:
        for kind, dataset in datasets.items():
            dataset.pipeline = Compose([_set_shape, transforms[kind](**options)])
        for index in range(0, len(datasets['stock']), max(1, len(datasets['stock']) // COMPARED)):
            if _content(datasets['stock'][index]) != _content(datasets['shared'][index]):
                raise RuntimeError(f'sample {index} is not the same with {options}')
        yield from _in_turns({kind: dataset.__getitem__ for kind, dataset in datasets.items()}, len(datasets['stock']))


def _content(value: Any) -> Any:
    """Loaded annotations as what ``==`` compares: dtypes, shapes and bits of the arrays in them."""
    if isinstance(value, dict):
        return [(key, _content(item)) for key, item in value.items()]
    for name in ('tensor', 'masks'):
        value = getattr(value, name, value)
    if isinstance(value, list):
        return [_content(item) for item in value]
    if not hasattr(value, 'tolist'):
        return value
    array = value.numpy() if hasattr(value, 'numpy') else value
    return array.dtype.str, array.shape, array.tobytes()


def _set_shape(results: Dict[str, Any]) -> Dict[str, Any]:
    """What LoadImageFromFile says of the image, without one."""
    results['ori_shape'] = results['height'], results['width']
    return results


def share(
    way: str, rank: int, ranks: int, file: str, single: str, folder: str, classes: Sequence[str]
) -> Iterator[Reply]:
    """One of ``ranks`` processes that have the samples by one of :data:`ways.WAYS`: imports, load, read everything."""
    import_all([])
    one = _opened(way, single, f'{folder}/single{rank}', classes, 1, 0)  # what is imported and kept at first use
    one.read(0)
    del one
    gc.collect()
    yield {}
    start = sum(os.times()[:4])  # of this process and of those it has waited for
    samples = _opened(way, file, f'{folder}/all', classes, ranks, rank)
    yield {'seconds': sum(os.times()[:4]) - start, 'length': len(samples), 'stored': samples.stored()}
    for index in range(len(samples)):
        samples.read(index)
    yield {}


def reads(names: Sequence[str], file: str, folder: str, classes: Sequence[str]) -> Iterator[Reply]:
    """Reads samples by all ways in one process, in blocks of the same samples, in turns.

    Processor time in microseconds a sample, and how far polygons are from mmdet's.
    """
    from ways import deviation

    import_all([])
    opened = {name: _opened(name, file, f'{folder}/{name}', classes, 1, 0) for name in names}
    stock = next(iter(opened.values()))
    off = {name: deviation(stock, way) for name, way in opened.items()}
    indices = random.Random(0).choices(range(len(stock)), k=BLOCK * BLOCKS)
    times: Dict[str, List[float]] = {name: [] for name in names}
    for number in range(BLOCKS):
        block = indices[number * BLOCK : (number + 1) * BLOCK]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            read = opened[name].read
            start = time.thread_time()
            for index in block:
                read(index)
            times[name].append((time.thread_time() - start) / BLOCK * 1e6)
    yield {'us': times, 'deviation': off}


def _opened(way: str, file: str, folder: str, classes: Sequence[str], ranks: int, rank: int) -> Any:
    from ways import WAYS

    Path(folder).mkdir(parents=True, exist_ok=True)
    samples = WAYS[way](Path(file), Path(folder), classes, ranks)
    samples.open(rank)
    return samples


def job(module: str, function: str, **settings: Any) -> Iterator[Reply]:
    """A task that is a whole training job; it has a module of its own, which imports all that such a job needs."""
    yield from getattr(import_module(module), function)(**settings)


TASKS = {task.__name__: task for task in (load, rank, epoch, lookups, loading, share, reads, job)}


def main() -> None:
    """Run the task named on the command line; each line on stdin lets it run on, the end of stdin ends it."""
    replies = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print is no reply
    for reply in TASKS[sys.argv[1]](**json.loads(sys.argv[2])):
        replies.write(json.dumps(reply) + '\n')
        replies.flush()
        if not sys.stdin.readline():
            return


if __name__ == '__main__':
    main()
