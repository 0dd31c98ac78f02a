"""Memory of a job's workers, and of what is on its way from them to the main process."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import astuple, dataclass
from typing import Iterable, Iterator, List

import memory
from memory import MB

SHARED = '/dev/shm'


@dataclass(frozen=True)
class Look:
    """A job at one moment, in megabytes.

    Attributes:
        private: pages that one worker alone has (USS), of all workers together, but for those of ``in_flight``.
        in_flight: shared memory with samples in it, wherever they are on their way.
        pools: both together.
        pss: of the whole tree, main process included, each page counted once.
        workers: how many there are.
    """

    private: float = 0.0
    in_flight: float = 0.0
    pools: float = 0.0
    pss: float = 0.0
    workers: int = 0

    def highest(self, other: Look) -> Look:
        """The greater one of each."""
        return Look(*map(max, astuple(self), astuple(other)))


def look(root: int) -> Look:
    """The job whose main process is ``root``; what has ended meanwhile counts nothing.

    Shared memory that only one worker has mapped is private to that worker as well: that share is taken off there.
    """
    pids = memory.trees([root])
    rollups = {pid: values for pid in pids for values in [memory.rollup(pid)] if values}
    workers = [values for pid, values in rollups.items() if pid != root]
    private = sum(
        values['Private_Clean'] + values['Private_Dirty'] - values.get('Pss_Shmem', 0.0) for values in workers
    )
    in_flight = shared_memory(pids)
    return Look(
        private, in_flight, private + in_flight, sum(values['Pss'] for values in rollups.values()), len(workers)
    )


def shared_memory(pids: Iterable[int]) -> float:
    """Megabytes of shared memory that these processes hold open, each file once.

    PyTorch passes tensors as descriptors of files in /dev/shm that have no name any more. Until the main process has
    taken one, nobody may have it mapped, so that no figure of mappings (``Pss_Shmem``) has it; descriptors do.
    """
    device, sizes = os.stat(SHARED).st_dev, {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f'/proc/{pid}/fd'):
                with contextlib.suppress(OSError):
                    file = os.stat(f'/proc/{pid}/fd/{descriptor}')
                    if file.st_dev == device:
                        sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values()) / MB


@contextlib.contextmanager
def highest_of(root: int, interval: float) -> Iterator[List[Look]]:
    """Look at the job every ``interval`` seconds; the list holds the greatest value seen of each kind."""
    highest, done = [Look()], threading.Event()

    def watch() -> None:
        while not done.wait(interval):
            highest[0] = highest[0].highest(look(root))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield highest
    finally:
        done.set()
        thread.join()
