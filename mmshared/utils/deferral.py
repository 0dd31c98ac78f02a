"""Asking for samples by those who look at an image's size only."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Iterator

#: Whether ``get_data_info`` of a shared dataset may leave the making of instances to whoever reads them.
DEFERRED: ContextVar[bool] = ContextVar('mmshared_deferred', default=False)


@contextlib.contextmanager
def deferred_instances() -> Iterator[None]:
    """In this block (and thread) shared datasets give samples whose instances are made when they are read.

    For samplers, that want to know widths and heights: ``AspectRatioBatchSampler`` asks for every sample before it is
    loaded, ``GroupMultiSourceSampler`` for all of them when it is built, in the main process.
    """
    token = DEFERRED.set(True)
    try:
        yield
    finally:
        DEFERRED.reset(token)
