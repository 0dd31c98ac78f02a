"""When a job's memory is looked at, and where that goes."""

from __future__ import annotations

import logging
import os
import time
from typing import Any, Dict, Optional

from mmengine.dist import get_rank, is_distributed
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.registry import HOOKS

from .look import look_at
from .process import memory_of
from .ranks import Notice, Ranks, local_rank, local_size
from .record import Record
from .workers import OwnWorkers

_NAMES = {'train': 'training', 'val': 'validation', 'test': 'test'}


@HOOKS.register_module()
class NodeMemoryHook(Hook):
    """Logs how much of this node's memory the job takes, all its ranks and workers together, and for what.

    It looks after the first iteration of each phase, when its workers are there, and when a phase ends; before the
    first phase; and every ``interval`` iterations. Each look is

    - one line in the log,
    - scalars ``node_memory/..._mb`` in the visualizer backends (MB are 10**6 bytes; step: iterations of training),
    - a line of ``<log_dir>/vis_data/node_memory.jsonl``, which ``tools/analysis/plot_memory.py`` draws.

    :class:`~.look.Look` says what the numbers are. It works with MMEngine's loops and with lean ones, whose workers
    it tells apart by phase. The first rank of each node looks, and no rank waits for another. On several nodes the log
    and the backends have what global rank 0 sees: its node. Each other node has a file of its own in the same folder.

    A look costs time in proportion to the memory that is mapped and to the number of processes, during which the
    looking rank does nothing else. Looks at the interval are left out as long as all looks together would take more
    than ``max_share`` of the time. Each look's ``seconds`` are in the file; ``plot_memory.py`` prints what they were:
    some 0.2 s a process in a short form of the demo's job, on a machine with several times as much to do as it could.

    Args:
        interval: iterations, of training or validation, between two looks at most; -1: only when phases change.
        max_share: of the time, for looks at the interval. Those at changes of phases are always taken.

    On systems other than Linux, and where ``/proc`` does not tell, there is one warning and nothing else.
    """

    priority = 'LOW'  # after LoggerHook

    def __init__(self, interval: int = 50, max_share: float = 0.01) -> None:
        if not 0 < max_share <= 1:
            raise ValueError(f'max_share is {max_share}, should be above 0 and at most 1')
        self.interval, self.max_share = interval, max_share
        self._phase: Optional[str] = None
        self._trains = self._looks = False
        self._began = 0.0
        self._is_first_iteration = self._has_looked = False
        self._iterations = self._start = 0
        self._rests_until = 0.0
        self._own = OwnWorkers()
        self._posted: Dict[int, str] = {}
        self._notice: Optional[Notice] = None
        self._ranks: Optional[Ranks] = None
        self._record: Optional[Record] = None

    def before_run(self, runner: Any) -> None:
        """Find out whether this rank looks, and let those who do find it."""
        if self._trains:  # a test in the middle of training
            return
        if not memory_of(os.getpid()):
            print_log(
                'NodeMemoryHook does nothing: this system does not tell the memory of processes in /proc/PID/smaps.',
                logger='current',
                level=logging.WARNING,
            )
            return
        # The first rank of all has told the others its time.
        job = ' '.join([runner.timestamp, *(os.environ.get(name, '') for name in ('MASTER_ADDR', 'MASTER_PORT'))])
        several = is_distributed()
        if several:
            self._tell(job)
        if not several or local_rank() == 0:
            self._looks = True
            self._ranks = Ranks(job, local_size() if several else 1)
            self._record = Record(runner.log_dir, get_rank())

    def before_train(self, runner: Any) -> None:
        """Training begins."""
        self._trains, self._start = True, runner.iter
        self._begin(runner, 'train')

    def before_val(self, runner: Any) -> None:
        """Validation begins."""
        self._begin(runner, 'val')

    def before_test(self, runner: Any) -> None:
        """Test begins."""
        self._begin(runner, 'test')

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """A batch has arrived."""
        self._post(runner)

    def before_val_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """A batch has arrived."""
        self._post(runner)

    def before_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """A batch has arrived."""
        self._post(runner)

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """An iteration is over."""
        self._after_iteration(runner)

    def after_val_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """An iteration is over."""
        self._after_iteration(runner)

    def after_test_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """An iteration is over."""
        self._after_iteration(runner)

    def after_val(self, runner: Any) -> None:
        """Validation ends, and training goes on if there is any."""
        self._end(runner, 'train' if self._trains else None)

    def after_test(self, runner: Any) -> None:
        """Test ends."""
        self._end(runner, None)

    def after_train(self, runner: Any) -> None:
        """Training ends."""
        self._trains = False
        self._end(runner, None)

    def after_run(self, runner: Any) -> None:
        """Be found no more."""
        if self._trains:  # a test in the middle of training
            return
        if self._notice is not None:
            self._notice.close()
            self._notice = None
        self._looks = False

    def _tell(self, job: str) -> None:
        try:
            self._notice = Notice(job)
        except (OSError, AttributeError) as error:
            print_log(
                f'NodeMemoryHook sees the rank it runs in only: no file in memory can be made ({error}).',
                logger='current',
                level=logging.WARNING,
            )

    def _begin(self, runner: Any, phase: str) -> None:
        self._enter(runner, phase)
        # In a job of several ranks not all have come so far, perhaps; they have after the first iteration.
        if self._looks and not self._has_looked and self._ranks.find():
            self._look(runner, f'before {_NAMES[phase]}')

    def _end(self, runner: Any, following: Optional[str]) -> None:
        ended = self._phase or 'train'
        self._enter(runner, following)
        self._look(runner, f'end of {_NAMES[ended]}')

    def _enter(self, runner: Any, phase: Optional[str]) -> None:
        self._post(runner)  # workers that are not known yet are of the phase before
        self._phase, self._is_first_iteration, self._began = phase, phase is not None, time.time()

    def _after_iteration(self, runner: Any) -> None:
        self._post(runner)
        self._iterations += 1
        is_first, self._is_first_iteration = self._is_first_iteration, False
        is_due = 0 < self.interval <= self._iterations and time.monotonic() >= self._rests_until
        if is_first or is_due:
            self._look(runner, _NAMES[self._phase or 'train'], done=int(self._phase == 'train'))

    def _post(self, runner: Any) -> None:
        """Note which workers this rank has now, and let the rank that looks know."""
        if not (self._looks or self._notice):
            return
        workers = self._own.by_phase(runner, self._phase)
        if workers != self._posted and self._notice is not None:
            self._notice.post(workers)
        self._posted = workers

    def _look(self, runner: Any, moment: str, done: int = 0) -> None:
        """Look; ``done`` iterations of training are over that the runner does not count yet."""
        if not self._looks:
            return
        begin = time.perf_counter()
        self._ranks.find()
        look = look_at(self._ranks.pids, {**self._ranks.workers(), **self._posted})
        seconds = time.perf_counter() - begin
        self._has_looked, self._iterations = True, 0
        self._rests_until = max(self._rests_until, time.monotonic()) + seconds * (1 / self.max_share - 1)
        epoch, iteration = _progress(runner)
        iteration += done
        runner.logger.info(f'Node memory, {moment}: {look}')
        runner.visualizer.add_scalars(look.scalars(), step=iteration)
        facts = dict(moment=moment, phase=self._phase, began=round(self._began, 3), seconds=round(seconds, 4))
        self._record.append(look, **facts, epoch=epoch, iter=iteration, start=self._start)


def _progress(runner: Any) -> tuple:
    """Epoch and iteration of training; 0 where there is none (to ask would build its loop)."""
    loop = getattr(runner, '_train_loop', None)
    return (0, 0) if loop is None or isinstance(loop, dict) else (runner.epoch, runner.iter)
