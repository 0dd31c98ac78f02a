"""RecordIO files that are cut off, altered, or foreign: an error or the right bytes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.fileio.entry import Entry, Kind, entry_name
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.recordio import RecordIO

from .record_files import MAGIC, Image, small_archive, write_archive
from .record_reading import contents, entries

PIECES = st.binary(max_size=3) | st.text('0123456789\t\n-./\r', max_size=3).map(str.encode)


@pytest.fixture
def archive(tmp_path) -> Path:
    return small_archive(tmp_path / 'a.rec')


def outcome(path: Path, entry: Entry) -> object:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return RecordIO().read(descriptor, entry, os.fspath(path))
    except ArchiveError as error:
        assert error.archive == os.fspath(path) and error.entry == entry.name
        return None
    finally:
        os.close(descriptor)


def test_cut_at_every_byte(archive):
    known, right = entries(archive), contents(archive)
    whole = archive.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(archive, size)
        for entry in known:
            read = outcome(archive, entry)
            assert read in (None, right[entry.name])
            if entry.offset + entry.stored <= size:
                assert read == right[entry.name]
            elif entry.offset + entry.stored - 3 > size:
                assert read is None


def test_every_bit_of_the_headers(archive):
    """What belongs to the format is seen, but for a length that differs by what pads it."""
    known, right = entries(archive), contents(archive)
    whole = archive.read_bytes()
    places = [at for at in range(0, len(whole), 4) if whole[at : at + 4] == MAGIC]
    assert len(places) == 7
    unseen = 0
    for place in places:
        for bit in range(64):
            data = bytearray(whole)
            data[place + bit // 8] ^= 1 << bit % 8
            archive.write_bytes(data)
            for entry in known:
                read = outcome(archive, entry)
                if entry.offset <= place < entry.offset + entry.stored and read is not None:
                    assert 32 <= bit < 34 and 0 < abs(len(read) - len(right[entry.name])) < 4
                    unseen += 1
                elif not entry.offset <= place < entry.offset + entry.stored:
                    assert read == right[entry.name]
    assert unseen <= 2 * 3  # bits, records


@settings(deadline=None, max_examples=150)
@given(
    offset=st.integers(-(2**63), 2**63 - 1) | st.integers(-8, 300),
    stored=st.integers(-(2**63), 2**63 - 1) | st.integers(-8, 300),
)
def test_numbers_of_a_damaged_index(offset, stored):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'a.rec')
        write_archive(path, [Image(1, b'one' * 9), Image(2, MAGIC * 5, [1.0]), Image(3, b'')])
        right = contents(path).values()
        assert outcome(path, Entry('x', offset, 0, stored, Kind.RECORD)) in (None, *right)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_bytes(data):
    """Parts of all kinds and lengths, in any order: an end, and no more bytes than there are."""
    part = st.builds(
        lambda kind, length, body: MAGIC + (kind << 29 | length).to_bytes(4, 'little') + body,
        st.integers(0, 7),
        st.integers(0, 40) | st.integers(0, 2**29 - 1),
        st.binary(max_size=40),
    )
    content = b''.join(data.draw(st.lists(part, min_size=1, max_size=6)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'a.rec')
        path.write_bytes(content)
        read = outcome(path, Entry('x', 0, 0, data.draw(st.just(len(content)) | st.just(2**40)), Kind.RECORD))
        assert read is None or len(read) <= len(content)


def test_a_part_that_says_it_is_huge(tmp_path):
    path = tmp_path / 'a.rec'
    path.write_bytes(MAGIC + (1 << 29 | 8).to_bytes(4, 'little') + bytes(8) + MAGIC + b'\xff\xff\xff\x7f' + bytes(50))
    assert outcome(path, Entry('x', 0, 0, 2**40, Kind.RECORD)) is None
    assert outcome(path, Entry('x', 0, 0, path.stat().st_size, Kind.RECORD)) is None


def test_labels_beyond_the_record(tmp_path):
    path = tmp_path / 'a.rec'
    offsets = write_archive(path, [Image(1, b'image'), Image(2, b'secret' * 20), Image(3, MAGIC * 2)])
    data = bytearray(path.read_bytes())
    for key in offsets:
        data[offsets[key] + 8] = 200  # so many labels
    path.write_bytes(data)
    for entry in entries(path):
        assert outcome(path, entry) is None


def test_records_that_the_index_leaves_out(archive):
    """The place of a record ends where the next one of .idx begins: in between there may be others."""
    right = contents(archive)
    index = archive.with_suffix('.idx')
    lines = index.read_text().splitlines()
    index.write_text('\n'.join([lines[0], lines[2]]))
    assert contents(archive) == {name: right[name] for name in ('train/4.jpg', 'train/2.jpg')}
    index.write_text(lines[1])
    assert contents(archive) == {'train/17.jpg': right['train/17.jpg']}


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_damaged_lists(data):
    """Whatever is in .idx and .lst: an error that names one of them, or entries that lie within the .rec."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'a.rec')
        write_archive(path, [Image(i, bytes([i]) * 20, 0.0, f'd/{i}.jpg') for i in range(12)])
        for suffix in ('.idx', '.lst'):
            file = path.with_suffix(suffix)
            text = bytearray(file.read_bytes())
            for _ in range(data.draw(st.integers(0, 3))):
                begin = data.draw(st.integers(0, len(text)))
                end = begin + data.draw(st.integers(0, 3))
                text[begin:end] = data.draw(PIECES)
            file.write_bytes(text)
        try:
            found = entries(path)
        except ArchiveError as error:
            assert error.archive.startswith(os.fspath(path.with_suffix('')))
            return
        size = path.stat().st_size
        for entry in found:
            assert entry.offset % 4 == 0 and entry.stored > 0 and entry.offset + entry.stored <= size
            assert entry.name == entry_name(entry.name) != ''
            read = outcome(path, entry)
            assert read is None or read == read[:1] * 20
