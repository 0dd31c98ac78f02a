"""The files in a set of archives, read by any number of processes and threads."""

from __future__ import annotations

import glob
import os
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

from mmshared.annotations.cache import Fingerprint

from .descriptors import Descriptors, OpenFile
from .entry import REFUSED, Entry
from .errors import AmbiguousEntryError, ArchiveChangedError, ArchiveError
from .formats.base import Format
from .formats.recordio import INDEX_SUFFIX, NAMES_SUFFIX, RecordIO
from .formats.tar import Tar
from .formats.zip import Zip
from .index import Index
from .indexing import open_index

_FORMATS: Dict[str, Format] = {known.name: known for known in (Tar(), Zip(), RecordIO())}
_LISTS = (INDEX_SUFFIX, NAMES_SUFFIX)
_BRACKETS = ' It is taken for a pattern: write [[] for a bracket [ that is part of a name.'
ArchiveArg = Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]


class Archives:
    """One archive, or several that make up one set of files. It pickles to paths and opens again by itself.

    Nothing is opened before it is needed. The index is mapped; each process opens the archives for itself, and reads by
    position, so nobody can get in another's way: neither forked workers nor threads.

    Args:
        paths: of the archives, each once.
        verify_crc: whether to compare checksums, where the format has them.
        cache_dir: folder of the index; see :class:`~mmshared.annotations.cache.StoreCache`.
    """

    def __init__(self, paths: Sequence[str], verify_crc: bool = True, cache_dir: Optional[str] = None) -> None:
        self.paths, self.verify_crc, self.cache_dir = [os.path.abspath(path) for path in paths], verify_crc, cache_dir
        self._files = Descriptors(self.paths)
        self._index: Optional[Index] = None
        self._known: List[Tuple[Format, int, int]] = []  # of each archive, with size and time of modification

    def __reduce__(self) -> tuple:
        return type(self), (self.paths, self.verify_crc, self.cache_dir)

    # Not a cached_property: before Python 3.12 that has a lock, which a fork in another thread would leave locked.
    @property
    def index(self) -> Index:
        """What is in the archives, as they were when it was first asked for."""
        if self._index is None:
            index = open_index(self.paths, self.cache_dir)
            self._known = [(_FORMATS[known.format], known.size, known.modified) for known in index.archives]
            self._index = index
        return self._index

    def read(self, row: int) -> bytes:
        """The bytes of the entry in a row of the index.

        Raises:
            ArchiveError: it is of a kind that cannot be read, or damaged.
            ArchiveChangedError: the archive is another one by now.
            StoreError: the index is damaged.
            AmbiguousEntryError: several archives have an entry of that name.
            OSError: the archive cannot be opened or read.
        """
        number, entry = self.index[row]
        if entry.kind in REFUSED:
            raise self._refusal(number, entry)
        archive_format, size, modified = self._known[number]
        path, file = self.paths[number], self._files[number]
        if not file.checked:
            self._check(number, file, entry)
        try:
            data = archive_format.read(file.number, entry, path, self.verify_crc)
        except ArchiveError as error:
            info = os.fstat(file.number)
            if info.st_size == size and info.st_mtime_ns == modified:
                raise
            raise _changed(path, size, info.st_size, entry.name) from error
        info = os.fstat(file.number)  # afterwards: it may change while it is read
        if info.st_size != size or info.st_mtime_ns != modified:
            raise _changed(path, size, info.st_size, entry.name)
        return data

    def _check(self, number: int, file: OpenFile, entry: Entry) -> None:
        """Raises :class:`ArchiveChangedError` if a file that was just opened is not the one of the index.

        Size and time are looked at in every read. A file of another inode may have both, too: a copy that was mended,
        say. (Some file systems give a file another inode every time, so its bytes decide.)
        """
        known, info = self.index.archives[number], os.fstat(file.number)
        if info.st_ino != known.inode and dict(Fingerprint.of_file(known.path).facts)['blocks'] != known.blocks:
            raise _changed(self.paths[number], known.size, info.st_size, entry.name)
        file.checked = True

    def _refusal(self, number: int, entry: Entry) -> ArchiveError:
        name = entry.name.encode('utf-8', 'surrogateescape')
        others = [os.path.basename(self.paths[i]) for i in self.index.archives_of(name) if i != number]
        if others:
            return AmbiguousEntryError(self.paths[number], f'{REFUSED[entry.kind]} ({", ".join(others)})', entry.name)
        return ArchiveError(self.paths[number], REFUSED[entry.kind], entry.name)


def _changed(path: str, before: int, now: int, entry: str) -> ArchiveChangedError:
    return ArchiveChangedError(
        path,
        f'the archive has been changed or replaced since it was opened: it had {before} bytes, now it has {now}, or '
        'others. Start again when nobody writes it',
        entry,
    )


def find_archives(archive: ArchiveArg) -> List[str]:
    """The paths that ``archive`` means: a path, a pattern as of the module ``glob``, or a sequence of those.

    Returns:
        Paths, each once; those of a pattern by name.

    Raises:
        FileNotFoundError: one of them is not there, or nothing matches.
        TypeError: ``archive`` is no path.
    """
    patterns = [archive] if isinstance(archive, (str, os.PathLike)) else list(archive)
    found: List[str] = []
    for pattern in map(os.fspath, patterns):
        if os.path.exists(pattern):  # its name may hold brackets
            found.append(pattern)
            continue
        matches = _without_lists(path for path in glob.glob(pattern, recursive=True) if not os.path.isdir(path))
        if not matches:
            what = 'nothing matches it' if glob.has_magic(pattern) else 'there is no such file'
            raise FileNotFoundError(
                f"The archive {pattern!r} of the file backend 'record' cannot be found: {what} (from the folder "
                f'{os.getcwd()}).{_BRACKETS if "[" in pattern else ""}'
            )
        found += matches
    if not found:
        raise FileNotFoundError("The file backend 'record' was given an empty list of archives.")
    return list({os.path.realpath(path): path for path in found}.values())


def _without_lists(paths: Iterable[str]) -> List[str]:
    """``paths`` by name, without the ``.idx`` and ``.lst`` of a ``.rec`` among them: they are parts of that archive."""
    known = set(paths)
    lists = (f'{os.path.splitext(path)[0]}{suffix}' for path in known for suffix in _LISTS if path.endswith('.rec'))
    return sorted(known.difference(lists))
