"""The shared memory of a worker's batches, used again and again: fresh memory costs many times the copy into it.

Each piece is free, or holds a batch that is being written, on its way, or looked at in the main process; which of
these is a number in the piece itself, so that nobody has to be told. There are as many pieces as batches were in use
at one time of late.
"""

from __future__ import annotations

import os
from typing import List, Optional

from .memory import OwnMemory

FREE, IN_USE, LOST = range(3)
_SPARE_AFTER = 16


class Ring:
    """Shared memory of this process for batches.

    Attributes:
        retired: tokens of memory that is not used any more, for whoever has it mapped.
    """

    def __init__(self) -> None:
        self._pieces: List[OwnMemory] = []
        self._last_use: List[int] = []
        self._takes = 0
        self.retired: List[int] = []

    def take(self, nbytes: int) -> OwnMemory:
        """Memory for at least ``nbytes`` bytes, in use from now on until somebody sets its state to FREE.

        Raises: as :class:`OwnMemory`.
        """
        self._takes += 1
        self._drop_lost_and_spare()
        free = [i for i, piece in enumerate(self._pieces) if piece.state == FREE]
        fitting = [i for i in free if self._pieces[i].nbytes >= nbytes]
        if fitting:
            # Not the one that waits longest: what is spare is to be noticed.
            i = min(fitting, key=lambda i: (self._pieces[i].nbytes, -self._last_use[i]))
        else:
            if free:  # too small
                self._drop(min(free, key=self._last_use.__getitem__))
            self._pieces.append(OwnMemory(_with_reserve(nbytes)))
            self._last_use.append(0)
            i = -1
        self._last_use[i] = self._takes
        self._pieces[i].state = IN_USE
        return self._pieces[i]

    def close(self) -> None:
        """Give all memory back that is not in use elsewhere."""
        while self._pieces:
            self._drop(0)

    def _drop_lost_and_spare(self) -> None:
        for i in reversed(range(len(self._pieces))):
            state = self._pieces[i].state
            if state == LOST or (state == FREE and self._takes - self._last_use[i] > _SPARE_AFTER):
                self._drop(i)

    def _drop(self, i: int) -> None:
        piece = self._pieces.pop(i)
        del self._last_use[i]
        self.retired.append(piece.token)
        piece.close()


def _with_reserve(nbytes: int) -> int:
    """``nbytes``, or up to an eighth more: batches of about one size are to fit into each other's memory."""
    step = max(4096, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


_ring: Optional[Ring] = None


def ring_of_this_process() -> Ring:
    """The one ring of this process, empty at first."""
    global _ring
    if _ring is None:
        _ring = Ring()
    return _ring


def _after_fork() -> None:
    """The memory is the parent's: not to be written here, nor kept by this process's descriptors."""
    global _ring
    ring, _ring = _ring, None
    if ring is not None:
        ring.close()


os.register_at_fork(after_in_child=_after_fork)
