"""From the main process to the accelerator: stock's ``cast_data`` against ours. A task of :mod:`tasks`."""

from __future__ import annotations

import functools
import gc
import time
from typing import Any, Callable, Dict, Iterator

import torch
from handoff_cases import LEAST_BATCHES, begin, collate_functions, make_dataset, open_loader
from mmengine.model import BaseDataPreprocessor
from torch.profiler import ProfilerActivity, profile

from mmshared.parallel import PackedBatch
from mmshared.parallel.collation import without_unpacking

Reply = Dict[str, Any]
Move = Callable[[Any], Any]
MB = 1e6
PROFILED = 3
WARM_UP = 10


def moves(
    case: Dict[str, Any],
    ours: str,
    loading: Dict[str, Any],
    repeats: int,
    seconds: float,
    device: str,
    pin_memory: bool = False,
) -> Iterator[Reply]:
    """Batches of a loader go to a device, in passes of stock and ours in turns; each reply has one pass of each.

    Ours stays packed until it is on the device, as in the lean loops.

    Args:
        case: what is loaded.
        ours: the registered name of the collate function that is compared with stock.
        loading: ``workers``, ``strategy`` and ``start_method``.
        repeats: passes of each kind.
        seconds: a pass takes, at least three batches.
        device: 'cuda'. On 'cpu' nothing is copied and no memory is counted.
        pin_memory: of the loader.
    """
    begin(loading['strategy'])
    target, dataset, functions = torch.device(device), make_dataset(case), collate_functions(ours)
    movers: Dict[str, Move] = {'stock': BaseDataPreprocessor().to(target).cast_data}
    movers['ours'] = functools.partial(move_packed, target, movers['stock'])
    functions['ours'] = without_unpacking(functions['ours'])
    gc.collect()
    yield {'device': torch.cuda.get_device_name(target) if target.type == 'cuda' else device}
    for number in range(repeats):
        found = {}
        for kind in list(movers)[:: -1 if number % 2 else 1]:
            batches = open_loader(dataset, case['batch_size'], functions[kind], pin_memory=pin_memory, **loading)
            found[kind] = one_pass(batches, movers[kind], seconds, target)
        yield found


def move_packed(device: torch.device, cast: Move, batch: Any) -> Any:
    """A packed batch on the device, unpacked; another one as ``cast`` has it."""
    return batch.to(device).unpack() if isinstance(batch, PackedBatch) else cast(batch)


def one_pass(batches: Iterator[Any], move: Move, seconds: float, device: torch.device) -> Dict[str, float]:
    """Milliseconds of a move until all has arrived, and with the wait for the batch; copies and memory of a batch."""
    wait = torch.cuda.synchronize if device.type == 'cuda' else lambda: None
    for _ in range(WARM_UP):  # the first ones wait for the workers, and for the device to be set up
        move(next(batches))
    wait()
    times, peaks, begun = [], [], time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < LEAST_BATCHES:
        batch = next(batches)
        before = _reset_peak(device)
        start = time.perf_counter()
        moved = move(batch)
        wait()
        times.append(time.perf_counter() - start)
        peaks.append(_peak(device) - before)
        del moved
    count, loop = len(times), time.perf_counter() - begun
    found = {'ms': sum(times) / count * 1e3, 'loop_ms': loop / count * 1e3, 'peak_mb': max(peaks), 'batches': count}
    return {**found, 'copies': copies(batches, move, device)}


def copies(batches: Iterator[Any], move: Move, device: torch.device) -> float:
    """Copies from the host to the device that a batch takes, as the profiler sees them."""
    if device.type != 'cuda':
        return 0.0
    ready = [next(batches) for _ in range(PROFILED)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for batch in ready:
            move(batch)
        torch.cuda.synchronize()
    found = [event for event in profiler.events() if event.name.startswith('Memcpy HtoD')]
    return len(found) / PROFILED


def _reset_peak(device: torch.device) -> float:
    """Megabytes of the device in use; from now on the peak is looked for."""
    if device.type != 'cuda':
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device) / MB


def _peak(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / MB if device.type == 'cuda' else 0.0
