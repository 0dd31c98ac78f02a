"""The index batches of an epoch (or of a run without epochs), whichever workers load them.

A sampler must not be iterated again to go on in the middle: an ``InfiniteSampler`` ends for good when its iterator is
dropped, and ``AspectRatioBatchSampler`` keeps half-filled batches on itself. So one iterator of the sampler serves
one pool of workers after the other; what had been handed to workers that are gone before it was delivered is handed,
in the same order, to those that follow.

Nor may it be asked at other times than by a ``DataLoader`` whose workers stay: it may draw from the main process's
random state, as the model does. So it is asked ahead, as if all of it were handed out at once.

A job that is resumed asks for the batches before the checkpoint too, and lets them go without loading them.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, Deque, Iterable, Iterator, Optional

from mmshared.utils.deferral import deferred_instances


class BatchStream:
    """Hands index batches to pools of workers, one pool at a time.

    Args:
        batches: what a ``DataLoader`` would iterate over: a batch sampler, or a sampler if it does not batch.
        ahead: how many batches a ``DataLoader`` would have its workers prefetch.

    Attributes:
        delivered: how many batches have arrived in the main process, or were skipped.
        fingerprint: CRC-32 of these: whether a sampler gave the same ones again.
        stop_at: hand out no batch from this position on, so that the pool runs dry; None to go on.
    """

    def __init__(self, batches: Iterable[Any], ahead: int) -> None:
        self._batches = iter(batches)
        self._ahead = ahead
        self._known: Deque[Any] = deque()  # asked for and not delivered
        self._handed_out = 0  # how many of these the present pool has
        self._ended = False
        self.delivered = self.fingerprint = 0
        self.stop_at: Optional[int] = None
        self._ask()

    def __iter__(self) -> Iterator[Any]:
        """What the next pool should load: first what the last one was given and did not deliver."""
        self._handed_out = 0
        while not self._may_not_go_on():
            self._ask(self._handed_out + 1)
            if self._handed_out == len(self._known):
                return
            self._handed_out += 1
            yield self._known[self._handed_out - 1]

    def deliver(self) -> None:
        """The first batch that the pool was given has arrived."""
        self._handed_out -= 1
        self._pass_on()

    def skip(self) -> bool:
        """Let the next batch go without loading it, before any pool was given one; False if there is none."""
        self._ask(1)
        if not self._known:
            return False
        self._pass_on()
        return True

    @property
    def is_dry(self) -> bool:
        """Whether nothing is on its way, and nothing more is handed out."""
        return self.has_ended or (not self._handed_out and self._may_not_go_on())

    @property
    def has_ended(self) -> bool:
        """Whether all batches have arrived."""
        return self._ended and not self._known

    def _pass_on(self) -> None:
        self.fingerprint = zlib.crc32(repr(self._known.popleft()).encode(), self.fingerprint)
        self.delivered += 1
        self._ask()

    def _ask(self, at_least: int = 0) -> None:
        """Ask the sampler until as many batches are known as a ``DataLoader`` would know now."""
        known = max(self._ahead, at_least)
        if len(self._known) >= known or self._ended:  # nothing to enter a block for, many times if a job is resumed
            return
        with deferred_instances():
            while len(self._known) < known and not self._ended:
                try:
                    self._known.append(next(self._batches))
                except StopIteration:
                    self._ended = True

    def _may_not_go_on(self) -> bool:
        return self.stop_at is not None and self.delivered + self._handed_out >= self.stop_at
