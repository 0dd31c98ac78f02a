"""Signs of life: what the one who builds shows, and what those who wait for it say."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Union

from .errors import size_text
from .locks import BuildLock, NoLock, Note
from .messages import printable, say

LARGE_BYTES = 50_000_000  # files below this are done before anybody wonders
NOTE_SECONDS = 0.5
LINE_SECONDS = 10.0
BAR_SECONDS = 0.2
BAR_WIDTH = 30
WAIT_FIRST_SECONDS = 2.0
WAIT_LINE_SECONDS = 15.0


class Progress:
    """Told how far a build is, it leaves that in the lock file, and shows a bar on a terminal, log lines elsewhere.

    Args:
        label: Name of the annotation file, for people.
        lock: The lock that is held for the build.
        size: Bytes of the annotation file, if known.
    """

    def __init__(self, label: str, lock: Union[BuildLock, NoLock], size: Union[int, None]) -> None:
        self._label = label
        self._lock = lock
        self._began = time.monotonic()
        self._since = time.time()
        self._next_note = self._next_bar = 0.0
        self._next_line = self._began + LINE_SECONDS
        self._bar = False
        self._announced = (size or 0) > LARGE_BYTES
        self._leave(0, size or 0)
        if self._announced:
            say(
                'reading %s (%s) into a memory-mapped store, once for all processes of this node',
                label,
                size_text(size or 0),
            )

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total`` units (bytes of the source, as a rule) are read; may be called as often as you like."""
        now = time.monotonic()
        if now >= self._next_note:
            self._next_note = now + NOTE_SECONDS
            self._leave(done, total)
        if total <= LARGE_BYTES and now - self._began < WAIT_FIRST_SECONDS:
            return
        if _terminal():
            if now >= self._next_bar:
                self._next_bar = now + BAR_SECONDS
                self._draw(done, total)
        elif now >= self._next_line:
            self._next_line = now + LINE_SECONDS
            self._announced = True
            say('%s: %s', self._label, self._text(done, total))

    def close(self) -> None:
        """Leave the terminal's line clean, whatever happened."""
        if self._bar:
            self._bar = False
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write('\r\033[K')
                sys.stderr.flush()

    def finish(self, size: int, where: os.PathLike) -> None:
        """The store is published: say so, with its ``size`` in bytes, if the build took long enough to be noticed."""
        self.close()
        seconds = time.monotonic() - self._began
        if self._announced or seconds > WAIT_FIRST_SECONDS:
            say('%s: done in %.1f s, the store takes %s: %s', self._label, seconds, size_text(size), where)

    def _leave(self, done: int, total: int) -> None:
        with contextlib.suppress(OSError):
            self._lock.leave(
                {'pid': os.getpid(), 'host': socket.gethostname(), 'since': self._since, 'done': done, 'total': total}
            )

    def _text(self, done: int, total: int) -> str:
        rate = done / max(time.monotonic() - self._began, 1e-3)
        return f'{_share(done, total)}{size_text(done)} of {size_text(total)}, {rate / 1e6:.0f} MB/s'

    def _draw(self, done: int, total: int) -> None:
        filled = BAR_WIDTH * min(done, total) // total if total else 0
        bar = '#' * filled + '-' * (BAR_WIDTH - filled)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f'\r{printable(self._label)} [{bar}] {self._text(done, total)}\033[K')
            sys.stderr.flush()
            self._bar = True


class Waiting:
    """Called again and again with the builder's note; now and then says who builds, since when, and how far it is."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._began = time.monotonic()
        self._next = self._began + WAIT_FIRST_SECONDS

    def __call__(self, note: Note) -> None:
        """Log a line if one is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + WAIT_LINE_SECONDS
        pid, done, total = note.get('pid'), note.get('done') or 0, note.get('total') or 0
        who = f'process {pid} on {note.get("host")}' if pid else 'another process'
        age = f', which began {time.time() - note["since"]:.0f} s ago' if 'since' in note else ''
        say(
            'waiting for %s%s, to build the store of %s: %s%s (waited %.0f s)',
            who,
            age,
            self._label,
            _share(done, total),
            f'of {size_text(total)}' if total else 'begun',
            now - self._began,
        )


def _share(done: int, total: int) -> str:
    return f'{100 * min(done, total) // total} % ' if total else ''


def _terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
