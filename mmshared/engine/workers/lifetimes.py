"""When workers live.

Each dataloader of a job has its :class:`Workers`, all of which share one :class:`Lifetimes`. It has three rules:

1. One pool lives at a time. Whoever starts one has the others closed first.
2. A pool starts when its phase begins, or earlier: as soon as the phase before it has received its last batch, so that
   it fetches while the last step runs, metrics are computed and hooks do their work.
3. A pool is closed when its phase has received its last batch and another phase follows; it stays where the same phase
   goes on, as after an epoch without validation.

What is not to be seen from outside: the batches and their order (:class:`~.stream.BatchStream`), and the main process's
random state, which moves where and as a ``DataLoader`` with these settings would move it.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Protocol, Union

import torch

from mmshared.utils.iteration import one_by_one

from .errors import LoadingError, deaths, failure, last_words
from .origin import Origin, State, capture, restore
from .pool import Pool, has_index_batches, index_source, is_poolable, shut_down
from .receiver import Receiver
from .samplers import draws_from_main_process
from .seeding import PoolSeed
from .sizes import remembered_sizes
from .stream import BatchStream


class Phase(Protocol):
    """What workers load for: a loop."""

    phase: str

    def seed(self) -> PoolSeed:
        """Where the random numbers of workers that start now come from."""

    def horizon(self) -> Optional[int]:
        """After how many batches from now on another phase begins in the middle of an iteration; None: never."""

    def have_to_stay(self) -> bool:
        """Whether workers that start now must not be ended for another phase."""

    def last_batch_is_here(self) -> None:
        """Called when nothing is left to load until another phase begins, before the batch is handed on."""


class Lifetimes:
    """Sees to it that the workers of one loader at a time are alive.

    Attributes:
        members: all workers.
        successor: called when a validation has received its last batch.
    """

    def __init__(self) -> None:
        self.members: List[Union[Workers, Foreign]] = []
        self.successor: Optional[Callable[[], None]] = None

    def admit(self, loader: Any, seed: PoolSeed) -> None:
        """Have workers that ``loader`` itself keeps give way to others; who iterates over it knows nothing of it."""
        if not any(member.loader is loader for member in self.members):
            self.members.append(Foreign(loader, seed))

    def make_room(self, workers: Optional[Workers] = None) -> None:
        """End all workers, but for ``workers`` and those that have to stay."""
        for member in self.members:
            if member is not workers and not member.stay:
                member.close()

    def release_foreign(self) -> None:
        """End the workers that loaders keep themselves: a phase without workers goes on."""
        for member in self.members:
            if isinstance(member, Foreign):
                member.close()

    def hand_over(self) -> None:
        """Let the phase that was interrupted start its workers again."""
        successor, self.successor = self.successor, None
        if successor is not None:
            successor()

    def close(self) -> None:
        """End all workers: the job is over."""
        self.successor = None
        for member in self.members:
            member.close()

    def diagnose(self) -> Optional[LoadingError]:
        """The error to raise if a worker has died: PyTorch then interrupts the main process wherever it is."""
        errors = (member.diagnose() for member in self.members if isinstance(member, Workers))
        return next((error for error in errors if error is not None), None)


class Workers:
    """Iterates over a dataloader with workers that live only while they are needed.

    Each iteration gives what one over ``loader`` would. Its attributes are the loader's.

    Args:
        loader: the user's own; it is not iterated itself, if :attr:`enabled`.
        lifetimes: shared with the other loaders of the job.
        phase: what is loaded for.
        receiver: what becomes of batches when they have arrived.
        release: False to leave all to ``loader``.

    Attributes:
        loader: as given.
        enabled: whether the workers are ours: not if ``release`` is False, nor where that cannot be
            (:func:`~.pool.is_poolable`); then ``loader`` itself is iterated over.
        stay: whether the pool must not be closed for another phase.
        ask_later: iterating does nothing until the first batch is asked for; for jobs that may have to :meth:`skip`.
        fingerprint: of the batches of this iteration that have arrived; None where that is not known.
        origin: the main process's random state when the sampler was asked first, if the sampler may draw from it.
    """

    def __init__(
        self, loader: Any, lifetimes: Lifetimes, phase: Phase, receiver: Receiver, release: bool = True
    ) -> None:
        self.loader, self.stay, self.enabled = loader, False, release and is_poolable(loader)
        self.ask_later = False
        self.fingerprint: Optional[int] = None
        self.origin: Optional[State] = None
        self._lifetimes, self._phase, self._receiver, self._release = lifetimes, phase, receiver, release
        self._pool: Optional[Pool] = None
        self._stream: Optional[BatchStream] = None
        self._loading = self._is_prepared = False
        lifetimes.members.append(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or 'loader' not in self.__dict__:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if self.enabled:
            self._draw()
        return self._later() if self.ask_later else self._begin()

    def _later(self) -> Iterator[Any]:
        yield from self._begin()

    def _begin(self) -> Iterator[Any]:
        stream, is_prepared = self._stream, self._is_prepared
        self._is_prepared = False
        if not self.enabled:
            self._stream = self.fingerprint = None
            batches = self._receiver.receive(iter(self.loader)) if stream is None else self._without_skipped(stream)
            return self._alone(batches) if self._release else batches
        if stream is not None and not is_prepared:  # an iteration that was given up
            self.close()
            self._stream = None
        if self._stream is None:
            self._stream = self._new_stream()
        return self._iterate(self._stream)

    @property
    def draws_from_main_process(self) -> bool:
        """Whether it matters when the sampler is asked; see :mod:`.samplers`."""
        return self.can_skip and draws_from_main_process(index_source(self.loader))

    @property
    def can_skip(self) -> bool:
        """Whether :meth:`skip` can tell what there is to skip."""
        return has_index_batches(self.loader)

    def begin_as(self, origin: Origin) -> None:
        """Ask the sampler for the first batches, with the main process's random state as it was in another job."""
        restore(origin[0])
        self._stream, self._is_prepared = self._new_stream(), True
        restore(origin[1])

    def skip(self, batches: int) -> Iterator[None]:
        """Leave out so many batches of the next iteration without loading them; gives None for each there was."""
        if self._stream is None or self._stream.has_ended:
            self._stream = self._new_stream()
        self._is_prepared = True
        with remembered_sizes(self.loader.batch_sampler):
            for _ in range(batches):
                if not self._stream.skip():
                    return
                self.fingerprint = self._stream.fingerprint
                yield

    @property
    def processes(self) -> List[Any]:
        """The workers that are alive, if they are ours."""
        return [] if self._pool is None else self._pool.processes

    @property
    def is_under_way(self) -> bool:
        """Whether an iteration is not over yet."""
        return self._stream is not None

    def prepare(self) -> None:
        """Start the workers for the next batches now; they are there when those are asked for.

        If that would be seen from outside, room is made for them only.
        """
        if not self.enabled:
            self._lifetimes.make_room(self)
        elif not self._loading:
            if self._stream is None:
                if self.draws_from_main_process:
                    self._lifetimes.make_room(self)
                    return
                self._stream, self._is_prepared = self._new_stream(), True
            self._load()

    def close(self) -> None:
        """End the workers, if there are any. Batches that have not arrived will be loaded again."""
        self._loading = False
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def diagnose(self) -> Optional[LoadingError]:
        """The error to raise if a worker has died."""
        dead = self._pool.dead() if self._pool is not None else []
        return failure(self._pool.seed, deaths(dead)) if dead else None

    def _alone(self, batches: Iterator[Any]) -> Iterator[Any]:
        for held in one_by_one(batches):
            self._lifetimes.release_foreign()
            yield held.pop()

    def _without_skipped(self, stream: BatchStream) -> Iterator[Any]:
        """What is left of ``stream``, by workers for this iteration only: those of the loader would begin anew."""
        pool = Pool(self.loader, self._phase.seed(), self._receiver)
        try:
            pool.load(stream)
            while True:
                try:
                    held = [pool.next()]
                except StopIteration:
                    return
                self.fingerprint = stream.fingerprint
                yield held.pop()
        finally:
            pool.close()

    def _iterate(self, stream: BatchStream) -> Iterator[Any]:
        if self._stream is stream and stream.has_ended:  # all of it was skipped, or there is nothing
            self._stream = None
            self._phase.last_batch_is_here()
        while self._stream is stream:
            if not self._loading:
                self._load()
            try:
                held = [self._pool.next()]
            except StopIteration:  # there was not one
                self._loading, self._stream = False, None
                return
            except Exception as error:
                raise self._failure(error) from error
            self.fingerprint = self._stream.fingerprint
            if self._stream.is_dry:
                self._loading = False
                if self._stream.has_ended:
                    self._stream = None
                    if not self.loader.persistent_workers:  # the next epoch's would be new ones, with today's dataset
                        self.close()
                self._phase.last_batch_is_here()
            yield held.pop()

    def _new_stream(self) -> BatchStream:
        loader = self.loader
        sampler = index_source(loader)
        self.origin = capture() if draws_from_main_process(sampler) else None
        return BatchStream(sampler, loader.num_workers * (loader.prefetch_factor or 0))

    def _load(self) -> None:
        """Have a pool load the stream."""
        self._lifetimes.make_room(self)
        horizon = self._phase.horizon()
        self._stream.stop_at = None if horizon is None else self._stream.delivered + horizon
        if self._pool is None:
            self.stay = self._phase.have_to_stay()
            self._pool = Pool(self.loader, self._phase.seed(), self._receiver, not self.draws_from_main_process)
        try:
            self._pool.load(self._stream)
        except Exception as error:
            raise self._failure(error) from error
        self._loading = True

    def _failure(self, error: Exception) -> LoadingError:
        return self.diagnose() or failure(self._pool.seed, last_words(error))

    def _draw(self) -> None:
        """Move the random state as a ``DataLoader`` does when it starts workers, to have a seed for them.

        Hooks that want persistent workers to start anew set ``_iterator`` to None.
        """
        loader = self.loader
        if loader._iterator is None or not loader.persistent_workers:
            if loader.persistent_workers:
                self.close()
                loader._iterator = _Mark()
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


class _Mark:
    """Stands where a ``DataLoader`` keeps its persistent workers, of which there are none.

    Whoever iterates over the loader directly has it replaced: PyTorch calls this to begin anew, and looks again.
    """

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        loader._iterator = None
        iter(loader)


class Foreign:
    """Workers that a dataloader keeps for its next iteration.

    A ``DataLoader`` that has to start others draws a seed for them, where one that kept them would not: after
    :meth:`close`, it is drawn from a generator that nobody else uses.
    """

    stay = False

    def __init__(self, loader: Any, seed: PoolSeed) -> None:
        self.loader = loader
        self._generator = torch.Generator()
        self._generator.manual_seed(seed.of_loader)

    def close(self) -> None:
        """End them, if there are any."""
        batches = getattr(self.loader, '_iterator', None)
        if hasattr(batches, '_shutdown_workers'):
            self.loader._iterator = None
            self.loader.generator = self._generator
            shut_down(batches)
