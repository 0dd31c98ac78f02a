"""Memory of many small objects: not searched for cycles while they are made, given back when they are freed."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Iterator


def give_back_memory() -> None:
    """Have the C library return what was freed: glibc keeps it where something above it is still in use.

    Without it a rank was seen to keep several hundred megabytes of an evaluation. Does nothing with other libraries.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Keep the garbage collector off: records make no cycles, so looking for some would only take time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
