"""How results get from all ranks to rank 0, for any metric: without files, and without a rank that waits in vain."""

from __future__ import annotations

import logging
import pickle
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
from mmengine.dist import get_dist_info, is_main_process
from mmengine.logging import print_log

from .collected import Order, Part
from .columns import Column, Texts
from .gathering import gather, share_outcome
from .memory import give_back_memory


class GatheredResults:
    """Mixed into one of mmengine's metrics, before it: its ``process`` and ``evaluate``.

    Its ``results`` must have ``columns`` (name -> :class:`~.columns.Column`), and be as long as images were processed.
    """

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
                self._failure = error
                print_log(
                    f'Predictions of rank {get_dist_info()[0]} cannot be used, evaluation will fail: '
                    f'{type(error).__name__}: {error}',
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
        if len(self.results) == 0:
            print_log(
                f'{type(self).__name__} got empty `self.results`. Please ensure that the processed results are '
                'properly added into `self.results` in `process` method.',
                logger='current',
                level=logging.WARNING,
            )
        failure, self._failure = self._failure, None
        metrics = None
        try:
            parts = gather(self.results, failure)
            if parts is not None:
                try:
                    found = self._collected(parts, size)
                    del parts
                    metrics = self.compute_metrics(found)
                    del found
                except Exception as error:
                    failure = error
            if metrics is not None and self.prefix:
                metrics = {f'{self.prefix}/{name}': value for name, value in metrics.items()}
            return share_outcome(metrics, failure)
        finally:
            self.results.clear()
            if is_main_process():
                give_back_memory()

    def _collected(self, parts: List[Part], size: int) -> Any:
        """What ``compute_metrics`` gets, of what each rank has."""
        raise NotImplementedError


class PickledResults:
    """A list of results of any kind, as one piece of memory."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
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

    def __iter__(self) -> Iterator[Any]:
        own = Part(len(self), {name: column.array().copy() for name, column in self.columns.items()})
        return iter(self.ordered([own], len(self)))

    @staticmethod
    def ordered(parts: Sequence[Part], size: int) -> List[Any]:
        """The ranks' results in the order that stock puts them in, at most ``size``."""
        order = Order.interleaved([part.images for part in parts], size)
        texts = Texts.joined([part.columns['pickle'].data for part in parts], [part.columns['size'] for part in parts])
        return [pickle.loads(data) for data in texts.take(order.rows).all()]
