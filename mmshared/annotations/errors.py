"""Errors of the annotation store: each says what was wrong, where, and what to do."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

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


class Violations(NamedTuple):
    """What in an annotation file mmdet's datasets would choke on, found when its store is built.

    Attributes:
        common: what all of them would choke on, paths of images aside; None if nothing.
        paths: for each of :data:`~.layout.PATH_FIELDS` what one that finds images by that field would choke on.
    """

    common: Optional[AnnotationFileError]
    paths: Dict[str, Optional[AnnotationFileError]]

    def of(self, path_fields: Sequence[str]) -> Optional[AnnotationFileError]:
        """What one would choke on that finds images by any of ``path_fields``."""
        found = [self.paths[field] for field in path_fields]
        return self.common or (found[0] if all(found) else None)

    def as_json(self) -> List[Any]:
        """The same as lists and strings."""
        paths = {field: _as_json(error) for field, error in self.paths.items()}
        return [_as_json(self.common), paths]

    @classmethod
    def from_json(cls, file: str, value: Sequence[Any]) -> Violations:
        """What :meth:`as_json` gave for ``file``."""
        common, paths = value
        return cls(_from_json(file, common), {field: _from_json(file, error) for field, error in paths.items()})


def _as_json(error: Optional[AnnotationFileError]) -> Optional[List[Optional[str]]]:
    return None if error is None else [error.problem, error.record, error.field]


def _from_json(file: str, value: Optional[Sequence[Optional[str]]]) -> Optional[AnnotationFileError]:
    return None if value is None else AnnotationFileError(file, *value)


class StoreError(RuntimeError):
    """A store file that is torn, foreign, of another version or inconsistent."""
