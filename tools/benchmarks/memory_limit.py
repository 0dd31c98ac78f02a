"""A memory limit for some processes, by a control group of the kernel, version 1 or 2."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Dict

ROOT = Path('/sys/fs/cgroup')


class NoLimitError(RuntimeError):
    """This machine lets no group be made."""


class MemoryLimit:
    """A control group whose processes together get so much memory, page cache included. Use it in a ``with`` block.

    Args:
        limit: bytes.

    Raises:
        NoLimitError: no group can be made here, with what would help.
    """

    def __init__(self, limit: int) -> None:
        v1 = (ROOT / 'memory' / 'memory.limit_in_bytes').exists()
        self._path = ROOT / ('memory' if v1 else '') / f'mmshared-bench-{os.getpid()}'
        self._most, self._names = (
            ('memory.max_usage_in_bytes', {'anon': 'rss', 'file': 'cache'})
            if v1
            else ('memory.peak', {'anon': 'anon', 'file': 'file'})
        )
        try:
            if not v1:
                (ROOT / 'cgroup.subtree_control').write_text('+memory')
            self._path.mkdir()
            (self._path / ('memory.limit_in_bytes' if v1 else 'memory.max')).write_text(str(limit))
        except OSError as error:
            self.__exit__()
            raise NoLimitError(
                f'no control group for memory can be made in {ROOT} ({error.strerror}): run as root of a machine or '
                'container that has a writable one'
            ) from error

    def add(self, pid: int) -> None:
        """Put the process, and what it will start, under the limit. What it holds already stays outside."""
        (self._path / 'cgroup.procs').write_text(str(pid))

    def state(self) -> Dict[str, float]:
        """Bytes: ``peak`` of all, ``anon`` and ``file`` now (memory of programs, pages of files)."""
        lines = (self._path / 'memory.stat').read_text(encoding='ascii').splitlines()
        stat = dict(line.split() for line in lines)
        now = {name: float(stat[key]) for name, key in self._names.items()}
        return {'peak': float((self._path / self._most).read_text()), **now}

    def __enter__(self) -> MemoryLimit:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the group; its processes must have ended, or be just ending."""
        for _ in range(100):
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._path.rmdir()
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    time.sleep(0.1)
                    continue
            return
