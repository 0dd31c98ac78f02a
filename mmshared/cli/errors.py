"""Errors as one line on stderr."""

from __future__ import annotations

import contextlib
import os
import sys

from mmshared.annotations import AnnotationFileError, CacheError, StoreError
from mmshared.annotations.errors import MAX_MESSAGE

from .text import emit, printable

#: What may go wrong without a fault in mmshared: bad files, full disks, missing permissions.
FORESEEABLE = (AnnotationFileError, CacheError, StoreError, OSError, ValueError)


def complain(problem: BaseException | str) -> None:
    """Say on stderr what is wrong: of an error of the system the file and the reason."""
    if isinstance(problem, OSError) and problem.strerror:
        name = problem.filename
        problem = problem.strerror if name is None else f'{os.fspath(name)}: {problem.strerror}'
    with contextlib.suppress(OSError):  # nobody reads that either
        emit(f'mmshared: error: {printable(problem, MAX_MESSAGE)}', sys.stderr)
