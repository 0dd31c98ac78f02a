"""Errors of archives: each names the archive, the entry where it is about one, and what to do."""

from __future__ import annotations

import os
from typing import Optional

from mmshared.annotations.errors import MAX_MESSAGE, clip


class ArchiveError(ValueError):
    """An archive, or one of its entries, that cannot be read.

    Attributes:
        archive: path of the archive.
        problem: what is wrong, and what to do.
        entry: name of the entry; None if it is about the whole archive.
    """

    def __init__(self, archive: os.PathLike | str, problem: str, entry: Optional[str] = None) -> None:
        self.archive, self.problem, self.entry = os.fspath(archive), problem, entry
        super().__init__(self.archive, problem, entry)  # plain arguments: it travels between processes

    def __str__(self) -> str:
        where = self.archive if self.entry is None else f'{self.archive}: {self.entry}'
        return clip(f'{where}: {self.problem}', MAX_MESSAGE)


class CompressedArchiveError(ArchiveError):
    """The archive is compressed as a whole, so that nothing in it can be read without all before it."""


class ArchiveChangedError(ArchiveError):
    """The archive is not any more the file that its index was made from."""


class AmbiguousEntryError(ArchiveError):
    """Several entries could be meant."""


class EntryNotFoundError(ArchiveError, FileNotFoundError):
    """There is no such entry, nor such a file on the disk."""
