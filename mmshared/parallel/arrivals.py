"""The main process's side of the workers' memory: which of it is looked at.

What a worker has sent stays as it is while any view of it exists, in a hook, a logger or a traceback. All views of a
batch hold one object; when that is gone the memory is marked as free, for the worker to use again.

A mapping is kept for the next batch in the same memory: the first look at memory is what costs. It goes with the
worker.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from .memory import SharedMemory, of_process
from .ring import FREE, IN_USE, LOST


class Place(NamedTuple):
    """Where a batch lies.

    Attributes:
        pid: the worker.
        fd, capacity, token: of its :class:`~.memory.OwnMemory`.
        nbytes: of the batch.
        retired: tokens of memory that the worker does not use any more.
    """

    pid: int
    fd: int
    capacity: int
    token: int
    nbytes: int
    retired: Tuple[int, ...]


class Mapped:
    """Memory of a worker that is mapped here.

    Args:
        memory: what is mapped.
        leased: where this is while somebody looks at it.
    """

    def __init__(self, memory: SharedMemory, leased: Set[Mapped]) -> None:
        self._memory, self._leased, self._pid = memory, leased, os.getpid()
        self._lease: Optional[weakref.ref] = None

    def lease(self, nbytes: int) -> Any:
        """The first ``nbytes`` bytes; when nobody refers to the object returned any more, the worker may go on."""
        payload = self._memory.payload(nbytes)
        # Not __del__ of the object: of several in one cycle, one could still want to look.
        self._lease = weakref.ref(payload, self._end)
        self._leased.add(self)
        return payload

    def lose(self) -> None:
        """Never have this memory used again."""
        self._memory.state = LOST

    def _end(self, lease: weakref.ref) -> None:
        self._leased.discard(self)
        if os.getpid() == self._pid and self._memory.state == IN_USE:
            self._memory.state = FREE


class Arrivals:
    """What this process sees of its workers' memory.

    Threads may use it without a lock, as one reads what a worker sends. With one they could wait for each other
    forever: garbage may be collected anywhere, and a ``DataLoader`` that is garbage waits for its threads.
    """

    def __init__(self) -> None:
        self._mapped: Dict[int, Dict[int, Mapped]] = {}
        self._leased: Set[Mapped] = set()
        self._forks: List[None] = []  # under way

    def claim(self, place: Place) -> Any:
        """The bytes at ``place``; they stay as they are while the object returned is referred to.

        Raises:
            SharedMemoryError: they are not there any more.
        """
        known = self._of_worker(place.pid)
        for token in place.retired:
            known.pop(token, None)
        mapped = known.get(place.token)
        if mapped is None:
            memory = of_process(place.pid, place.fd, place.capacity, place.token)
            mapped = known[place.token] = Mapped(memory, self._leased)
        payload = mapped.lease(place.nbytes)
        if self._forks:
            mapped.lose()
        return payload

    def begin_fork(self) -> None:
        """Have what is looked at until :meth:`end_fork` never be used again: the child may look at it too."""
        self._forks.append(None)
        for mapped in self._leased.copy():
            mapped.lose()

    def end_fork(self) -> None:
        """See :meth:`begin_fork`."""
        self._forks.pop()

    def forget(self) -> None:
        """Keep no mapping but of what is looked at."""
        self._mapped.clear()

    def _of_worker(self, pid: int) -> Dict[int, Mapped]:
        known = self._mapped.get(pid)
        if known is None:
            known = {}
            # Without such a process, nobody would say when it is over: a mapping then goes with its batch.
            for process in multiprocessing.active_children():
                if process.pid == pid:
                    self._mapped[pid] = known
                    weakref.finalize(process, self._mapped.pop, pid, None).atexit = False
        return known


_arrivals = Arrivals()


def claim(place: Place) -> Any:
    """:meth:`Arrivals.claim` of this process."""
    return _arrivals.claim(place)


def _before_fork() -> None:
    _arrivals.begin_fork()


def _in_parent() -> None:
    _arrivals.end_fork()


def _in_child() -> None:
    """A child has its own workers; what it sees of its parent's is kept by what it has of their batches."""
    global _arrivals
    _arrivals.forget()
    _arrivals = Arrivals()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
