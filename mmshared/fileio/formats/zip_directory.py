"""The central directory at the end of a zip file: where it is, and what it says.

zipfile keeps an object per entry, which is a few hundred bytes; here only one block of the directory is in memory.

Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.12 to 4.3.16, 4.4 and 4.5.3.
"""

from __future__ import annotations

import os
import stat
from struct import Struct
from typing import Iterator, NamedTuple, Optional, Tuple

from mmshared.fileio.entry import Entry, Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.base import ProgressCall
from mmshared.fileio.formats.zip_names import extra_fields, path_of

LOCAL_SIGNATURE = b'PK\3\4'
ENCRYPTED = 1  # flag bit 0
METHODS = {0: Kind.STORED, 8: Kind.DEFLATED}
_END = Struct('<4s4H2LH')
_LOCATOR = Struct('<4sLQL')
_END64 = Struct('<4sQ2H2L4Q')
_HEADER = Struct('<4s6H3L5H2L')
_HEADER_SIGNATURE = b'PK\1\2'
_LONGEST = _HEADER.size + 3 * 0xFFFF
_AT_ONCE = 1 << 20
_MOST_DEFLATED = 1032  # bytes out of one
_MOST = (1 << 63) - 1  # that an index can hold; only sizes of what cannot be read may be above
_ZIP64 = 1  # tag of an extra field
_UNIX = 3
_WITH_BACKSLASHES = (0, 10, 11, 14)  # systems that an archive can be made on: FAT, NTFS by either number, VFAT


class Directory(NamedTuple):
    """Where a zip file's central directory is.

    Attributes:
        start: Its first byte in the file.
        size: Bytes.
        count: How many entries it says it has; the last 16 bits of that if not ``wide``.
        wide: Whether it is of a zip64.
        shift: Bytes in front of the archive, which its offsets know nothing of.
    """

    start: int
    size: int
    count: int
    wide: bool
    shift: int


def find_directory(descriptor: int, path: str) -> Optional[Directory]:
    """Where the central directory of the file is; None if it is no zip file, or one without its end.

    Raises:
        ArchiveError: it is one part of an archive in several, or two archives behind each other.
    """
    size = os.fstat(descriptor).st_size
    first = max(size - 0xFFFF - _END.size, 0)
    tail = os.pread(descriptor, size - first, first)
    at = tail.rfind(b'PK\5\6')
    while at >= 0:
        # What looks like the end may be in the comment, or belong to a zip within this one: it must reach to the end.
        if len(tail) - at >= _END.size:
            *_, comment = _END.unpack_from(tail, at)
            behind = tail[at + _END.size + comment :]
            if at + _END.size + comment <= len(tail) and not behind.strip(b'\0'):
                found = _directory_before(first + at, descriptor, path)
                if found is not None:
                    return found
        at = tail.rfind(b'PK\5\6', 0, at + 3)
    return None


def _directory_before(end: int, descriptor: int, path: str) -> Optional[Directory]:
    """The central directory in front of the end record at byte ``end``, None if there is none."""
    fields: Tuple[int, ...] = _END.unpack(os.pread(descriptor, _END.size, end))[1:7]
    wide = _end64(end, descriptor)
    if wide is not None:
        end, fields = wide
    disk, directory_disk, on_disk, count, size, offset = fields
    start, shift = end - size, end - size - offset
    if disk or directory_disk or on_disk != count:
        if disk and disk >= directory_disk and on_disk <= count:
            raise ArchiveError(
                path, 'it is the last of several parts of a zip file. Unpack them, and make one file of it'
            )
        return None
    if shift < 0 or (size and os.pread(descriptor, 4, start) != _HEADER_SIGNATURE):
        return None
    if shift and os.pread(descriptor, 4, 0) == LOCAL_SIGNATURE:
        raise ArchiveError(
            path,
            f'the zip file is damaged: it begins as one, but its end belongs to one that begins at byte {shift}. '
            'Fetch or make it again',
        )
    return Directory(start, size, count, wide is not None, shift)


def _end64(end: int, descriptor: int) -> Optional[Tuple[int, Tuple[int, ...]]]:
    """Place and fields of the zip64 end record, if the end record at ``end`` has one before it."""
    if end < _LOCATOR.size + _END64.size:
        return None
    signature, _, offset, _ = _LOCATOR.unpack(os.pread(descriptor, _LOCATOR.size, end - _LOCATOR.size))
    if signature != b'PK\6\7':
        return None
    # Where it is if nothing is between; and where it says it is, which is true if nothing is before the archive.
    for place in (end - _LOCATOR.size - _END64.size, offset):
        record = os.pread(descriptor, _END64.size, place) if place < end else b''
        if len(record) == _END64.size and record.startswith(b'PK\6\6'):
            return place, _END64.unpack(record)[4:]
    return None


def directory_entries(descriptor: int, path: str, directory: Directory, progress: ProgressCall) -> Iterator[Entry]:
    """The entries of a central directory, in its order, without directories and names that nobody can ask for.

    Raises:
        ArchiveError: it is damaged, or says of an entry that it is where it cannot be.
    """
    buffer, at, done, count = b'', 0, 0, 0
    while done < directory.size:
        if len(buffer) - at < _LONGEST and done + len(buffer) - at < directory.size:
            left = directory.size - done - (len(buffer) - at)
            buffer = buffer[at:] + os.pread(descriptor, min(left, _AT_ONCE), directory.start + directory.size - left)
            at = 0
            progress(done, directory.size)
        fields = _HEADER.unpack_from(buffer, at) if len(buffer) - at >= _HEADER.size else (b'',)
        if fields[0] != _HEADER_SIGNATURE:
            raise _damaged(path, f'at byte {directory.start + done} should be its entry {count + 1}')
        length = _HEADER.size + sum(fields[10:13])
        if at + length > len(buffer):
            raise _damaged(path, f'its entry {count + 1} goes on after its end')
        entry = _entry(fields, buffer[at + _HEADER.size : at + length], path, directory)
        if entry is not None:
            yield entry
        at, done, count = at + length, done + length, count + 1
    if count != directory.count and (directory.wide or count & 0xFFFF != directory.count):
        raise _damaged(path, f'it has {count} entries, and should have {directory.count}')
    progress(done, directory.size)


def _entry(fields: Tuple, rest: bytes, path: str, directory: Directory) -> Optional[Entry]:
    """The entry of a header, whose name, extra fields and comment are ``rest``."""
    _, made, _, flags, method, _, _, crc, stored, size, name_length, extra_length, _, disk, _, mode, offset = fields
    raw, extra = rest[:name_length], rest[name_length : name_length + extra_length]
    system = made >> 8
    name = path_of(raw, flags, extra, system in _WITH_BACKSLASHES)
    if not name:
        return None
    if 0xFFFFFFFF in (size, stored, offset) or disk == 0xFFFF:
        size, stored, offset, disk = _wide((size, stored, offset, disk), extra, path, name)
    if disk:
        raise ArchiveError(path, 'it is in another part of an archive in several parts', name)
    offset += directory.shift
    if offset + len(LOCAL_SIGNATURE) + 26 + name_length + stored > directory.start:
        raise ArchiveError(
            path,
            f'the zip file is cut off or damaged: the entry is said to have {stored} bytes from byte {offset} on, and '
            f'the central directory begins at byte {directory.start}. Fetch or make it again',
            name,
        )
    kind = METHODS.get(method, Kind.OTHER_COMPRESSION)
    if flags & ENCRYPTED:
        kind = Kind.ENCRYPTED
    elif system == _UNIX and stat.S_ISLNK(mode >> 16):
        kind = Kind.OUTSIDE_LINK  # its data are a path; what that is within the archive is not looked for
    if kind == Kind.STORED and size != stored:
        raise _damaged(path, f'{name!r} is stored as it is, but of {size} bytes are there {stored}')
    if kind == Kind.DEFLATED and size > stored * _MOST_DEFLATED:
        raise _damaged(path, f'{name!r} cannot have {size} bytes: {stored} are there')
    return Entry(name, offset, min(size, _MOST), stored, kind, crc)


def _wide(narrow: Tuple[int, int, int, int], extra: bytes, path: str, name: str) -> Iterator[int]:
    """Size, stored size, offset and disk, where those that did not fit are in the zip64 extra field."""
    data = extra_fields(extra).get(_ZIP64, b'')
    at = 0
    for value, full, width in zip(narrow, (0xFFFFFFFF,) * 3 + (0xFFFF,), (8, 8, 8, 4)):
        if value == full:
            if at + width > len(data):
                raise _damaged(path, f'{name!r} should have a zip64 field of at least {at + width} bytes')
            value = int.from_bytes(data[at : at + width], 'little')
            at += width
        yield value


def _damaged(path: str, what: str) -> ArchiveError:
    return ArchiveError(path, f"the zip file's central directory is damaged: {what}. Fetch or make the file again")
