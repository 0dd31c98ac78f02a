"""Text for a terminal: nothing from a file may steer it, and no encoding may stop it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import unicodedata
from typing import Iterator, List, Sequence, TextIO

from mmshared.annotations.cache.errors import size_text
from mmshared.annotations.cache.messages import printable

__all__ = ['columns', 'drop_output', 'emit', 'flush', 'paint', 'printable', 'size_text', 'terminal_width', 'width_of']

_COLOURS = {'ok': '32', 'note': '36', 'warning': '33', 'problem': '31', 'error': '31'}


def emit(line: str = '', stream: TextIO | None = None) -> None:
    """Write ``line`` to ``stream`` (stdout); characters that its encoding lacks are escaped.

    Raises:
        OSError: it cannot be written; a BrokenPipeError if nobody reads it.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # closed before Python started
        return
    encoding = getattr(stream, 'encoding', None) or 'utf-8'
    with _named_output():
        stream.write(line.encode(encoding, 'backslashreplace').decode(encoding) + '\n')


def flush() -> None:
    """See that all that was emitted gets out; raises as :func:`emit`."""
    if sys.stdout is not None:
        with _named_output():
            sys.stdout.flush()


def drop_output() -> None:
    """What is still buffered goes nowhere: else Python tries once more at its end, and complains."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no real file: nobody complains
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _named_output() -> Iterator[None]:
    """Lets the error of a write say that it is about the output, not about some file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise OSError(error.errno, error.strerror, 'the output') from error


def width_of(text: str) -> int:
    """Columns of a terminal that ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in 'WF' else 0 if unicodedata.combining(c) else 1 for c in text)


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> List[str]:
    """``rows`` as lines of aligned columns, two spaces apart; those whose numbers are in ``right`` end flush."""
    widths = [max(map(width_of, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        cells = []
        for i, (cell, width) in enumerate(zip(row, widths)):
            gap = ' ' * (width - width_of(cell))
            cells.append(gap + cell if i in right else cell + gap)
        lines.append('  '.join(cells).rstrip())
    return lines


def paint(text: str, level: str) -> str:
    """``text`` in the colour of ``level`` on a terminal that shows colours, unless ``$NO_COLOR`` is set."""
    wanted = not os.environ.get('NO_COLOR') and os.environ.get('TERM') != 'dumb'
    terminal = getattr(sys.stdout, 'isatty', lambda: False)
    if level not in _COLOURS or not wanted or not terminal():
        return text
    return f'\033[{_COLOURS[level]}m{text}\033[0m'


def terminal_width() -> int:
    """Columns of the terminal: ``$COLUMNS``, else as it is, else 80; at least 40."""
    return max(40, shutil.get_terminal_size().columns)
