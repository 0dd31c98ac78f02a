"""A file for constructors that insist on parsing one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Iterator


@contextlib.contextmanager
def empty_file(content: bytes) -> Iterator[str]:
    """The path of a file with ``content`` that is gone after the block; it is in memory where the system has that."""
    with contextlib.ExitStack() as stack:
        if hasattr(os, 'memfd_create'):
            descriptor = os.memfd_create('mmshared')
            stack.callback(os.close, descriptor)
            os.write(descriptor, content)
            yield f'/proc/self/fd/{descriptor}'
            return
        file = stack.enter_context(tempfile.NamedTemporaryFile(suffix='.json'))
        file.write(content)
        file.flush()
        yield file.name
