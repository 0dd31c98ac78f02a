"""Which processes of this rank load, and for which phase."""

from __future__ import annotations

import multiprocessing.process
from typing import Any, Dict, Iterable, Iterator, Optional

_LOOPS = {'train': '_train_loop', 'val': '_val_loop', 'test': '_test_loop'}


class OwnWorkers:
    """The workers of this process, for whatever loops of a runner.

    Those of lean loops and those that a ``DataLoader`` keeps are known. Others are kept by nobody whom one could ask
    (``persistent_workers=False`` with MMEngine's loops): they load for the phase in which they are first seen.
    """

    def __init__(self) -> None:
        self._first_seen: Dict[int, Optional[str]] = {}

    def by_phase(self, runner: Any, phase: Optional[str]) -> Dict[int, str]:
        """The phase of each worker ('train', 'val' or 'test'), by process id.

        Args:
            runner: whose loops they work for.
            phase: the one that goes on; None between phases.
        """
        unknown = [process.pid for process in _children() if _looks_like_worker(process)]
        self._first_seen = {pid: self._first_seen.get(pid) or phase for pid in unknown}
        found = {pid: first for pid, first in self._first_seen.items() if first is not None}
        for name, attribute in _LOOPS.items():
            loop = getattr(runner, attribute, None)
            found.update((pid, name) for pid in _pids(_processes(loop)))
        return found


def _processes(loop: Any) -> Iterator[Any]:
    """The workers of a loop; of one that is not built yet, which is a dict or None, there are none."""
    workers = getattr(loop, 'workers', None)
    yield from getattr(workers, 'processes', None) or ()
    kept = getattr(getattr(loop, 'dataloader', None), '_iterator', None)
    yield from getattr(kept, '_workers', None) or ()
    endless = getattr(getattr(loop, 'dataloader_iterator', None), '_iterator', None)  # of IterBasedTrainLoop
    yield from getattr(endless, '_workers', None) or ()


def _children() -> list:
    """Processes that were started with ``multiprocessing`` from here. (``active_children`` takes note of those that
    have died, which PyTorch wants to do itself.)
    """
    return list(getattr(multiprocessing.process, '_children', ()))


def _looks_like_worker(process: Any) -> bool:
    return process.daemon and 'PoolWorker' not in process.name


def _pids(processes: Iterable[Any]) -> Iterator[int]:
    return (process.pid for process in processes if getattr(process, 'pid', None) is not None)
