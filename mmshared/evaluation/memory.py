"""Memory that was freed, back to the system."""

from __future__ import annotations

import contextlib
import ctypes


def give_back_memory() -> None:
    """Have the C library return what was freed: glibc keeps it where something above it is still in use.

    Without it a rank was seen to keep several hundred megabytes of an evaluation. Does nothing with other libraries.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
