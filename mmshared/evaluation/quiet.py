"""What other packages print, kept from the output."""

from __future__ import annotations

import contextlib
import io
import threading
from typing import Iterator

# ``redirect_stdout`` of two threads at once would leave the one's buffer in place of ``sys.stdout``.
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block, nothing is printed. One thread at a time gets in."""
    with _ONE_AT_A_TIME, contextlib.redirect_stdout(io.StringIO()):
        yield
