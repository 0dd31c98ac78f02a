"""Errors of the annotation store: each says what was wrong, where, and what to do."""

from __future__ import annotations

import os
from typing import Any, Optional

MAX_MESSAGE = 1500


def clip(text: str, limit: int = 80) -> str:
    """``text``, cut to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + '...'


def shorten(value: Any, limit: int = 80) -> str:
    """``repr(value)``, cut to ``limit`` characters."""
    return clip(repr(value), limit)


class AnnotationFileError(ValueError):
    """An annotation file that cannot be used as COCO annotations.

    Attributes:
        file: path of the annotation file.
        record: where in the file, e.g. ``annotations[17] (id 23)``; None if it is about the whole file.
        field: name of the key that is wrong; None if it is about the whole record.
        problem: what is wrong, and where it helps, what to do.
    """

    def __init__(
        self, file: os.PathLike | str, problem: str, record: Optional[str] = None, field: Optional[str] = None
    ) -> None:
        self.file, self.problem, self.record, self.field = os.fspath(file), problem, record, field
        super().__init__(self.file, problem, record, field)  # plain arguments: it travels between processes

    def __str__(self) -> str:
        where = self.file if self.record is None else f'{self.file}: {self.record}'
        if self.field is not None:
            where += f', field {self.field!r}'
        return clip(f'{where}: {self.problem}', MAX_MESSAGE)


class StoreError(RuntimeError):
    """A store file that is torn, foreign, of another version or inconsistent."""
