"""From archives to their index: mapped if it is there, built by the first process of the node to ask if it is not."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Callable, Optional, Sequence, Tuple

from mmshared.annotations.cache import Fingerprint, StoreCache
from mmshared.annotations.container import FORMAT_VERSION
from mmshared.annotations.errors import StoreError

from .formats.base import ProgressCall
from .formats.detection import format_of
from .index import ARCHIVES, ArchiveFacts, Index
from .index_writer import IndexWriter

KIND = 'i'


def open_index(archives: Sequence[str], cache_dir: Optional[str] = None) -> Index:
    """The index of a set of archives, in the annotation cache like the stores of annotation files.

    Args:
        archives: their paths. The set is what counts, and each archive as it is now.
        cache_dir: folder of the cache; see :class:`~mmshared.annotations.cache.StoreCache`.

    Raises:
        ArchiveError: one of them cannot be read.
        OSError: likewise.
        CacheError: the index cannot be written.
    """

    def build(source: str, out: BinaryIO, progress: ProgressCall, scratch: Callable[[], BinaryIO]) -> None:
        _build(archives, source, out, progress)

    mark = _Archives('', kind=KIND, archives=tuple(archives))
    with StoreCache(cache_dir, FORMAT_VERSION).acquire(mark, build, _is_index) as held:
        return Index(held.path)


def _is_index(path: Path) -> bool:
    try:
        Index(path)
    except (StoreError, OSError):
        return False
    return True


@dataclass(frozen=True)
class _Archives(Fingerprint):
    """A set of archives. What identifies it are the fingerprints of all files that say what is in it."""

    archives: Tuple[str, ...] = ()
    marks: Tuple[Fingerprint, ...] = ()

    def again(self) -> _Archives:
        """The set as it is now. Raises as :func:`open_index`."""
        files = [file for path in self.archives for file in format_of(path).files(path)]
        marks = tuple(map(Fingerprint.of_file, files))
        source = os.path.realpath(self.archives[0])
        if len(self.archives) > 1:
            last = os.path.basename(self.archives[-1])
            names = zlib.crc32('\0'.join(map(os.path.realpath, self.archives)).encode('utf-8', 'surrogateescape'))
            source = f'{source} and {len(self.archives) - 1} more, to {last} ({names:08x})'  # no other set is called so
        facts = tuple((f'{mark.source} {name}', fact) for mark in marks for name, fact in mark.facts)
        return replace(self, source=source, facts=facts, marks=marks)

    def settle(self) -> None:
        """As of each file."""
        for mark in self.marks:
            mark.settle()


def _build(archives: Sequence[str], source: str, out: BinaryIO, progress: ProgressCall) -> None:
    """Writes the index of ``archives`` to ``out``."""
    writer, facts = IndexWriter(), []
    sizes = [os.path.getsize(path) for path in archives]
    for number, path in enumerate(archives):
        archive_format, mark = format_of(path), Fingerprint.of_file(path)
        known = dict(mark.facts)
        facts.append(
            ArchiveFacts(
                mark.source, known['size'], known['mtime_ns'], known['inode'], known['blocks'], archive_format.name
            )
        )
        before, total = sum(sizes[:number]), sum(sizes)

        def done(part: int, whole: int, before: int = before, share: int = sizes[number], total: int = total) -> None:
            progress(before + share * part // max(whole, 1), total)

        for entry in archive_format.entries(path, done):
            writer.add(number, entry, path)
    writer.write(out, {'source': source, ARCHIVES: facts})
