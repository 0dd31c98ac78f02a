"""The open files of a process: no two processes ever share one, nor the place in it where the next read begins."""

from __future__ import annotations

import os
from typing import Callable, Dict, Sequence, Tuple

MOST_OPEN = 64
"""Files a process keeps open: a set of archives may have more than the 1,024 that many systems allow."""


class OpenFile:
    """A file open for reading, closed when nobody refers to it any more, be it in another thread.

    Attributes:
        number: its descriptor.
        checked: for whoever uses it: whether it is known to be the right one.
    """

    __slots__ = ('_pid', 'checked', 'number')

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0))
        self._pid, self.checked = os.getpid(), False

    # The functions are bound early: at the end of Python the module may be gone before the last file is.
    def __del__(self, getpid: Callable[[], int] = os.getpid, close: Callable[[int], None] = os.close) -> None:
        # In a forked process the number may be that of another file by now: whoever becomes a daemon closes them all.
        if getattr(self, '_pid', None) == getpid():
            close(self.number)


class Descriptors:
    """Opens files when they are needed, anew in each process.

    No locks: a thread may be anywhere in it while another one forks.

    Args:
        paths: of the files.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._open: Tuple[int, Dict[int, OpenFile]] = (0, {})

    def __getitem__(self, i: int) -> OpenFile:
        """The ``i``-th file; keep the result as long as its number is used.

        Raises:
            OSError: it cannot be opened.
        """
        pid, files = self._open
        if pid != os.getpid():
            files = {}
            self._open = os.getpid(), files
        file = files.get(i)
        if file is None:
            while len(files) >= MOST_OPEN:
                # The one opened first. Another thread may be doing the same, or adding one: list() goes in one step.
                files.pop(next(iter(list(files)), i), None)
            file = files[i] = OpenFile(self._paths[i])
        return file
