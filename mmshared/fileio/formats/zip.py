"""zip: every file stored or deflated by itself, and a list of them at the end.

Source: PKWARE's APPNOTE.TXT 6.3.10, section 4.3.7 for what is in front of a file's data.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import Iterator, Tuple

from zlib_ng import zlib_ng  # a checksum by it takes a tenth of the time of one by zlib

from mmshared.fileio.entry import Entry, Kind, entry_name
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.base import Format, ProgressCall, read_at
from mmshared.fileio.formats.zip_directory import (
    ENCRYPTED,
    LOCAL_SIGNATURE,
    METHODS,
    directory_entries,
    find_directory,
)
from mmshared.fileio.formats.zip_names import decoded

_LOCAL = Struct('<4s5H3L2H')
_HEADER_AT_ONCE = 512  # with nearly every name
_SIZES_FOLLOW = 8  # flag bit 3: the header was written before the sizes were known
_ZIP64 = 0xFFFFFFFF  # the size is elsewhere
_AGAIN = 'the archive is damaged, or was changed. Fetch or make it again'


class Zip(Format):
    """zip and zip64, with files stored as they are or deflated."""

    name = 'zip'

    def entries(self, path: str, progress: ProgressCall) -> Iterator[Entry]:
        """See :meth:`Format.entries`. Nothing but the central directory is read."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            directory = find_directory(descriptor, path)
            if directory is None:
                raise ArchiveError(
                    path,
                    'the zip file is cut off, damaged or one part of several: its end has no list of entries. '
                    'Fetch or make it again',
                )
            yield from directory_entries(descriptor, path, directory, progress)
        finally:
            os.close(descriptor)

    def read(self, descriptor: int, entry: Entry, path: str, verify_crc: bool = True) -> bytes:
        """See :meth:`Format.read`. Whether it is this entry that lies there is looked at in any case."""
        data = read_at(descriptor, entry.stored, _data_offset(descriptor, entry, path), path, entry.name)
        if entry.kind == Kind.DEFLATED:
            data = _inflated(data, entry, path)
        if len(data) != entry.size:
            raise ArchiveError(path, f'it should have {entry.size} bytes, and has {len(data)}: {_AGAIN}', entry.name)
        if verify_crc and zlib_ng.crc32(data) != entry.crc:
            raise ArchiveError(path, f'its checksum (CRC-32) is wrong: {_AGAIN}', entry.name)
        return data


def _data_offset(descriptor: int, entry: Entry, path: str) -> int:
    """Where the data of ``entry`` begin. Only the header in front of them says that.

    Raises:
        ArchiveError: there is no such header, or that of another entry.
    """
    header = os.pread(descriptor, _HEADER_AT_ONCE, entry.offset)
    problem = 'at byte {} should be its header'
    if len(header) >= _LOCAL.size and header.startswith(LOCAL_SIGNATURE):
        fields = _LOCAL.unpack_from(header)
        name_length, extra_length = fields[-2:]
        length = _LOCAL.size + name_length + extra_length
        problem = 'the header at byte {} has other numbers or flags'
        if _is_of(fields, entry):
            problem = 'at byte {} is the header of a file with another name'
            raw = header[_LOCAL.size : _LOCAL.size + name_length]
            if raw.isascii() and raw.decode('ascii') == entry.name:
                return entry.offset + length
            if length > len(header):
                header = os.pread(descriptor, length, entry.offset)
            if len(header) >= length and _is_named(header[_LOCAL.size : length], name_length, fields[2], entry.name):
                return entry.offset + length
    raise ArchiveError(path, f'{problem.format(entry.offset)}: {_AGAIN}', entry.name)


def _is_of(fields: Tuple, entry: Entry) -> bool:
    """Whether a local header can be that of ``entry``, as far as it has numbers."""
    _, _, flags, method, _, _, crc, stored, size, _, _ = fields
    if METHODS.get(method) != entry.kind or flags & ENCRYPTED:
        return False
    if flags & _SIZES_FOLLOW:
        return True
    return crc == entry.crc and stored in (entry.stored, _ZIP64) and size in (entry.size, _ZIP64)


def _is_named(rest: bytes, length: int, flags: int, name: str) -> bool:
    """Whether what follows a local header names ``name``, in any way that the central directory can be read."""
    text = decoded(rest[:length], flags, rest[length:])
    return name in (entry_name(text), entry_name(text.replace('\\', '/')))


def _inflated(data: bytes, entry: Entry, path: str) -> bytes:
    """``data`` without compression, at most one byte more than they should be."""
    inflate = zlib_ng.decompressobj(-zlib_ng.MAX_WBITS)
    try:
        whole = inflate.decompress(data, entry.size + 1)
    except (zlib_ng.error, ValueError, OverflowError) as error:  # the latter two: a size out of a damaged index
        raise ArchiveError(path, f'its compressed data cannot be read ({error}): {_AGAIN}', entry.name) from None
    if not inflate.eof and len(whole) <= entry.size:
        raise ArchiveError(path, f'its compressed data end too early: {_AGAIN}', entry.name)
    return whole
