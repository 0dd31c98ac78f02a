"""A folder into one archive or several, which appear when all of them are complete and have been read back."""

from __future__ import annotations

import contextlib
import os
from array import array
from pathlib import Path
from typing import BinaryIO, Callable, List, NamedTuple, Optional, Sequence, Type, Union

from zlib_ng import zlib_ng

from mmshared.annotations.cache.errors import SPACE_ERRNOS, CacheSpaceError, free_bytes, size_text
from mmshared.annotations.cache.locks import NoLock
from mmshared.annotations.cache.progress import Progress
from mmshared.annotations.cache.publish import Draft
from mmshared.fileio.errors import ArchiveError

from .folder import Contents, File, find_files
from .source import Source
from .targets import Shard, check_free, find_stale, plan, writer_of
from .writers import Writer

PathLike = Union[str, os.PathLike]
_SPARE_DESCRIPTORS = 100


class Packed(NamedTuple):
    """What was written.

    Attributes:
        archives: paths of the archives: one, or the shards.
        contents: of the folder.
        size: bytes of all files written.
        removed: shards of an earlier run that are gone.
    """

    archives: List[Path]
    contents: Contents
    size: int
    removed: List[Path]


def pack_images(
    folder: PathLike, output: PathLike, shard_size: Optional[int] = None, force: bool = False, verify: bool = True
) -> Packed:
    """Writes all files below ``folder`` to an archive at ``output``, which appears there complete or not at all.

    Links are followed, hidden files are left out. Names of entries begin with the folder's own name. The same files
    give the same bytes.

    Args:
        folder: of images, or of anything else.
        output: the archive; its name's end says which format: ``.tar``, ``.zip``, or ``.rec``, which comes with
            ``.idx`` and ``.lst``. Its folder must be there, not below ``folder``, and takes the whole size.
        shard_size: bytes of one archive at most: there are several then, ``output-00000.tar``, ... A larger file is in
            one of its own.
        force: replace archives that are there, and remove further shards of an earlier run. They go when the new ones
            are complete; several files cannot be replaced in one step, so for a moment there are none.
        verify: read every entry back from the disk and compare it, before the archive appears. Takes the memory of the
            largest file.

    Raises:
        FileExistsError: something is there already.
        FileChangedError: a file was changed or removed meanwhile.
        ArchiveError: what was written reads back as something else.
        CacheSpaceError: there is not enough space, or too little quota.
        ValueError: there are no files, or some that the format cannot hold; too many shards.
        OSError: a file cannot be read, or the archive cannot be written.
    """
    folder, output = os.fspath(folder), Path(os.path.abspath(output))
    writer = writer_of(output)
    contents = find_files(folder)
    _check_outside(folder, output)
    shards = plan(output, contents.files, writer, shard_size)
    _check_place(output, shards, writer, shard_size, force)
    need = sum(writer.cost(file.name, file.size) for file in contents.files) + writer.end * len(shards)
    _check_space(folder, output.parent, need)
    _allow_open_files(len(shards) * len(writer.suffixes))
    total = sum(file.size for file in contents.files)
    label = os.path.basename(output)
    try:
        with contextlib.ExitStack() as stack:
            count = stack.enter_context(contextlib.closing(_Counter(label, 2 * total if verify else total)))
            drafts = [_written(shard, writer, count, stack, verify) for shard in shards]
            stale = _check_place(output, shards, writer, shard_size, force)  # again: that took its time
            size = _publish(shards, drafts, writer, stale)
    except OSError as error:
        if error.errno in SPACE_ERRNOS:
            raise _space_error(folder, output.parent, need, error.strerror) from error
        raise
    return Packed([shard.target for shard in shards], contents, size, stale)


def _check_place(
    output: Path, shards: Sequence[Shard], writer: Type[Writer], shard_size: Optional[int], force: bool
) -> List[Path]:
    """Shards of an earlier run; raises unless nothing else is where ``shards`` go, or may be replaced."""
    check_free(shards, writer, force)
    return [] if shard_size is None else find_stale(output, shards, writer, force)


class _Counter:
    """Adds up what is done, and shows it."""

    def __init__(self, label: str, total: int) -> None:
        self._show = Progress(label, NoLock(), None)
        self._done, self._total = 0, total

    def __call__(self, size: int) -> None:
        self._done += size
        self._show(self._done, self._total)

    def close(self) -> None:
        self._show.close()


def _written(
    shard: Shard, writer: Type[Writer], count: Callable[[int], None], stack: contextlib.ExitStack, verify: bool
) -> List[Draft]:
    """The files of one archive, complete; gone with ``stack``, unless they are published."""
    drafts = [stack.enter_context(Draft(shard.target.parent)) for _ in writer.suffixes]
    crcs = _write(writer([draft.file for draft in drafts]), shard.files, count)
    for draft in drafts:
        draft.file = draft.file.detach()  # type: ignore[attr-defined]  # its buffer, times thousands of shards
        os.fsync(draft.file.fileno())
    if verify:
        _verify(writer, shard, [draft.file for draft in drafts], crcs, count)
    return drafts


def _write(archive: Writer, files: Sequence[File], count: Callable[[int], None]) -> Sequence[int]:
    """Write all ``files``; returns their CRC-32s."""
    crcs = array('L')
    try:
        for file in files:
            with Source(file, count) as source:
                archive.add(file.name, file.size, source)
                source.finish()
            crcs.append(source.crc)
        archive.finish()
    except BaseException:
        archive.abandon()
        raise
    return crcs


def _verify(
    writer: Type[Writer], shard: Shard, files: Sequence[BinaryIO], crcs: Sequence[int], count: Callable[[int], None]
) -> None:
    """Read all of an archive, as datasets will, and compare it with what was read from the folder.

    Raises:
        ArchiveError: something is different.
    """
    descriptor = files[0].fileno()
    if hasattr(os, 'posix_fadvise'):  # from the disk, not from memory
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    paths = [_path_of(file) for file in files]
    advice = 'The disk, or its file system, may be damaged: try another'
    try:
        reader, entries = writer.read_back(paths)
        number = 0
        for number, entry in enumerate(entries, 1):
            expected = shard.files[number - 1] if number <= len(shard.files) else None
            if expected is None or entry.name != expected.name:
                raise ArchiveError(shard.target, f'reads back with an entry that was not written. {advice}', entry.name)
            data = reader.read(descriptor, entry, paths[0])
            if len(data) != expected.size or zlib_ng.crc32(data) != crcs[number - 1]:
                raise ArchiveError(shard.target, f'reads back with other bytes than were written. {advice}', entry.name)
            count(len(data))
    except ArchiveError as error:
        if error.archive == os.fspath(shard.target):
            raise
        raise ArchiveError(shard.target, f'does not read back: {error.problem}. {advice}', error.entry) from error
    if number != len(shard.files):
        raise ArchiveError(shard.target, f'reads back with {number} of {len(shard.files)} entries. {advice}')


def _path_of(file: BinaryIO) -> str:
    """A path that opens the nameless ``file`` anew."""
    folder = '/proc/self/fd' if os.path.isdir('/proc/self/fd') else '/dev/fd'
    return f'{folder}/{file.fileno()}'


def _publish(
    shards: Sequence[Shard], drafts: Sequence[Sequence[Draft]], writer: Type[Writer], stale: Sequence[Path]
) -> int:
    """Give all drafts their names; returns their size in bytes. If one cannot have it, none has.

    What is replaced goes first: a pattern must not find shards of two runs, nor an index the records of another.
    """
    old = [*stale, *(path for shard in shards for path in shard.paths(writer))]
    pairs = []
    for shard, files in zip(shards, drafts):
        pairs += reversed(list(zip(shard.paths(writer), files)))  # the part that is the archive's name comes last
    if stale or len(old) > 1:
        for path in old:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    try:
        return sum(draft.publish(path) for path, draft in pairs)
    except BaseException:
        for path, draft in pairs:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), os.fstat(draft.file.fileno())):
                    os.unlink(path)
        raise


def _check_outside(folder: str, output: Path) -> None:
    """Raises unless the archive's folder is there, and not below the one that is packed."""
    if not output.parent.is_dir():
        raise FileNotFoundError(f'{output.parent}: is no folder, to put {output.name} there. Make it first')
    inside, place = os.path.realpath(folder), os.path.realpath(output.parent)
    if os.path.commonpath([inside, place]) == inside:
        raise ValueError(f'{output}: is below the folder that is packed, {folder}. Put it somewhere else')


def _check_space(folder: str, place: Path, need: int) -> None:
    free = free_bytes(place)
    if free is not None and free < need:
        raise _space_error(folder, place, need, 'too little is free')


def _space_error(folder: str, place: Path, need: int, reason: str) -> CacheSpaceError:
    free = free_bytes(place)
    have = '' if free is None else f', {size_text(free)} free'
    return CacheSpaceError(
        f'No space in {place} ({reason}{have}) for the archive of {folder}. It needs about {size_text(need)}'
    )


def _allow_open_files(number: int) -> None:
    """Let this process have ``number`` files open, all of which have no name until the last one is complete.

    Raises:
        ValueError: it may not.
    """
    try:
        import resource
    except ImportError:  # no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = number + _SPARE_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < need:
        if hard != resource.RLIM_INFINITY and hard < need:
            raise ValueError(
                f'{number} files would be written at once, and this process may have {hard} open (ulimit -Hn). Choose '
                'a larger --shard-size'
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
