"""Do a piece of work once for all processes of this node: no barrier, no rank arithmetic, no torch.distributed."""

from __future__ import annotations

import contextlib
import os
from typing import Callable, Optional, TypeVar, Union

from . import errors
from .locks import BuildLock, NoLock, Note

T = TypeVar('T')


class LookAgain(Exception):
    """Raised by the work to say that it has become pointless. Not a failure: those who wait look for themselves."""


def once(
    lock: Union[BuildLock, NoLock],
    find: Callable[[], Optional[T]],
    make: Callable[[], T],
    waiting: Callable[[Note], None],
) -> T:
    """The result of the work, made by this process or by the one that has the lock.

    Args:
        lock: What names the work. If its holder is killed, one of those who wait takes over.
        find: Looks whether the result is there; None if not.
        make: Does the work. What it raises is raised in every process that was waiting, too.
        waiting: Told now and then what the holder says.

    Raises:
        Exception: Whatever ``make`` raised, here or in the process that this one waited for.
    """
    while True:
        note = lock.acquire(waiting)
        if note is None:
            try:
                found = find()  # it may have been made before the lock was ours
                return make() if found is None else found
            except Exception as error:
                if not isinstance(error, LookAgain):
                    _leave(lock, error)
                raise
            finally:
                lock.release()
        found = find()
        if found is not None:
            return found
        if isinstance(note.get('error'), dict):
            raise errors.from_note(note['error']) from errors.BuildFailedError(
                f'Process {note["error"].get("pid")} failed while it built this for all processes of the node; '
                'its traceback shows where.'
            )


def _leave(lock: Union[BuildLock, NoLock], error: Exception) -> None:
    with contextlib.suppress(OSError, ValueError):  # then each of them tries, and fails, by itself
        lock.leave({'error': {'pid': os.getpid(), **errors.to_note(error)}})
