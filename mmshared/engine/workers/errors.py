"""What is said when data cannot be loaded."""

from __future__ import annotations

import signal
from typing import Iterable

from .seeding import PoolSeed

_OFTEN = {
    signal.SIGKILL: 'Linux does so when memory is used up, also that of a container: see `dmesg`. Fewer workers, or a '
    'smaller prefetch_factor, need less.',
    signal.SIGBUS: '/dev/shm may be full: `df -h /dev/shm`.',
}


class LoadingError(RuntimeError):
    """Workers could not be started, died, or raised an error (its cause); says for which phase they loaded."""


def failure(pool: PoolSeed, what: str) -> LoadingError:
    """The error for a pool of workers that started at ``pool``."""
    when = f'workers of epoch {pool.epoch + 1}, from iteration {pool.iteration + 1} on, rank {pool.rank}'
    return LoadingError(f'Loading data for {pool.phase} failed ({when}): {what}')


def last_words(error: BaseException) -> str:
    """One line on ``error``; on its origin if it comes from a worker, whose traceback is its message then."""
    message = str(error)
    if 'Original Traceback' in message:
        return message.strip().splitlines()[-1]
    return f'{type(error).__name__}: {message}'


def deaths(exits: Iterable[tuple[int, int]]) -> str:
    """How workers died, given their process ids and exit codes (negative: signals, as ``multiprocessing`` has them)."""
    lines = []
    for pid, code in exits:
        if code >= 0:
            lines.append(f'worker {pid} ended by itself with exit code {code}.')
        else:
            lines.append(f'worker {pid} was killed by {_name(-code)}. {_OFTEN.get(-code, "")}'.strip())
    return ' '.join(lines)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for programs' own use have none
        return f'signal {number}'
