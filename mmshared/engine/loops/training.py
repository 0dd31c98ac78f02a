"""Training, which may be resumed."""

from __future__ import annotations

import bisect
import contextlib
import logging
from typing import Any, Iterator, List, Optional

from mmengine.dist import get_rank
from mmengine.logging import print_log
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop

from mmshared.utils.deferral import deferred_instances
from mmshared.utils.iteration import one_by_one

from ..handover import may_train_early, set_epoch, tell_epoch
from ..resume import Position, job_of, origins_of, restore_seeds, seeds_of, told
from ..workers import Origin, Receiver
from .evaluation import LeanValLoop
from .lean import Choice, Lean, Loader, Release, lifetimes_of


class _LeanTrain(Lean):
    """Training: its workers give way to those of a validation, and are gone when it ends.

    Checkpoints tell where in its data the job is, so that one that is resumed goes on there.
    """

    phase = 'training'
    _origins: List[Origin] = []
    _noted: Any = None
    _goes_on_after = 0

    @contextlib.contextmanager
    def _until_the_end(self) -> Iterator[None]:
        """All of training: no worker is left when the block ends, however it does."""
        val, lifetimes = self.runner.val_loop, lifetimes_of(self.runner)
        if self.release_workers and val is not None and not isinstance(val, LeanValLoop):
            lifetimes.admit(val.dataloader, self.seed()._replace(phase='validation'))
        with self._on_watch():
            yield
            lifetimes.close()

    def _resumed(self) -> Optional[Position]:
        """Where to go on, if the job is resumed and that is known. Samplers have the seeds of then afterwards."""
        if not (self._epoch or self._iter) or Position.is_noted(self.runner, self._noted):
            return None
        position = Position.noted(self.runner, self.dataloader, self._by_epoch)
        if position is not None:
            restore_seeds(self.dataloader, position.seeds)
        return position

    def _pass_over(self, position: Optional[Position], batches: int) -> int:
        """Have the next iteration over the workers begin after so many batches; returns how many there were."""
        if position is not None and position.origins:
            self._origins = position.origins
            self.workers.begin_as(position.origins[get_rank() % len(position.origins)])
        return told(self.workers.skip(batches), batches)

    def _tell(self, batches: int) -> None:
        print_log(
            f'Training goes on with iteration {self._iter + 1:,}: {batches:,} batches passed over, none loaded.',
            logger='current',
        )

    def _note(self, epoch: int, iteration: int, batch: int) -> None:
        """Have checkpoints from now on say that so much is over."""
        loader, known = self.dataloader, self.workers.fingerprint if batch else None
        origins = self._origins if batch else []
        position = Position(epoch, iteration, batch, known, seeds_of(loader), origins, job_of(loader))
        self._noted = position.note(self.runner)

    def last_batch_is_here(self) -> None:
        """See the parent."""
        lifetimes = lifetimes_of(self.runner)
        if self._gives_way_after(self._done() + 1):
            self._goes_on_after = self._done() + 1
            lifetimes.successor = self._go_on
            if isinstance(self.runner.val_loop, LeanValLoop):
                self.runner.val_loop.prepare()
            else:
                lifetimes.make_room()
        elif self._done() + 1 >= self._all():
            self.workers.close()

    def _go_on(self) -> None:
        """A validation has received its last batch. If it was not the one to come, but a hook's, that is still due."""
        if self._done() < self._goes_on_after:
            lifetimes_of(self.runner).successor = self._go_on
        elif self._goes_on():
            self.prepare()

    def prepare(self) -> None:
        """Start the workers for what follows a validation, unless something has to come first."""
        raise NotImplementedError

    def _gives_way_after(self, done: int) -> bool:
        """Whether a validation that has workers follows when ``done`` epochs or steps are over."""
        return self._validates_with_workers() and self._validates_after(done)

    def _validates_after(self, done: int) -> bool:
        interval = self.dynamic_intervals[bisect.bisect(self.dynamic_milestones, done + 1) - 1]
        return done >= self.val_begin and (done % interval == 0 or done == self._all())

    def _validates_with_workers(self) -> bool:
        val = self.runner.val_loop
        return val is not None and getattr(val.dataloader, 'num_workers', 1) > 0

    def _goes_on(self) -> bool:
        return self._done() < self._all() and not self.stop_training

    def _done(self) -> int:
        """Epochs or steps that are over: what validations are counted in."""
        raise NotImplementedError

    def _all(self) -> int:
        raise NotImplementedError


@LOOPS.register_module()
class LeanTrainLoop(_LeanTrain, EpochBasedTrainLoop):
    """MMEngine's ``EpochBasedTrainLoop``, whose workers are gone while others are at work.

    Args:
        runner, dataloader, *args, **kwargs: as for ``EpochBasedTrainLoop``.
        release_workers: True: end the workers when a validation follows. False: leave all to the dataloader, as the
            parent does. 'auto': as True, but workers whose transforms keep samples (``CachedMosaic``) stay.
        scatter: whether batches are put on the model's device before its preprocessor sees them, and data taken out of
            DataContainers. 'auto': yes, but a preprocessor with a ``cast_data`` of its own is left to do it; on a CPU
            only the latter is done.
        prefetch_to_device: whether the next batch is copied while the model computes, where batches come from
            ``packed_collate``; the device then has two of them. 'auto': yes.
    """

    _by_epoch = True

    def __init__(
        self,
        runner: Any,
        dataloader: Loader,
        *args: Any,
        release_workers: Release = 'auto',
        scatter: Choice = 'auto',
        prefetch_to_device: Choice = 'auto',
        **kwargs: Any,
    ) -> None:
        with deferred_instances():  # samplers may look at every image when they are built
            super().__init__(runner, dataloader, *args, **kwargs)
        self._employ(self.dataloader, release_workers, Receiver(runner, scatter, prefetch_to_device))
        self._resumes_at: Optional[Position] = None

    def run(self) -> Any:
        """Launch training. No worker is left when it ends, however it does."""
        self._resumes_at = self._resumed()
        with self._until_the_end():
            return super().run()

    def prepare(self) -> None:
        """See the parent."""
        self._employ_again()
        if may_train_early(self.runner):
            set_epoch(self.workers.loader, self.runner)
            self.workers.prepare()

    def run_epoch(self) -> None:
        """Iterate one epoch; the first one from where a checkpoint was made in it."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self._employ_again()
        self._origins = []
        done = self._skip()
        batches = iter(self.workers)
        self._origins = self._origins or origins_of(self.workers)
        for idx, held in enumerate(one_by_one(batches), done):
            self.run_iter(idx, held.pop())
        self._note(self._epoch + 1, self._iter, 0)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Iterate one batch, number ``idx`` of the epoch."""
        self._note(self._epoch, self._iter + 1, idx + 1)
        super().run_iter(idx, data_batch)

    def _skip(self) -> int:
        """Pass over the batches of this epoch that were trained with before the checkpoint; returns how many."""
        position, self._resumes_at = self._resumes_at, None
        if position is None or not position.batch:
            return 0
        if not self.workers.can_skip:
            print_log(
                f'The dataloader does not let batches be skipped: epoch {self._epoch + 1} begins anew.',
                logger='current',
                level=logging.WARNING,
            )
            return 0
        done = self._pass_over(position, position.batch)
        self._tell(done)
        if get_rank() == 0:
            position.check(self.workers.fingerprint)
        return done

    def _done(self) -> int:
        return self._epoch

    def _all(self) -> int:
        return self._max_epochs


@LOOPS.register_module()
class LeanIterTrainLoop(_LeanTrain, IterBasedTrainLoop):
    """MMEngine's ``IterBasedTrainLoop``, whose workers are gone while others are at work.

    Before a validation no batch is handed to workers that would have to wait for its end, so none is loaded in vain.

    Args:
        runner, dataloader, *args, **kwargs: as for ``IterBasedTrainLoop``.
        release_workers, scatter, prefetch_to_device: as for :class:`LeanTrainLoop`.
    """

    _by_epoch = False

    def __init__(
        self,
        runner: Any,
        dataloader: Loader,
        *args: Any,
        release_workers: Release = 'auto',
        scatter: Choice = 'auto',
        prefetch_to_device: Choice = 'auto',
        **kwargs: Any,
    ) -> None:
        with deferred_instances():  # samplers may look at every image when they are built
            BaseLoop.__init__(self, runner, dataloader)
        loader = self.dataloader
        self._employ(loader, release_workers, Receiver(runner, scatter, prefetch_to_device))
        # The parent begins to iterate here, over what it is given, and no worker starts yet. A job that is resumed does
        # not know yet which seed the sampler has, so that is asked later, if nobody can tell.
        self.workers.ask_later = bool(getattr(runner, '_resume', False)) or not self.workers.draws_from_main_process
        super().__init__(runner, self.workers, *args, **kwargs)
        self.dataloader = loader

    def run(self) -> Any:
        """Launch training. No worker is left when it ends, however it does."""
        val, call = self.runner.val_loop, self.runner.call_hook
        with self._until_the_end():
            call('before_train')
            call('before_train_epoch')  # all of the run is one big epoch
            self._skip()
            self._origins = self._origins or origins_of(self.workers)
            while self._goes_on():
                self.runner.model.train()
                self.run_iter(next(self.dataloader_iterator))
                self._decide_current_val_interval()
                if val is not None and self._validates_after(self._iter):
                    val.run()
            call('after_train_epoch')
            call('after_train')
        return self.runner.model

    def run_iter(self, data_batch: Any) -> None:
        """Iterate one batch."""
        self._note(self._epoch, self._iter + 1, self._iter + 1)
        super().run_iter(data_batch)

    def _skip(self) -> None:
        """Pass over the batches that were trained with before the checkpoint; the sampler may begin anew on the way."""
        if not self._iter or getattr(self, 'fast_forward_on_resume', False):  # in OneDL's: do not move forward
            return
        position = self._resumed()
        if not self.workers.can_skip:
            for _ in range(self._iter):
                next(self.dataloader_iterator)
            return
        left, epoch = self._iter, 0
        while True:
            done = self._pass_over(None if epoch else position, left)
            left -= done
            if not left or not done:
                break
            epoch += 1
            tell_epoch(self.dataloader, epoch)
        self.dataloader_iterator._epoch = epoch
        self._tell(self._iter)
        if position is not None and get_rank() == 0:
            position.check(self.workers.fingerprint)

    def prepare(self) -> None:
        """See the parent. A sampler that has come to its end waits for the parent to begin with it anew."""
        if self.workers.is_under_way:
            self.workers.prepare()

    def horizon(self) -> Optional[int]:
        """See the parent."""
        done, end = self._done(), self._all()
        steps = range(done + 1, end) if self._validates_with_workers() else ()
        return max(1, next(filter(self._gives_way_after, steps), end) - done)

    def _done(self) -> int:
        return self._iter

    def _all(self) -> int:
        return self._max_iters
