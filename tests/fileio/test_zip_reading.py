"""Reading entries of a zip file that are not what the index says, or not at all."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest

from mmshared.fileio.entry import Entry, Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.zip import Zip

from .archives import ignore, packed


def entry_of(path: Path) -> Entry:
    (entry,) = Zip().entries(str(path), ignore)
    return entry


@pytest.mark.parametrize('method', [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=['stored', 'deflated'])
def test_altered_data(tmp_path, method) -> None:
    data = b'some image ' * 100
    path = packed(tmp_path / 'a', {'x.jpg': data}, method)
    entry = entry_of(path)
    raw = bytearray(path.read_bytes())
    raw[entry.offset + 40] ^= 4
    path.write_bytes(raw)
    with open(path, 'rb') as file, pytest.raises(ArchiveError, match=f'{path}: x.jpg: .*damaged, or was changed'):
        Zip().read(file.fileno(), entry, str(path))
    with open(path, 'rb') as file:
        if method == zipfile.ZIP_STORED:  # what verify_crc=False means
            assert Zip().read(file.fileno(), entry, str(path), verify_crc=False) != data


@pytest.mark.parametrize('streamed', [False, True], ids=['file', 'pipe'])
@pytest.mark.parametrize('method', [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=['stored', 'deflated'])
def test_an_entry_with_any_wrong_number(tmp_path, method, streamed) -> None:
    """An index that is wrong, or of another archive: an error, and never another file's bytes, CRC or not."""
    files = {name: bytes([number]) * 300 for number, name in enumerate(['a.jpg', 'b.jpg', 'c.jpg'])}
    path = packed(tmp_path / 'a', files, method, streamed)
    first, entry, last = Zip().entries(str(path), ignore)
    wrong = [entry._replace(offset=offset) for offset in range(last.offset + 100) if offset != entry.offset]
    wrong += [entry._replace(offset=offset) for offset in (1 << 40, first.offset, last.offset)]
    wrong += [entry._replace(name=name) for name in ('a.jpg', 'b.jp', 'b.jpgg', '')]
    wrong += [entry._replace(kind=Kind.DEFLATED if entry.kind == Kind.STORED else Kind.STORED)]
    wrong += [entry._replace(size=size) for size in (0, 1, 299, 301, 1 << 40, (1 << 63) - 1)]
    wrong += [entry._replace(stored=stored) for stored in (0, 1, entry.stored - 1)]
    if not streamed:
        wrong += [entry._replace(crc=entry.crc ^ 1), entry._replace(stored=entry.stored + 1)]
    with open(path, 'rb') as file:
        assert Zip().read(file.fileno(), entry, str(path), False) == files['b.jpg']
        for other in wrong:
            with pytest.raises(ArchiveError):
                Zip().read(file.fileno(), other, str(path), False)


def test_data_that_inflate_to_more_than_they_should(tmp_path) -> None:
    bomb = zlib.compress(bytes(50 << 20), 9)[2:-4]
    path = packed(tmp_path / 'a', {'x': bytes(100)}, zipfile.ZIP_DEFLATED, streamed=True)
    entry = entry_of(path)
    header = path.read_bytes()[: entry.offset + 31]
    path.write_bytes(header + bomb)
    tracemalloc.start()
    with open(path, 'rb') as file, pytest.raises(ArchiveError, match='should have 100 bytes, and has 101'):
        Zip().read(file.fileno(), entry._replace(stored=len(bomb)), str(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_stored_data_are_not_copied(tmp_path) -> None:
    path = packed(tmp_path / 'a', {'x': os.urandom(1 << 20)})
    entry = entry_of(path)
    with open(path, 'rb') as file:
        tracemalloc.start()
        data = Zip().read(file.fileno(), entry, str(path))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(data) == 1 << 20 and peak < (1 << 20) + 20_000
