"""One generation of workers: from their start until they are gone."""

from __future__ import annotations

import contextlib
import multiprocessing
import warnings
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch.utils.data import DataLoader

from .receiver import Receiver
from .seeding import PoolSeed
from .start import init_worker, warm_up
from .stream import BatchStream


def has_index_batches(loader: Any) -> bool:
    """Whether it is known what ``loader`` would load, and in which order.

    It has to be a plain ``DataLoader`` over a map-style dataset: a subclass may do anything, an iterable dataset has no
    index batches, and which batch has arrived has to be known.
    """
    return (
        type(loader) is DataLoader
        and not isinstance(loader.dataset, torch.utils.data.IterableDataset)
        and getattr(loader, 'in_order', True)
    )


def index_source(loader: Any) -> Any:
    """What ``loader`` asks which samples come next: its batch sampler, or the sampler if it does not batch.

    (The truth of one that is empty, or has no length, is not to be asked for.)
    """
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def is_poolable(loader: Any) -> bool:
    """Whether workers of ours can do what those of ``loader`` would: it has some, and :func:`has_index_batches`."""
    return has_index_batches(loader) and loader.num_workers > 0


def shut_down(batches: Any) -> None:
    """End the workers of ``batches``, a ``DataLoader``'s iterator, whoever else refers to it; they are gone afterwards.

    Left to the garbage collector they live on while a traceback or a variable refers to it, and if the interpreter
    ends first, that takes up to five seconds for each.
    """
    end = getattr(batches, '_shutdown_workers', None)
    if end is not None:
        with contextlib.suppress(RuntimeError):  # from a worker that dies now: it is not needed any more
            end()


class Pool:
    """Workers that load index batches as those of ``loader`` would.

    They start with the first stream, and stay until :meth:`close`. The main process's random state does not move.

    Args:
        loader: the user's own; see :func:`has_index_batches`. Without workers, the main process loads.
        seed: where the workers' random numbers come from.
        receiver: what becomes of batches when they have arrived.
        ahead: whether the sampler may be asked, and a batch loaded, one batch before ``loader`` would.

    Attributes:
        processes: the workers.
        seed: as given.
    """

    def __init__(self, loader: DataLoader, seed: PoolSeed, receiver: Receiver, ahead: bool = False) -> None:
        self.seed = seed
        self.processes: List[BaseProcess] = []
        self._feed = _Feed()
        self._receiver, self._ahead = receiver, ahead
        self._loader: Optional[DataLoader] = _sibling(loader, self._feed, seed, receiver)
        self._batches: Optional[Iterator[Any]] = None
        self._received: Iterator[Any] = iter(())

    def load(self, stream: BatchStream) -> None:
        """Begin to load what ``stream`` hands out.

        If not all workers can be started none is left, and the error is raised.
        """
        self._feed.stream = stream
        before = [] if self.processes else multiprocessing.active_children()
        warm_up(self._loader)
        try:
            self._batches = iter(self._loader)
        except BaseException:
            for process in _started_since(before):
                process.terminate()
                process.join()
            raise
        if not self.processes:
            self.processes = _started_since(before)
        self._received = self._receiver.receive(self._batches, self._ahead)

    def next(self) -> Any:
        """The next batch of the stream. Raises ``StopIteration`` if it is dry, and what went wrong in a worker."""
        batch = next(self._received)
        self._feed.stream.deliver()
        return batch

    def dead(self) -> List[Tuple[int, int]]:
        """Process ids and exit codes of workers that have ended though nobody asked them to."""
        ended = [(process.pid, process.exitcode) for process in self.processes]
        return [(pid, code) for pid, code in ended if code is not None]

    def close(self) -> None:
        """End the workers, whatever they are doing; they are gone afterwards."""
        shut_down(self._batches)
        for process in self.processes:
            if process.is_alive():  # it has inherited a handler of SIGTERM, which is what PyTorch sends last
                process.kill()
                process.join()
        self._batches = self._loader = None
        self._received = iter(())
        self.processes = []


class _Feed:
    """The index batches of the stream that is loaded now."""

    stream: BatchStream

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream)


def _started_since(before: List[BaseProcess]) -> List[BaseProcess]:
    return [process for process in multiprocessing.active_children() if process not in before]


def _sibling(loader: DataLoader, feed: _Feed, seed: PoolSeed, receiver: Receiver) -> DataLoader:
    """A loader with the settings of ``loader`` for the batches of ``feed``."""
    generator = torch.Generator()
    generator.manual_seed(seed.of_loader)
    batching = {'sampler': feed, 'batch_size': None} if loader.batch_sampler is None else {'batch_sampler': feed}
    further = {'pin_memory_device': loader.pin_memory_device} if hasattr(loader, 'pin_memory_device') else {}
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # whatever there is to say about these settings has been said
        return DataLoader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=receiver.collate(loader.collate_fn),
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=partial(init_worker, seed, loader.worker_init_fn),
            multiprocessing_context=loader.multiprocessing_context,
            generator=generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.num_workers > 0,
            **batching,
            **further,
        )
