"""MXNet's RecordIO: images in a ``.rec`` file, where they begin in ``.idx``, what they are called in ``.lst``.

The format, as MXNet and dmlc-core publish it (all numbers little-endian): a record is one or more parts, and each part
is the magic number 0xced7230a (4 bytes), a word (4 bytes) whose upper 3 bits say which part it is and whose lower 29
bits how many bytes of data follow, those data, and zeros up to the next multiple of 4. Where a record's data have the
magic number at a multiple of 4, the record is split there: the magic number is left out, and put back in between the
parts by those who read. So nobody mistakes data for the beginning of a part. The data of an image's record are a header
(``IRHeader``: flag, label, id, id2), ``flag`` more labels of 4 bytes, and the image's file.
"""

from __future__ import annotations

import os
import struct
from typing import Iterator, List

from mmshared.fileio.entry import Entry, Kind
from mmshared.fileio.errors import ArchiveError

from .base import Format, ProgressCall, read_at
from .record_lists import RecordIndex, RecordNames

MAGIC = 0xCED7230A
MARK = struct.pack('<I', MAGIC)
WHOLE, FIRST, MIDDLE, LAST = range(4)  # which part of a record it is
MAX_RECORD = (1 << 29) - 1  # bytes of a record's data
PART = struct.Struct('<4sI')
IMAGE = struct.Struct('<IfQQ')  # flag: how many labels follow; label, if none does; id, id2
INDEX_SUFFIX, NAMES_SUFFIX = '.idx', '.lst'

_BEGINNING = struct.Struct('<4sIIfQQ')  # of a record in one part
LENGTH_BITS = 29
_LABEL_BYTES = 4
_PROBES = 16  # records that are looked at for whether .idx and .lst belong together
_END = 1 << 62  # beyond every file
_ADVICE = 'It is damaged, or .rec and .idx are not of one archive. Fetch both again'


class RecordIO(Format):
    """``.rec`` files with their ``.idx``, and ``.lst`` if there is one.

    With a ``.lst``, entries are named by it, and a key of ``.idx`` that it lacks is an error: it is the list of another
    archive, or not whole. Keys of ``.lst`` without a record are no error: MXNet's im2rec leaves out images that it
    cannot read. Without a ``.lst`` the name is the key, as the text in ``.idx`` ('17').

    Where records are is known from ``.idx`` alone; of ``.rec`` only a few headers are read for the entries.
    """

    name = 'recordio'

    def files(self, path: str) -> List[str]:
        """The ``.rec``, its ``.idx``, and its ``.lst`` if there is one.

        Raises:
            ArchiveError: there is no ``.idx``.
        """
        index, names = sibling(path, INDEX_SUFFIX), sibling(path, NAMES_SUFFIX)
        if not os.path.exists(index):
            raise ArchiveError(
                path,
                f'its index {index} is missing: it belongs beside the .rec, together with the .lst, if there is one. '
                "Without one, only reading all of the .rec tells where records are: MXNet's tools/rec2idx.py makes an "
                'index so (whose keys count from 0: do not put a .lst beside it). mmshared pack-images makes archives '
                'with an index',
            )
        return [path, index, names] if os.path.exists(names) else [path, index]

    def entries(self, path: str, progress: ProgressCall) -> Iterator[Entry]:
        """As :meth:`Format.entries`, in the order of ``.idx``. Takes about 100 bytes of memory per record meanwhile."""
        return self.entries_of(self.files(path), progress)

    def entries_of(self, files: List[str], progress: ProgressCall) -> Iterator[Entry]:
        """The entries of an archive whose ``.rec``, ``.idx`` and perhaps ``.lst`` have any names.

        Raises:
            ArchiveError: they do not fit together, or one is damaged.
            OSError: one cannot be read.
        """
        path = files[0]
        end = os.path.getsize(path)
        total = sum(map(os.path.getsize, files[1:]))
        index = RecordIndex(path, files[1], end, lambda done: progress(done, total))
        names = None
        if files[2:]:
            before = os.path.getsize(files[1])
            names = RecordNames(files[2], lambda done: progress(min(before + done, total), total))
            self._check_names(path, index, names)
        progress(total, total)
        for keys, offsets, ends in index.blocks():
            texts = index.texts(keys) if names is None else names.of(keys, files[1])
            for text, offset, stop in zip(texts, offsets, ends):
                yield Entry(text, offset, 0, stop - offset, Kind.RECORD)

    def read(self, descriptor: int, entry: Entry, path: str, verify_crc: bool = True) -> bytes:
        """As :meth:`Format.read`: what follows the labels. The format has no checksums.

        Damage is seen where a part has no magic number, is not the one that has to follow, or ends elsewhere than where
        the next record begins.
        """
        if not 0 <= entry.offset < _END:
            raise ArchiveError(path, f'the index of it is damaged: no record begins at {entry.offset}', entry.name)
        head = os.pread(descriptor, _BEGINNING.size, entry.offset)
        if len(head) < _BEGINNING.size:
            raise ArchiveError(
                path, f'the record at {entry.offset} ends within its header: the archive is cut off', entry.name
            )
        magic, word, flag, _, _, _ = _BEGINNING.unpack(head)
        length = word & MAX_RECORD
        if not _begins(magic, word) or PART.size + length > entry.stored:
            raise ArchiveError(path, f'there is no record of it at {entry.offset}. {_ADVICE}', entry.name)
        if word >> LENGTH_BITS == FIRST:
            data = _joined(descriptor, entry, path)
            flag = IMAGE.unpack_from(data)[0] if len(data) >= IMAGE.size else 0
            return data[_labels_end(flag, len(data), entry, path) :]
        skipped = _labels_end(flag, length, entry, path)
        if entry.stored - PART.size - length >= len(MARK):
            _check_next(descriptor, entry.offset + PART.size + length, entry, path)
        return read_at(descriptor, length - skipped, entry.offset + PART.size + skipped, path, entry.name)

    @staticmethod
    def _check_names(path: str, index: RecordIndex, names: RecordNames) -> None:
        """See whether the records of some keys say that they are of those keys.

        An index made anew (by rec2idx.py) has other keys than the list: every image would have the name of another.
        Headers without ids of their own (all are 0) tell nothing.
        """
        found = {}
        with open(path, 'rb', buffering=0) as file:
            for key, offset in index.spread(_PROBES):
                head = os.pread(file.fileno(), _BEGINNING.size, offset)
                if len(head) == _BEGINNING.size and head.startswith(MARK):
                    magic, word, _, _, number, _ = _BEGINNING.unpack(head)
                    if word >> LENGTH_BITS == WHOLE:
                        found[key] = number
        wrong = [key for key, number in found.items() if key != number]
        if wrong and len(set(found.values())) == len(found) > 1 and all(map(names.has, found.values())):
            raise ArchiveError(
                path,
                f'{index.path} and {names.path} do not belong together: the record of key {wrong[0]} says that it is '
                f'number {found[wrong[0]]}, so images would get names of others. Was .idx made anew, by rec2idx.py? '
                'Fetch the .idx that was made with the .rec, or take the .lst away to have the keys as names',
            )


def sibling(path: str, suffix: str) -> str:
    """The file beside the ``.rec`` file ``path`` that ends in ``suffix``."""
    return os.path.splitext(path)[0] + suffix


def _labels_end(flag: int, length: int, entry: Entry, path: str) -> int:
    """How many of a record's ``length`` bytes of data come before the image: its header and labels."""
    skipped = IMAGE.size + _LABEL_BYTES * flag
    if skipped > length:
        raise ArchiveError(path, f'its record, of {length} bytes, ends within its labels. {_ADVICE}', entry.name)
    return skipped


def _check_next(descriptor: int, end: int, entry: Entry, path: str) -> None:
    """Checks that a record that ends before its place does, at ``end``, is followed by one that .idx does not have.

    Else its length is wrong, and what would be read is only the beginning of an image.
    """
    padded = end + (entry.offset - end) % len(MARK)
    following = os.pread(descriptor, PART.size, padded)
    if len(following) < PART.size or not _begins(*PART.unpack(following)):
        raise ArchiveError(path, f'its record ends at {end}, and no other begins there. {_ADVICE}', entry.name)


def _begins(magic: bytes, word: int) -> bool:
    """Whether these begin a part that is the first of a record, or all of it."""
    return magic == MARK and word >> LENGTH_BITS in (WHOLE, FIRST)


def _has_mark(data: bytes) -> bool:
    """Whether the magic number is at a multiple of 4, where no part can have it."""
    at = data.find(MARK)
    while at >= 0 and at % len(MARK):
        at = data.find(MARK, at + 1)
    return at >= 0


def _joined(descriptor: int, entry: Entry, path: str) -> bytes:
    """The data of a record of several parts."""
    parts: List[bytes] = []
    kind, position, size, end = FIRST, entry.offset, 0, entry.offset + entry.stored
    while True:
        magic, word = PART.unpack(read_at(descriptor, PART.size, position, path, entry.name))
        length, expected = word & MAX_RECORD, (FIRST,) if not parts else (MIDDLE, LAST)
        kind, position = word >> LENGTH_BITS, position + PART.size
        size += length + len(MARK)
        split = kind != LAST and length % len(MARK)
        if magic != MARK or kind not in expected or split or position + length > end or size > MAX_RECORD + len(MARK):
            raise ArchiveError(path, f'part {len(parts) + 1} of its record is damaged. {_ADVICE}', entry.name)
        parts.append(read_at(descriptor, length, position, path, entry.name))
        position += length
        if _has_mark(parts[-1]):
            raise ArchiveError(path, f'part {len(parts)} of its record has another one in it. {_ADVICE}', entry.name)
        if kind == LAST:
            if end - position >= len(MARK):
                _check_next(descriptor, position, entry, path)
            return MARK.join(parts)
