"""Memory of running processes, read from outside through Linux's ``/proc``."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List

import psutil

MB = 1e6
INTERVAL = 0.02
_GONE = (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess)


@dataclass(frozen=True)
class Memory:
    """Megabytes (10**6 bytes) of one process or of several together.

    Attributes:
        anonymous: heap and other pages that belong to no file, each counted once however many of the processes share
            it after a fork (``Pss_Anon``). Mapped files are not in it.
        uss: pages nobody else maps, those of mapped files included.
        pss: all pages; one that n processes map counts 1/n in each.
    """

    anonymous: float = 0.0
    uss: float = 0.0
    pss: float = 0.0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.anonymous + other.anonymous, self.uss + other.uss, self.pss + other.pss)

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.anonymous - other.anonymous, self.uss - other.uss, self.pss - other.pss)

    def __truediv__(self, number: float) -> Memory:
        return Memory(self.anonymous / number, self.uss / number, self.pss / number)


def rollup(pid: int) -> Dict[str, float]:
    """What ``smaps_rollup`` says of a process, in megabytes; nothing if it has ended, or is just ending."""
    with contextlib.suppress(*_GONE):
        lines = Path(f'/proc/{pid}/smaps_rollup').read_text(encoding='ascii').splitlines()[1:]
        return {line.split(':')[0]: int(line.split()[1]) * 1024 / MB for line in lines}
    return {}


def of_processes(pids: Iterable[int]) -> Memory:
    """Memory of these processes together; one that has ended counts nothing."""
    total = Memory()
    for values in filter(None, map(rollup, pids)):
        total += Memory(
            values.get('Pss_Anon', values['Anonymous']),
            values['Private_Clean'] + values['Private_Dirty'],
            values['Pss'],
        )
    return total


def of_files(pids: Iterable[int], folder: Path) -> float:
    """Megabytes of PSS that these processes together have of mapped files in ``folder``."""
    total = 0
    for pid in pids:
        with contextlib.suppress(*_GONE):
            total += sum(
                mapping.pss for mapping in psutil.Process(pid).memory_maps() if mapping.path.startswith(f'{folder}/')
            )
    return total / MB


def trees(roots: Iterable[int]) -> List[int]:
    """The processes ``roots`` and all that descend from them."""
    pids = []
    for root in roots:
        with contextlib.suppress(*_GONE):
            pids += [root, *(child.pid for child in psutil.Process(root).children(recursive=True))]
    return pids


@contextlib.contextmanager
def peak_of_tree(root: int) -> Iterator[List[Memory]]:
    """Look at ``root`` and its descendants every 20 ms; the list holds the greatest value seen of each kind.

    What lives shorter than that can be missed. Looking at a process of several gigabytes takes longer, and holds it up:
    it is looked at less often then, so that no more than a tenth of the time goes into that.
    """
    peak, done = [Memory()], threading.Event()

    def watch() -> None:
        pause = INTERVAL
        while not done.wait(pause):
            start = time.perf_counter()
            now = of_processes(trees([root]))
            pause = max(INTERVAL, 9 * (time.perf_counter() - start))
            peak[0] = Memory(*(max(getattr(peak[0], kind), getattr(now, kind)) for kind in ('anonymous', 'uss', 'pss')))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
