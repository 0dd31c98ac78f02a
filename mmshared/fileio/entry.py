"""What an archive says about one of its files."""

from __future__ import annotations

from enum import IntEnum
from typing import Dict, NamedTuple


class Kind(IntEnum):
    """How the bytes of an entry lie in the archive; those from :attr:`SPARSE` on cannot be read."""

    STORED = 0  # as they are
    DEFLATED = 1  # zip
    RECORD = 2  # RecordIO: behind headers, perhaps in several parts
    SPARSE = 10
    OUTSIDE_LINK = 11
    ENCRYPTED = 12
    OTHER_COMPRESSION = 13
    REPEATED = 14


#: Why entries of a kind cannot be read, and what to do.
REFUSED: Dict[int, str] = {
    Kind.SPARSE: 'is a sparse file, which is stored in pieces. Make the archive again without --sparse (-S)',
    Kind.OUTSIDE_LINK: 'is a link to something that is not a file of this archive. Make the archive again with the '
    'files themselves (tar --dereference; mmshared pack-images does so)',
    Kind.ENCRYPTED: 'is encrypted. Make the archive again without a password',
    Kind.OTHER_COMPRESSION: 'is compressed by a method other than deflate. Make the archive again without compression '
    '(zip -0), which images gain nothing from',
    Kind.REPEATED: 'is in several archives of the set, and nothing says which one counts. Leave one of them out, or '
    'rename its files',
}


class Entry(NamedTuple):
    """One file of an archive.

    Attributes:
        name: Path in the archive, with ``/`` between folders: neither empty nor absolute, without ``.``, ``..`` or
            empty parts. Bytes that are not UTF-8 are surrogates, as ``os.fsdecode`` makes them.
        offset: Where in the archive it begins, in bytes: a tar file's data, the local header of a zip file, the header
            of a record.
        size: Bytes of the file. Of a :attr:`Kind.RECORD` unknown (0).
        stored: Bytes that it takes in the archive; of a record at most, headers included.
        kind: A :class:`Kind`.
        crc: CRC-32 of the file, where the format has it (zip), else 0.
    """

    name: str
    offset: int
    size: int
    stored: int
    kind: int = Kind.STORED
    crc: int = 0


def entry_name(path: str) -> str:
    """``path`` as an archive has it, made the name of an :class:`Entry`; '' if it cannot be one.

    ``./a//b`` and ``/a/b`` become ``a/b``. A path with ``..`` in it points to a place outside, or to a place that has
    another name: nobody can ask for it.
    """
    parts = [part for part in path.split('/') if part not in ('', '.')]
    return '' if '..' in parts else '/'.join(parts)
