"""How many processes parse an annotation file, and what each of them gets."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Callable, Iterable, List, Optional

from .cuts import guess_cuts, guess_end
from .part import Part
from .stream import Cut, JsonFile

#: A process took 0.4 s to start, and some 40 MB (see docs/annotations.md): it should have something to do.
PART_BYTES = 100_000_000
ENV = 'MMSHARED_BUILD_PROCESSES'
_MOST = 8


def processes() -> int:
    """``$MMSHARED_BUILD_PROCESSES``, else as many as this process may use cores, at most eight.

    Raises:
        ValueError: the variable is no positive integer.
    """
    text = os.environ.get(ENV, '')
    if not text:
        return min(_cores(), _MOST)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f'{ENV} is {text[:40]!r}, should be a number of processes: 1 or more.')
    return int(text)


def _cores() -> int:
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Crew:
    """The processes that parse one array together with this one.

    Args:
        file: the annotation file.
        key: ``images`` or ``annotations``.
        start: offset behind the array's opening bracket.
        others: keys of the top object that may follow the array.
        scratch: makes empty temporary files.
        part_bytes: give each process at least so much.

    To be closed, also after an error.
    """

    def __init__(
        self,
        file: JsonFile,
        key: str,
        start: int,
        others: Iterable[str],
        scratch: Callable[[], BinaryIO],
        part_bytes: int,
    ) -> None:
        self._cuts: List[Cut] = []
        self._parts: List[Part] = []
        most = processes() if _possible(file) else 1
        if most > 1 and file.size - start >= 2 * part_bytes:
            end = guess_end(file, start, others)
            self._cuts = guess_cuts(file, start, end, min(most, (end - start) // part_bytes))
        for cut, stop in zip(self._cuts, [*self._cuts[1:], None]):
            try:
                self._parts.append(Part(file, key, cut.start, stop, scratch))
            except OSError:  # no process or no descriptor to be had: fewer will do
                break
            except BaseException:
                self.close()
                raise

    def stop(self, offset: int) -> Optional[Cut]:
        """Where whoever begins at ``offset`` should stop, since another process began there; None if none did."""
        return next((cut for cut, _ in zip(self._cuts, self._parts) if cut.end > offset), None)

    def done(self) -> int:
        """How many bytes the other processes have parsed so far."""
        for part in self._parts:
            part.poll()
        return sum(part.offset - part.start for part in self._parts)

    def take(self, offset: int, progress: Callable[[], None]) -> Optional[Part]:
        """The finished part that begins at ``offset``; None if there is none, or its process failed."""
        part = next((part for part in self._parts if part.start == offset), None)
        return part if part and part.wait(progress) else None

    def close(self) -> None:
        """Stops all processes that are still at work."""
        for part in self._parts:
            part.close()


def _possible(file: JsonFile) -> bool:
    """Whether other processes can open the file, and be given open files."""
    name = getattr(file.file, 'name', None)
    return os.name == 'posix' and bool(sys.executable) and isinstance(name, str) and os.path.isfile(name)
