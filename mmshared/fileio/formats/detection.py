"""Which format an archive has, told by its content: names lie."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Optional

from mmshared.fileio.errors import ArchiveError, CompressedArchiveError
from mmshared.fileio.formats.base import Format
from mmshared.fileio.formats.tar import Tar
from mmshared.fileio.formats.tar_walk import BLOCK, ZEROS, starts_tar
from mmshared.fileio.formats.zip import Zip
from mmshared.fileio.formats.zip_directory import LOCAL_SIGNATURE, find_directory

#: How compressed files begin: what that is called, and what undoes it.
_COMPRESSED = (
    (b'\x1f\x8b', 'gzip', 'gunzip -c'),
    (b'BZh', 'bzip2', 'bunzip2 -c'),
    (b'\xfd7zXZ\0', 'xz', 'xz -dc'),
    (b'\x28\xb5\x2f\xfd', 'zstd', 'zstd -dc'),
    (b'\x04\x22\x4d\x18', 'lz4', 'lz4 -dc'),
    (b'\x02\x21\x4c\x18', 'lz4', 'lz4 -dc'),
    (b'\x1f\x9d', 'compress', 'gunzip -c'),
    (b'LZIP', 'lzip', 'lzip -dc'),
    (b'\x89LZO\0\r\n\x1a\n', 'lzop', 'lzop -dc'),
)
_OTHERS = ((b'7z\xbc\xaf\x27\x1c', '7z'), (b'Rar!\x1a\x07', 'rar'))
_SUFFIXES = ('.gz', '.bz2', '.xz', '.zst', '.zstd', '.lz4', '.Z', '.lz', '.lzo')
_SHORT_SUFFIXES = ('.tgz', '.taz', '.tbz', '.tbz2', '.txz', '.tzst', '.tlz')
_SUPPORTED = 'Archives can be tar (not compressed), zip or RecordIO (.rec)'
_MAKE = 'make one with: mmshared pack-images FOLDER -o OUT.tar'
_MOST_ZEROS = 1 << 20  # bytes that a tar file without members may have; 10240 is usual


def format_of(path: str) -> Format:
    """The format of the archive ``path``. Reads its first block, and of what is none of the plain cases its end.

    Raises:
        CompressedArchiveError: it is compressed as a whole.
        ArchiveError: it is of no format that can be read, empty, or not a file.
        OSError: it cannot be read.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise ArchiveError(path, f'it is a folder. {_SUPPORTED}; {_MAKE}')
    if not stat.S_ISREG(mode):  # a pipe would be waited for
        raise ArchiveError(path, f'it is not a regular file. {_SUPPORTED}')
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _format_of(descriptor, path)
    finally:
        os.close(descriptor)


def _format_of(descriptor: int, path: str) -> Format:
    head = os.pread(descriptor, BLOCK, 0)
    if not head:
        raise ArchiveError(path, f'it is empty. {_SUPPORTED}; fetch or make it again')
    if starts_tar(head) or (head == ZEROS and _only_zeros(descriptor)):  # first: its first bytes are a name's, any ones
        return Tar()
    if head.startswith((LOCAL_SIGNATURE, b'PK\5\6', b'PK\7\x08', b'PK00')):  # the last two are of one in several parts
        return Zip()
    record = _record_format(head)
    if record is not None:
        return record
    for magic, kind, command in _COMPRESSED:
        if head.startswith(magic):
            raise CompressedArchiveError(
                path,
                f'it is compressed as a whole ({kind}): what is in it cannot be read in any order, only from its '
                f'beginning. Decompress it once: {_remedy(command, path)}',
            )
    for magic, kind in _OTHERS:
        if head.startswith(magic):
            raise ArchiveError(path, f'it is a {kind} archive. {_SUPPORTED}; unpack it, and {_MAKE}')
    if find_directory(descriptor, path) is not None:  # with something before it, as what extracts itself has
        return Zip()
    raise ArchiveError(path, f'it is not an archive that can be read, it begins with {head[:16]!r}. {_SUPPORTED}')


def _record_format(head: bytes) -> Optional[Format]:
    from mmshared.fileio.formats.recordio import MAGIC, RecordIO

    return RecordIO() if head[:4] == MAGIC.to_bytes(4, 'little') else None


def _only_zeros(descriptor: int) -> bool:
    """Whether the file is zeros to its end, and as short as a tar file without members."""
    data = os.pread(descriptor, _MOST_ZEROS + 1, 0)
    return len(data) <= _MOST_ZEROS and len(data) % BLOCK == 0 and not data.strip(b'\0')


def _remedy(command: str, path: str) -> str:
    """A command line that decompresses ``path`` to a file beside it."""
    stem, suffix = os.path.splitext(path)
    if suffix in _SHORT_SUFFIXES:
        target = f'{stem}.tar'
    elif suffix in _SUFFIXES:
        target = stem
    else:
        target = f'{stem}-plain{suffix}'
    return f'{command} {shlex.quote(path)} > {shlex.quote(target)}'
