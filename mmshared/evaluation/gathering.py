"""All ranks' predictions on rank 0, in stock's order, without files and without pickling them.

mmengine's ``collect_results`` writes a pickle per rank into a directory that all nodes must share, or pickles all of it
onto the device of every rank. Here the ranks tell each other in one small message how much each has, and whether
something went wrong; then each broadcasts its columns in pieces of bounded size. Broadcasts rather than sends: every
backend has them, and they need no further communicators (NCCL makes one, with memory on the device, per pair of ranks).
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
import torch.distributed as torch_dist
from mmengine.dist import all_gather_object, broadcast_object_list, get_comm_device, get_dist_info

from .collected import Part
from .errors import RankError, text_of
from .predictions import Predictions

PIECE = 1 << 22
"""Bytes on the wire at a time: what a rank that only passes them on needs."""


class _Announcement(NamedTuple):
    """What a rank tells all others before it sends."""

    failure: Optional[str]
    images: int
    columns: Dict[str, tuple]


def gather(
    predictions: Predictions, failure: Optional[BaseException] = None
) -> Tuple[Optional[List[Part]], Optional[Exception]]:
    """Give rank 0 what all ranks have; every rank must call it.

    Args:
        predictions: of this rank; nothing can be added to them before what is returned is gone.
        failure: what went wrong in this rank, if something did.

    Returns:
        On rank 0 the predictions of each rank; None on the others. On rank 0 also what went wrong while they came,
        such as too little memory: the other ranks do not know of it, so it must go into :func:`share_outcome`.

    Raises:
        RankError: a rank had a ``failure``. In that rank, the failure itself.
    """
    rank, world = get_dist_info()
    if failure is not None and world == 1:
        raise failure
    own = _part(predictions)
    if world == 1:
        return [own], None
    told = all_gather_object(_announce(predictions, failure))
    _check(told, rank, failure)
    parts: List[Part] = [own] if rank == 0 else []
    channel = _Channel(rank, max(nbytes for each in told for _, nbytes in each.columns.values()))
    for source in range(1, world):
        received = {}
        for name, (dtype, nbytes) in told[source].columns.items():
            data = channel.broadcast(source, predictions.columns[name].data if rank == source else None, nbytes)
            if data is not None:
                received[name] = np.frombuffer(data, dtype)
        if rank == 0:
            parts.append(Part(told[source].images, received))
    return (parts, channel.failure) if rank == 0 else (None, None)


def share_outcome(outcome: Any, failure: Optional[BaseException]) -> Any:
    """Give every rank what rank 0 has found; every rank must call it.

    Args:
        outcome: on rank 0, what to give.
        failure: on rank 0, what went wrong instead, if something did.

    Raises:
        RankError: rank 0 failed. In rank 0, the failure itself.
    """
    message = [(outcome, None if failure is None else text_of(failure))]
    broadcast_object_list(message)
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame, and that to all that the evaluation had
    outcome, text = message[0]
    if text is not None:
        raise RankError(f'Evaluation failed in rank 0: {text}')
    return outcome


def _part(predictions: Predictions) -> Part:
    return Part(len(predictions), {name: column.array() for name, column in predictions.columns.items()})


def _announce(predictions: Predictions, failure: Optional[BaseException]) -> _Announcement:
    columns = {
        name: (column.array().dtype.str, 0 if failure else len(column.data))
        for name, column in predictions.columns.items()
    }
    return _Announcement(None if failure is None else text_of(failure), len(predictions), columns)


def _check(told: List[_Announcement], rank: int, failure: Optional[BaseException]) -> None:
    failures = [f'rank {i}: {each.failure}' for i, each in enumerate(told) if each.failure is not None]
    if failure is not None:
        raise failure
    if failures:
        raise RankError(f'Evaluation is not possible, as predictions could not be used in {"; ".join(failures)}')


class _Channel:
    """Passes bytes from one rank to rank 0, through one buffer on the device that the backend communicates with.

    Attributes:
        failure: why rank 0 could not take them. It takes part all the same, as the others would wait for it.
    """

    def __init__(self, rank: int, largest: int) -> None:
        self._rank = rank
        self.failure: Optional[Exception] = None
        self._buffer = torch.empty(max(min(largest, PIECE), 1), dtype=torch.uint8, device=get_comm_device())

    def broadcast(self, source: int, data: Optional[bytearray], nbytes: int) -> Optional[bytearray]:
        """From rank ``source``, which gives the ``data``, to rank 0, which gets it; ``nbytes`` are of it."""
        received = self._room(nbytes) if self._rank == 0 else None
        for start in range(0, nbytes, PIECE):
            stop = min(start + PIECE, nbytes)
            piece = self._buffer[: stop - start]
            if data is not None:
                piece.copy_(torch.frombuffer(data, dtype=torch.uint8, count=stop - start, offset=start))
            torch_dist.broadcast(piece, source)
            if received is not None:
                torch.frombuffer(received, dtype=torch.uint8, count=stop - start, offset=start).copy_(piece)
        return received

    def _room(self, nbytes: int) -> Optional[bytearray]:
        if self.failure is None:
            try:
                return bytearray(nbytes)
            except MemoryError:
                self.failure = MemoryError(f'no memory for {nbytes} bytes of predictions of other ranks')
        return None
