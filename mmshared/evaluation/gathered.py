"""How results get from all ranks to rank 0, for any metric: without files, and without a rank that waits in vain."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
from mmengine.dist import get_dist_info, is_main_process
from mmengine.logging import print_log

from .collected import Order, Part
from .columns import Column, Texts
from .errors import RankError, text_of
from .gathering import gather, share_outcome
from .memory import give_back_memory


class GatheredResults:
    """Mixed into one of mmengine's metrics, before it: its ``process`` and ``evaluate``.

    Its ``results`` are of the class :attr:`RESULTS`, which has ``columns`` (name -> :class:`~.columns.Column`), and is
    as long as images were processed.
    """

    RESULTS: Any = None
    _failure: Optional[Exception] = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Take a batch's predictions, as in stock.

        Where there are several ranks, an error is raised by :meth:`evaluate`, in all of them: if this rank ended now,
        the others would wait for it there.
        """
        try:
            super().process(data_batch, data_samples)
        except Exception as error:
            if get_dist_info()[1] == 1:
                raise
            if self._failure is None:
                traceback.clear_frames(error.__traceback__)  # else they keep the batch
                self._failure, self.results.failure = error, text_of(error)
                print_log(
                    f'Predictions of rank {get_dist_info()[0]} cannot be used, evaluation will fail: {text_of(error)}',
                    logger='current',
                    level=logging.ERROR,
                )

    def evaluate(self, size: int) -> dict:
        """Evaluate what all ranks have predicted; all must call it.

        Args:
            size: images of the whole dataset. What the sampler added to give all ranks equally many is left out.

        Returns:
            The metrics, the same in all ranks.

        Raises:
            RankError: predictions of another rank could not be used, or rank 0 could not evaluate. The rank concerned
                raises the error itself.
        """
        failure, self._failure = self._failure, None
        if isinstance(self.results, list):  # somebody has put stock's results there
            taken, self.results = self.results, self.RESULTS()
            self.results.extend(taken)
        try:
            return evaluate_together(self, self.results, lambda parts: self._collected(parts, size), failure)
        finally:
            self.results.clear()

    def _collected(self, parts: List[Part], size: int) -> Any:
        """What ``compute_metrics`` gets, of what each rank has."""
        raise NotImplementedError


def evaluate_together(
    metric: Any, results: Any, collected: Callable[[List[Part]], Any], failure: Optional[Exception] = None
) -> dict:
    """Have rank 0 compute a metric of all ranks' results; every rank must call it.

    Args:
        metric: one of mmengine's.
        results: of this rank; see :class:`GatheredResults`.
        collected: makes what ``compute_metrics`` gets of what each rank has.
        failure: what went wrong in this rank, if something did.

    Returns:
        The metrics with their prefix, the same in all ranks.

    Raises:
        RankError: something went wrong in another rank. The rank concerned raises the error itself.
    """
    if len(results) == 0:
        print_log(
            f'{type(metric).__name__} got empty `self.results`. Please ensure that the processed results are properly '
            'added into `self.results` in `process` method.',
            logger='current',
            level=logging.WARNING,
        )
    metrics = parts = None
    try:
        parts, failure = gather(results, failure)
        if parts is not None and failure is None:
            try:
                found = collected(parts)
                parts = None
                metrics = metric.compute_metrics(found)
                del found
            except Exception as error:
                failure = error
        if metrics is not None and metric.prefix:
            metrics = {f'{metric.prefix}/{name}': value for name, value in metrics.items()}
        return share_outcome(metrics, failure)
    finally:
        del failure, parts  # a traceback refers to this frame, and that would keep all that the evaluation had
        if is_main_process():
            give_back_memory()


class PickledResults:
    """A list of results of any kind, as one piece of memory.

    Attributes:
        failure: why something is missing, if so: whoever asks for the results then gets a RankError.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.failure: Optional[str] = None
        self.columns: Dict[str, Column] = {'size': Column(np.int64), 'pickle': Column(np.uint8)}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, result: Any) -> None:
        """As of a list."""
        data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        self.columns['pickle'].extend(np.frombuffer(data, np.uint8))
        self.columns['size'].extend(np.array([len(data)], np.int64))
        self._count += 1

    def extend(self, results: Sequence[Any]) -> None:
        """As of a list."""
        for result in results:
            self.append(result)

    def __getitem__(self, index: Any) -> Any:
        """As of a list; makes objects, and takes its time."""
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        if self.failure is not None:
            raise RankError(f'predictions could not be used: {self.failure}')
        own = Part(len(self), {name: column.array().copy() for name, column in self.columns.items()})
        return iter(self.ordered([own], len(self)))

    @staticmethod
    def ordered(parts: Sequence[Part], size: int) -> List[Any]:
        """The ranks' results in the order that stock puts them in, at most ``size``."""
        order = Order.interleaved([part.images for part in parts], size)
        texts = Texts.joined([part.columns['pickle'].data for part in parts], [part.columns['size'] for part in parts])
        return [pickle.loads(data) for data in texts.take(order.rows).all()]
