"""Streams for a machine without any: they tell in which order things were asked of them."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Tuple


class FakeStream:
    def __init__(self, name: str, log: List[Tuple[Any, ...]]) -> None:
        self.name, self._log, self._events = name, log, 0

    def wait_stream(self, other: FakeStream) -> None:
        self._log.append((self.name, 'waits for all of', other.name))

    def wait_event(self, event: Tuple[Any, ...]) -> None:
        self._log.append((self.name, 'waits for', *event))

    def record_event(self) -> Tuple[Any, ...]:
        self._events += 1
        self._log.append((self.name, 'records', self._events))
        return self.name, self._events


class FakeStreams:
    """What :class:`mmshared.parallel.prefetch.Streams` is, for the CPU.

    Attributes:
        log: what happened, which others may add to.
    """

    def __init__(self) -> None:
        self.log: List[Tuple[Any, ...]] = []
        self.side, self._main = FakeStream('side', self.log), FakeStream('main', self.log)

    def computing(self) -> FakeStream:
        return self._main

    def keep(self, batch: Any) -> None:
        self.log.append(('keeps', batch.tensors_nbytes))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        self.log.append(('side', 'begins'))
        yield
        self.log.append(('side', 'ends'))
