"""Validation and testing."""

from __future__ import annotations

from typing import Any, Dict, List, Union

from mmengine.evaluator import Evaluator
from mmengine.registry import LOOPS
from mmengine.runner import TestLoop, ValLoop
from mmengine.runner import loops as mmengine_loops

from mmshared.utils.iteration import one_by_one

from ..handover import may_validate_early
from ..workers import Receiver
from .lean import Choice, Lean, Loader, Release, lifetimes_of


class _LeanEvaluation(Lean):
    """Validation and testing: their workers are gone when the last batch has arrived."""

    _mode: str

    def __init__(
        self,
        runner: Any,
        dataloader: Loader,
        evaluator: Union[Evaluator, Dict, List],
        *args: Any,
        release_workers: Release = 'auto',
        scatter: Choice = 'auto',
        prefetch_to_device: Choice = 'auto',
        **kwargs: Any,
    ) -> None:
        super().__init__(runner, dataloader, evaluator, *args, **kwargs)
        self._employ(self.dataloader, release_workers, Receiver(runner, scatter, prefetch_to_device))

    def run(self) -> dict:
        """Launch it; returns the metrics."""
        with self._on_watch():
            return self._run()

    def _run(self) -> dict:
        call, mode = self.runner.call_hook, self._mode
        call(f'before_{mode}')
        call(f'before_{mode}_epoch')
        self.runner.model.eval()
        self._employ_again()
        losses = getattr(self, f'{mode}_loss', {})  # older versions of MMEngine have none
        losses.clear()
        for idx, held in enumerate(one_by_one(self.workers)):
            self.run_iter(idx, held.pop())
        metrics = self.evaluator.evaluate(len(self.dataloader.dataset))
        losses = getattr(self, f'{mode}_loss', {})
        if losses:
            metrics.update(mmengine_loops._parse_losses(losses, mode))
        call(f'after_{mode}_epoch', metrics=metrics)
        call(f'after_{mode}')
        return metrics

    def last_batch_is_here(self) -> None:
        """See the parent."""
        if not self.workers.stay:
            self.workers.close()
        lifetimes_of(self.runner).hand_over()


@LOOPS.register_module()
class LeanValLoop(_LeanEvaluation, ValLoop):
    """MMEngine's ``ValLoop``, whose workers are gone while others are at work.

    Args:
        runner, dataloader, evaluator, *args, **kwargs: as for ``ValLoop``.
        release_workers, scatter, prefetch_to_device: as for :class:`LeanTrainLoop`.
    """

    phase, _mode = 'validation', 'val'

    def prepare(self) -> None:
        """Start the workers for a validation that follows, unless something has to come first."""
        self._employ_again()
        if may_validate_early(self.runner):
            self.workers.prepare()
        else:
            lifetimes_of(self.runner).make_room(self.workers)


@LOOPS.register_module()
class LeanTestLoop(_LeanEvaluation, TestLoop):
    """MMEngine's ``TestLoop``, whose workers are gone before the metrics are computed.

    Args:
        runner, dataloader, evaluator, *args, **kwargs: as for ``TestLoop``.
        release_workers, scatter, prefetch_to_device: as for :class:`LeanTrainLoop`.
    """

    phase, _mode = 'test', 'test'
