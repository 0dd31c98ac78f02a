"""RecordIO files as MXNet's own programs write them: written here by independent code."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.fileio.entry import Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats import record_lists
from mmshared.fileio.formats.detection import format_of
from mmshared.fileio.formats.recordio import RecordIO
from mmshared.fileio.packing.record_writer import parts_of

from .record_files import MAGIC, Image, encoded, image_record, small_archive, write_archive
from .record_reading import contents, entries

LABELS = st.one_of(st.floats(width=32, allow_nan=False), st.lists(st.floats(width=32, allow_nan=False), max_size=5))
# Bytes in which the magic number is at every place, whole and in pieces.
PAYLOADS = st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=9), st.just(MAGIC[:2])), max_size=9).map(b''.join)


@pytest.fixture
def archive(tmp_path) -> Path:
    return small_archive(tmp_path / 'a.rec')


# ---- whole archives
@settings(deadline=None, max_examples=150)
@given(
    images=st.lists(st.tuples(PAYLOADS, LABELS), min_size=1, max_size=5), named=st.booleans(), first=st.integers(0, 9)
)
def test_any_payload_and_labels(images, named, first):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'a.rec')
        made = [
            Image(first + i, data, label, f'd/{i}.jpg' if named else None) for i, (data, label) in enumerate(images)
        ]
        write_archive(path, made)
        assert contents(path) == {image.name if named else str(image.key): image.data for image in made}
        assert type(format_of(os.fspath(path))) is RecordIO


@settings(deadline=None, max_examples=200)
@given(data=PAYLOADS)
def test_records_are_split_as_the_format_says(data):
    ours = b''.join(
        MAGIC + (kind << 29 | len(part)).to_bytes(4, 'little') + bytes(part) + bytes(-len(part) % 4)
        for kind, part in parts_of(data)
    )
    assert ours == encoded(data)


def test_what_entries_say(archive):
    first, second, third = entries(archive)
    assert [first.name, second.name, third.name] == ['train/4.jpg', 'train/17.jpg', 'train/2.jpg']
    assert {entry.kind for entry in (first, second, third)} == {Kind.RECORD} and first.size == 0
    assert first.offset == 0 and first.stored == second.offset
    assert third.offset + third.stored == archive.stat().st_size


@pytest.mark.parametrize('key', [0xCED7230A, 2**63])
def test_the_magic_number_as_a_key(tmp_path, key):
    """The header itself is split then."""
    write_archive(tmp_path / 'a.rec', [Image(key, b'x' * 40, [1.0] * 3), Image(1, MAGIC)])
    assert contents(tmp_path / 'a.rec') == {str(key): b'x' * 40, '1': MAGIC}


def test_without_a_list_the_names_are_keys(archive):
    archive.with_suffix('.lst').unlink()
    assert list(contents(archive)) == ['4', '17', '2']
    assert RecordIO().files(os.fspath(archive)) == [os.fspath(archive), os.fspath(archive.with_suffix('.idx'))]


def test_a_label_with_the_magic_number(tmp_path):
    import numpy as np

    label = float(np.frombuffer(MAGIC, '<f4')[0])
    write_archive(tmp_path / 'a.rec', [Image(1, b'data', [label, 1.0, label])])
    assert contents(tmp_path / 'a.rec') == {'1': b'data'}


def test_files(archive):
    files = RecordIO().files(os.fspath(archive))
    assert files == [os.fspath(archive.with_suffix(suffix)) for suffix in ('.rec', '.idx', '.lst')]


def test_entries_read_hardly_anything_of_the_records(tmp_path):
    """On a cold network disk, an index must not cost reading the archive."""
    path = tmp_path / 'a.rec'
    count, size = 2000, 10**6
    with open(path, 'wb') as file:
        file.truncate(count * size)  # a hole: whoever reads it would read 2 GB
    path.with_suffix('.idx').write_text(''.join(f'{i}\t{i * size}\n' for i in range(count)))
    path.with_suffix('.lst').write_text(''.join(f'{i}\t0\t{i}.jpg\n' for i in range(count)))
    before = bytes_read()
    found = entries(path)
    assert bytes_read() - before < 200_000
    assert [(entry.offset, entry.stored) for entry in found] == [(i * size, size) for i in range(count)]


def bytes_read() -> int:
    lines = Path('/proc/self/io').read_text().splitlines()
    return int(next(line for line in lines if line.startswith('rchar')).split()[1])


def test_memory_of_many_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(record_lists, '_BLOCK', 1000)
    path, count = tmp_path / 'a.rec', 20_000
    with open(path, 'wb') as file:
        file.truncate(count * 8)
    path.with_suffix('.idx').write_text(''.join(f'{i}\t{i * 8}\n' for i in reversed(range(count))))
    path.with_suffix('.lst').write_text(''.join(f'{i}\t0\tt/{i:012d}.jpg\n' for i in range(count)))
    told = []
    tracemalloc.start()
    try:
        found = 0
        for number, entry in enumerate(RecordIO().entries(os.fspath(path), lambda *state: told.append(state))):
            assert entry.name == f't/{count - 1 - number:012d}.jpg' and entry.offset == (count - 1 - number) * 8
            found += 1
        assert tracemalloc.get_traced_memory()[1] < 140 * count
    finally:
        tracemalloc.stop()
    total = sum(path.with_suffix(suffix).stat().st_size for suffix in ('.idx', '.lst'))
    assert found == count and told[-1] == (total, total) and told == sorted(told) and len(told) > 30


# ---- odd, but right
def test_line_ends_of_windows_empty_lines_and_blanks(archive):
    expected = contents(archive)
    for suffix in ('.idx', '.lst'):
        file = archive.with_suffix(suffix)
        lines = file.read_text().splitlines()
        file.write_bytes('\r\n'.join(['', *lines, '', '']).encode())
    assert contents(archive) == expected
    archive.with_suffix('.idx').write_text(archive.with_suffix('.idx').read_text().rstrip())  # no end of the last line
    assert contents(archive) == expected


def test_the_last_line_of_a_key_counts(archive):
    lst = archive.with_suffix('.lst')
    lst.write_text(lst.read_text() + '17\t0.0\tnew.jpg\n')
    assert 'new.jpg' in contents(archive) and 'train/17.jpg' not in contents(archive)
    index = archive.with_suffix('.idx')
    lines = index.read_text().splitlines()
    index.write_text('\n'.join([f'4\t{lines[1].split()[1]}', lines[0]]))  # key 4 twice
    lst.unlink()
    assert contents(archive) == {'4': b'first'}


def test_a_list_may_have_more(archive):
    lst = archive.with_suffix('.lst')
    lst.write_text('1\t0.0\tunreadable.jpg\n' + lst.read_text() + '99\t0.0\tz.jpg\n')
    assert len(contents(archive)) == 3


@pytest.mark.parametrize(
    'written, name',
    [
        ('./a//b.jpg', 'a/b.jpg'),
        ('/abs/b.jpg', 'abs/b.jpg'),
        ('a\\b.jpg', 'a\\b.jpg'),
        ('ä 鸟.jpg', 'ä 鸟.jpg'),
        (' b c.jpg ', 'b c.jpg'),
        (b'\xe9.jpg', '\udce9.jpg'),
    ],
    ids=['dots', 'absolute', 'backslash', 'unicode', 'blanks', 'not utf-8'],
)
def test_names(tmp_path, written, name):
    write_archive(tmp_path / 'a.rec', [Image(1, b'data')])
    raw = written if isinstance(written, bytes) else written.encode()
    (tmp_path / 'a.lst').write_bytes(b'1\t0.0\t2.5\t' + raw + b'\n')
    assert contents(tmp_path / 'a.rec') == {name: b'data'}


def test_keys_that_are_names(tmp_path):
    """MXIndexedRecordIO takes them with key_type=str."""
    path = tmp_path / 'a.rec'
    write_archive(path, [Image(1, b'data')])
    path.with_suffix('.idx').write_text('d/one.jpg\t0\n')
    assert contents(path) == {'d/one.jpg': b'data'}


def test_an_empty_archive(tmp_path):
    write_archive(tmp_path / 'a.rec', [])
    assert entries(tmp_path / 'a.rec') == []
    (tmp_path / 'a.lst').write_text('1\t0.0\ta.jpg\n')
    assert entries(tmp_path / 'a.rec') == []


# ---- wrong
def test_without_an_index(archive):
    archive.with_suffix('.idx').unlink()
    for call in (RecordIO().files, lambda path: entries(Path(path))):
        with pytest.raises(ArchiveError, match=r'a\.rec: its index .*a\.idx is missing.*rec2idx\.py.*pack-images'):
            call(os.fspath(archive))


INDEX = {
    'no tab': ('4 0', 'line 1.*not a key'),
    'no offset': ('4\t', 'line 1.*not a key'),
    'no key': ('\t0', 'line 1.*not a key'),
    'text': ('4\tx', 'line 1.*not a key'),
    'a fraction': ('4\t0.0', 'line 1.*not a key'),
    'negative': ('4\t0\n17\t-4', 'line 2.*not a key'),
    'digits without end': ('4\t' + '9' * 10_000, 'line 1.*not (a key|within)'),
    'three fields': ('4\t0\t0', 'line 1.*not a key'),
    'beyond': ('4\t0\n\n17\t4000', 'line 3.*not within .*a.rec'),
    'not aligned': ('4\t0\n17\t6', 'line 2.*multiple of 4'),
    'one for two': ('4\t0\n17\t44\n2\t0', 'keys 4 and 2 have one offset, 0'),
    'binary': ('\0\1\2', 'line 1.*not a key'),
    'long': ('4' * 70_000, 'line 1.*too long'),
    'nothing': ('', 'lists no record'),
    'a key that the list lacks': ('4\t0\n5\t44', r'a\.idx: .*a\.lst has no line of key 5'),
    'a key that is text': ('4\t0\nx\t44', r"a\.idx: the key 'x' is not a whole number"),
    'a large key': (f'{10**30}\t0', r"a\.idx: the key '10+' is not a whole number"),
}


@pytest.mark.parametrize('name', INDEX)
def test_a_bad_index(archive, name):
    text, message = INDEX[name]
    archive.with_suffix('.idx').write_text(text)
    with pytest.raises(ArchiveError, match=message) as caught:
        entries(archive)
    assert len(str(caught.value)) < 700


LIST = {
    'no key': ('x\t0.0\ta.jpg', 'line 1.*not a key'),
    'no path': ('4\t0.0\t', 'line 1.*not a key'),
    'only a key': ('4', 'line 1.*not a key'),
    'a fraction': ('4.0\t0\ta.jpg', 'line 1.*not a key'),
    'outside': ('4\t0\t../a.jpg\n17\t0\tb.jpg\n2\t0\tc.jpg', 'path outside'),
    'only dots': ('4\t0\t.\n17\t0\tb.jpg\n2\t0\tc.jpg', 'outside the archive, or none'),
    'empty': ('', 'no line of key 4'),
    'cut': ('4\t0\ta.jpg\n17\t0\tb.jpg', 'no line of key 2'),
}


@pytest.mark.parametrize('name', LIST)
def test_a_bad_list(archive, name):
    text, message = LIST[name]
    archive.with_suffix('.lst').write_text(text)
    with pytest.raises(ArchiveError, match=message):
        entries(archive)


def test_the_key_of_a_name_outside_without_a_list(archive):
    archive.with_suffix('.lst').unlink()
    archive.with_suffix('.idx').write_text('../../etc/passwd\t0\n')
    with pytest.raises(ArchiveError, match='cannot be the name'):
        entries(archive)


def test_an_index_made_anew_does_not_mix_up_names(tmp_path):
    """MXNet's rec2idx.py counts records from 0, whatever their keys in the list are."""
    path = tmp_path / 'a.rec'
    order = [3, 0, 2, 1]
    offsets = write_archive(path, [Image(key, b'%d' % key, 0.0, f'{key}.jpg') for key in order])
    assert contents(path) == {f'{key}.jpg': b'%d' % key for key in order}
    path.with_suffix('.idx').write_text(''.join(f'{i}\t{offsets[key]}\n' for i, key in enumerate(order)))
    with pytest.raises(ArchiveError, match='do not belong together: the record of key 0 says that it is number 3'):
        entries(path)


def test_headers_without_ids(tmp_path):
    """mx.recordio.IRHeader(0, label, 0, 0) for all: nothing to tell by."""
    path = tmp_path / 'a.rec'
    one = encoded(image_record(Image(0, b'data')))
    path.write_bytes(one * 3)
    path.with_suffix('.idx').write_text(''.join(f'{i}\t{i * len(one)}\n' for i in range(3)))
    path.with_suffix('.lst').write_text(''.join(f'{i}\t0\t{i}.jpg\n' for i in range(3)))
    assert len(contents(path)) == 3


def test_of_an_older_record(archive):
    """A .rec that was made again, with the index of before."""
    write_archive(archive.with_name('b.rec'), [Image(4, b'a longer first', 1.5), Image(17, b''), Image(2, b'x' * 90)])
    os.replace(archive.with_name('b.rec'), archive)
    descriptor = os.open(archive, os.O_RDONLY)
    try:
        assert len(entries(archive)) == 3
        for entry in entries(archive)[1:]:
            with pytest.raises(ArchiveError, match=f'a.rec: {entry.name}: there is no record of it'):
                RecordIO().read(descriptor, entry, os.fspath(archive))
    finally:
        os.close(descriptor)
