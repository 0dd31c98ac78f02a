"""The members of a tar file, from its headers only.

tarfile reads a header; going from one to the next is done here. ``tarfile.TarFile`` ends without a word at a damaged
header in the middle, keeps an object per member, and reads as much of a long name as its header claims there is.

Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Basic Tar Format" and
"Storing Sparse Files".
"""

from __future__ import annotations

import os
import tarfile
from enum import IntEnum
from typing import Dict, Iterator, NamedTuple, Optional

from mmshared.fileio.entry import entry_name
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.base import ProgressCall

BLOCK = tarfile.BLOCKSIZE
ZEROS = bytes(BLOCK)
_ENCODING = ('utf-8', 'surrogateescape')
_MAX_EXTENDED = 1 << 24  # bytes of a long name, or of a pax header: they are read into memory
_AT_ONCE = 4096  # a pax header, its records and the header that they are about mostly fit
_PROGRESS_EVERY = 256  # headers
_GNU_MAGIC = b'ustar  \0'
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_WITH_DATA = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE)


class What(IntEnum):
    """What a member is; others than these are not of interest."""

    FILE = 0
    SPARSE = 1
    HARD_LINK = 2
    SYMBOLIC_LINK = 3


class Member(NamedTuple):
    """A file or link of a tar file.

    Attributes:
        name: As an :class:`~mmshared.fileio.entry.Entry` has it, not empty.
        what: A :class:`What`.
        offset: Where its data begin, in bytes.
        size: How many bytes of data the archive has of it.
        target: Of a link: as it is written there.
    """

    name: str
    what: What
    offset: int
    size: int
    target: str


def starts_tar(block: bytes) -> bool:
    """Whether ``block``, the first 512 bytes of a file, is the header of a member: its checksum is right."""
    try:
        tarfile.TarInfo.frombuf(block, *_ENCODING)
    except tarfile.HeaderError:
        return False
    return True


class TarWalk:
    """A way through a tar file, from header to header; data are never read.

    Args:
        path: of the archive, for errors.
        descriptor: of the archive, open for reading.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        self._size = os.fstat(descriptor).st_size
        self._at = self._after = 0  # where the header of now begins, and what follows it
        self._last = ''  # the last member that was whole
        self._window, self._window_at = b'', 0
        self._block = b''
        self._global: Dict[str, str] = {}

    def members(self, progress: ProgressCall) -> Iterator[Member]:
        """The files and links, in the archive's order.

        Raises:
            ArchiveError: a header is damaged, or the archive is cut off.
        """
        said: Dict[str, str] = {}  # by extended headers, about the member that follows; the first one counts
        headers = 0
        while (info := self._next()) is not None:
            headers += 1
            if headers % _PROGRESS_EVERY == 0:
                progress(self._at, self._size)
            if info.type in _PAX_TYPES:
                said = {**self._records(info), **said}
            elif info.type == tarfile.XGLTYPE:
                self._global.update(self._records(info))
            elif info.type == tarfile.GNUTYPE_LONGNAME:
                said.setdefault('path', _text(self._extended(info)))
            elif info.type == tarfile.GNUTYPE_LONGLINK:
                said.setdefault('linkpath', _text(self._extended(info)))
            else:
                member = self._member(info, {**self._global, **said})
                said = {}
                if member is not None:
                    yield member
        if said:
            raise self._damaged('an extended header is followed by nothing that it could be about')
        progress(self._size, self._size)

    def _next(self) -> Optional[tarfile.TarInfo]:
        """The next header, None at the end of the archive."""
        self._at = self._after
        self._block = block = self._bytes(self._at, BLOCK)
        if self._at == self._size:
            return None  # without the two blocks of zeros, which not everybody writes
        if len(block) < BLOCK:
            raise self._cut_off()
        if block == ZEROS:
            # One alone, with more behind it, is no end but a hole.
            if self._bytes(self._at + BLOCK, BLOCK).strip(b'\0'):
                raise self._damaged('a header is overwritten with zeros')
            if self._size % BLOCK:  # without that, nothing would show that the last one's data have moved
                raise self._damaged(f'{self._size} bytes are no whole blocks of {BLOCK}: some are missing, or too many')
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, *_ENCODING)
        except tarfile.HeaderError as error:
            raise self._damaged(f'there should be a header ({error})') from None
        if info.size < 0:
            raise self._damaged(f'a header says that its data are {info.size} bytes')
        self._after = self._at + BLOCK
        return info

    def _member(self, info: tarfile.TarInfo, said: Dict[str, str]) -> Optional[Member]:
        """The member of a header, if it is of interest. Goes on to behind its data."""
        kind = self._block[156:157]  # tarfile takes a cut name's last slash for a directory's
        sparse = kind == tarfile.GNUTYPE_SPARSE or any(key.startswith('GNU.sparse.') for key in said)
        path = said.get('GNU.sparse.name') or said.get('path') or self._header_name(info)
        if kind == tarfile.GNUTYPE_SPARSE:
            self._skip_sparse_map()
        offset, size = self._after, 0
        # Directories and links have no data, whatever their size says. What nobody knows has, as POSIX wants it.
        if kind in _WITH_DATA or kind not in tarfile.SUPPORTED_TYPES:
            size = self._said_size(said['size']) if said.get('size') else info.size
            if offset + size > self._size:
                raise self._cut_off(path)
            self._after += -(-size // BLOCK) * BLOCK
        self._last = path
        what = _what(kind, sparse, path)
        name = entry_name(path)
        if what is None or not name:
            return None
        return Member(name, what, offset, size, said.get('linkpath') or info.linkname)

    def _header_name(self, info: tarfile.TarInfo) -> str:
        """The name in the header itself."""
        if self._block[257:265] == _GNU_MAGIC:  # it has times where ustar has the name's first part
            return _text(self._block[:100])
        return info.name

    def _skip_sparse_map(self) -> None:
        """Go on to behind the further headers of GNU's old sparse format."""
        more = self._block[482]
        while more:
            block = self._bytes(self._after, BLOCK)
            if len(block) < BLOCK:
                raise self._cut_off()
            more = block[504]
            self._after += BLOCK

    def _said_size(self, text: str) -> int:
        """A size out of a pax header."""
        if len(text) > 20 or not (text.isascii() and text.isdigit()):
            raise self._damaged(f'an extended header says that its data are {text[:20]!r} bytes')
        return int(text)

    def _extended(self, info: tarfile.TarInfo) -> bytes:
        """The data of an extended header. Goes on to behind them."""
        if info.size > _MAX_EXTENDED:
            raise self._damaged(f'an extended header claims to be {info.size} bytes long')
        data = self._bytes(self._after, info.size)
        if len(data) < info.size:
            raise self._cut_off()
        self._after += -(-info.size // BLOCK) * BLOCK
        return data

    def _records(self, info: tarfile.TarInfo) -> Dict[str, str]:
        """What a pax header says: lines of ``LENGTH KEY=VALUE``, where the length is that of the whole line."""
        data = self._extended(info)
        found: Dict[str, str] = {}
        at = 0
        while at < len(data) and data[at]:
            space = data.find(b' ', at, at + 20)
            digits = data[at : max(space, at)]
            end = at + int(digits) if digits.isdigit() else 0
            equals = data.find(b'=', space, end)
            if equals < 0 or end > len(data) or data[end - 1 : end] != b'\n':
                raise self._damaged('a pax header is not of its format')
            found[_decoded(data[space + 1 : equals])] = _decoded(data[equals + 1 : end - 1])
            at = end
        return found

    def _bytes(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset`` on, fewer at the end of the file.

        The system's own reading ahead is left as it is: it sees whether the headers lie far from each other.
        """
        begin = offset - self._window_at
        if begin < 0 or begin + count > len(self._window):
            self._window, self._window_at = os.pread(self._descriptor, max(count, _AT_ONCE), offset), offset
            begin = 0
        return self._window[begin : begin + count]

    def _damaged(self, what: str) -> ArchiveError:
        where = f'behind {self._last!r}' if self._last else 'before any entry'
        return ArchiveError(
            self._path, f'the tar file is damaged at byte {self._at}, {where}: {what}. Fetch or make it again'
        )

    def _cut_off(self, name: Optional[str] = None) -> ArchiveError:
        where = f'the last entry that is whole is {self._last!r}' if self._last else 'no entry is whole'
        return ArchiveError(
            self._path,
            f'the tar file is cut off: of its {self._size} bytes, those from {self._at} on are no whole entry; '
            f'{where}. Fetch or make it again',
            name,
        )


def _what(kind: bytes, sparse: bool, path: str) -> Optional[What]:
    """What a member of type ``kind`` is, None if it is neither file nor link."""
    if kind == tarfile.LNKTYPE:
        return What.HARD_LINK
    if kind == tarfile.SYMTYPE:
        return What.SYMBOLIC_LINK
    if kind not in _WITH_DATA or path.endswith('/'):  # the oldest tars have directories as files with such a name
        return None
    return What.SPARSE if sparse else What.FILE


def _text(data: bytes) -> str:
    """A string that ends at its first zero byte, if it has one."""
    return _decoded(data.partition(b'\0')[0])


def _decoded(data: bytes) -> str:
    return data.decode(*_ENCODING)
