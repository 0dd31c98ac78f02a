"""What the lean loops have in common."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional, Union

from mmengine.dist import get_rank
from mmengine.logging import print_log
from torch.utils.data import DataLoader

from ..transforms import transforms_with_state
from ..workers import Lifetimes, LoadingError, PoolSeed, Receiver, Workers

Loader = Union[DataLoader, Dict]
Release = Choice = Union[bool, str]


def lifetimes_of(runner: Any) -> Lifetimes:
    """What the workers of all loops of ``runner`` share."""
    return vars(runner).setdefault('_mmshared_lifetimes', Lifetimes())


class Lean:
    """What the lean loops have in common: they are the phases of their workers.

    Attributes:
        workers: who iterates over ``dataloader``.
        release_workers: as given.
        receiver: what becomes of batches when they have arrived.
        phase: name of what they load for.
    """

    runner: Any
    dataloader: Any
    workers: Workers
    release_workers: Release
    receiver: Receiver
    phase: str

    def _employ(self, loader: Any, release_workers: Release, receiver: Receiver) -> None:
        """Have ``workers`` for ``loader``, which start when they are needed."""
        if not isinstance(release_workers, bool) and release_workers != 'auto':
            raise ValueError(f"release_workers is {release_workers!r}, should be True, False or 'auto'")
        self.release_workers, self.receiver = release_workers, receiver
        self.workers = Workers(loader, lifetimes_of(self.runner), self, receiver, release=release_workers is not False)

    def _employ_again(self) -> None:
        """Have other workers if somebody has replaced the loop's ``dataloader``."""
        if self.dataloader is not self.workers.loader:
            self.workers.close()
            lifetimes_of(self.runner).members.remove(self.workers)
            self._employ(self.dataloader, self.release_workers, self.receiver)

    @contextlib.contextmanager
    def _on_watch(self) -> Iterator[None]:
        """If the block fails no worker is left, and if that is because one has died, the error says so."""
        lifetimes = lifetimes_of(self.runner)
        try:
            yield
        except BaseException as error:
            reason = lifetimes.diagnose() if isinstance(error, Exception) else None
            lifetimes.close()
            if reason is not None and not isinstance(error, LoadingError):
                raise reason from error
            raise

    def seed(self) -> PoolSeed:
        """Where the random numbers of workers that start now come from."""
        runner = self.runner
        return PoolSeed(runner.seed or 0, get_rank(), self.phase, runner.epoch, runner.iter)

    def horizon(self) -> Optional[int]:
        """After how many batches from now on another phase begins in the middle of an iteration; None: never."""
        return None

    def have_to_stay(self) -> bool:
        """Whether workers that start now must not be ended for another phase, which is said in the log."""
        names = transforms_with_state(self.workers.loader.dataset) if self.release_workers == 'auto' else []
        if names:
            print_log(
                f'The workers for {self.phase} stay alive during other phases, as {", ".join(names)} keep samples '
                'in them. Set release_workers=True to end them nevertheless.',
                logger='current',
            )
        return bool(names)

    def last_batch_is_here(self) -> None:
        """Called when nothing is left to load until another phase begins, before the batch is handed on."""
        raise NotImplementedError
