"""Zip against Info-ZIP's zip, Python's zipfile, and the disk that zip packed."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Dict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmshared.fileio.entry import Entry, Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.zip import Zip

from .archives import LONG, SHORT, UNICODE, contents, ignore, packed, run, some_bytes, write_tree

NAMES = SHORT + UNICODE + LONG
FULL = 0xFFFFFFFF  # the value is in the zip64 field
needs_zip = pytest.mark.skipif(shutil.which('zip') is None, reason="Info-ZIP's zip is not installed")


def by_zipfile(path: Path) -> Dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith('/')}


def changed(path: Path, old: bytes, new: bytes, count: int) -> None:
    """Replace bytes of an archive that has them ``count`` times."""
    data = path.read_bytes()
    assert data.count(old) == count and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


@needs_zip
@pytest.mark.parametrize(
    'options', [['-0'], ['-9'], ['-fz'], ['-fd'], ['-0', '-fd'], ['-X', '-D'], ['-UN=UTF8']], ids=''.join
)
def test_zip(tmp_path, options) -> None:
    files = some_bytes(NAMES)
    files['zeros'] = bytes(100_000)
    write_tree(tmp_path / 'in', files)
    run('zip', '-qr', *options, '../out.zip', '.', cwd=tmp_path / 'in')
    assert contents(Zip(), tmp_path / 'out.zip') == files
    assert contents(Zip(), tmp_path / 'out.zip', verify_crc=False) == files


@needs_zip
def test_zip_to_a_pipe(tmp_path) -> None:
    files = some_bytes(NAMES)
    write_tree(tmp_path / 'in', files)
    run('sh', '-c', 'zip -qr - . | cat > ../out.zip', cwd=tmp_path / 'in')
    assert contents(Zip(), tmp_path / 'out.zip') == files


@pytest.mark.parametrize('wide', [False, True], ids=['narrow', 'zip64'])
@pytest.mark.parametrize('streamed', [False, True], ids=['file', 'pipe'])
@pytest.mark.parametrize('method', [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=['stored', 'deflated'])
def test_zipfile(tmp_path, method, streamed, wide) -> None:
    files = some_bytes(NAMES)
    files['zeros'] = bytes(100_000)
    path = packed(tmp_path / 'a', files, method, streamed, force_zip64=wide)
    assert contents(Zip(), path) == files == by_zipfile(path)
    assert contents(Zip(), path, verify_crc=False) == files


@given(
    names=st.lists(
        st.text(st.characters(blacklist_characters='\0', blacklist_categories=['Cs']), min_size=1), max_size=8
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_any_names(tmp_path, names, method) -> None:
    path = packed(tmp_path / 'a', some_bytes(names), method)
    expected = {}
    for name, data in by_zipfile(path).items():
        parts = [part for part in name.split('/') if part not in ('', '.')]
        if parts and '..' not in parts:
            expected['/'.join(parts)] = data
    assert contents(Zip(), path) == expected


def test_comments_and_what_is_in_front(tmp_path) -> None:
    files = some_bytes(SHORT)
    plain = packed(tmp_path / 'a', files).read_bytes()
    for comment in (b'c', b'a comment with PK\5\6 in it' + bytes(30), b'\xff' * 65535):
        for front in (b'', b'#!/bin/sh\nexit\n', bytes(70_000)):
            (tmp_path / 'a').write_bytes(front + plain)
            with zipfile.ZipFile(tmp_path / 'a', 'a') as archive:
                archive.comment = comment
            # zipfile has put the front into the offsets; without that, readers have to find out.
            assert contents(Zip(), tmp_path / 'a') == files
            (tmp_path / 'b').write_bytes(front + plain[:-2] + struct.pack('<H', len(comment)) + comment)
            assert contents(Zip(), tmp_path / 'b') == files


@pytest.fixture(scope='module')
def many(tmp_path_factory) -> bytes:
    """An archive of 66,000 entries, the last ones with their number in them."""
    path = tmp_path_factory.mktemp('many') / 'a'
    with zipfile.ZipFile(path, 'w') as archive:
        for number in range(66_000):
            archive.writestr(zipfile.ZipInfo(f'{number:05d}'), b'%d' % number if number > 65_990 else b'')
    return path.read_bytes()


def test_more_than_65535_entries(tmp_path, many) -> None:
    path = tmp_path / 'a'
    path.write_bytes(b'MZ' + bytes(1000) + many)  # the zip64 record is not where it is said to be, too
    calls = []
    entries = list(Zip().entries(str(path), lambda *call: calls.append(call)))
    assert [entry.name for entry in entries] == [f'{number:05d}' for number in range(66_000)]
    assert calls == sorted(calls) and len(calls) > 3 and calls[-1][0] == calls[-1][1]
    with open(path, 'rb') as file:
        for number in range(65_980, 66_000):
            expected = b'%d' % number if number > 65_990 else b''
            assert Zip().read(file.fileno(), entries[number], str(path)) == expected


def test_memory_does_not_grow_with_entries(tmp_path, many) -> None:
    (tmp_path / 'a').write_bytes(many)
    tracemalloc.start()
    count = sum(1 for _ in itertools.islice(Zip().entries(str(tmp_path / 'a'), ignore), 40_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000 and peak < 4 << 20


def test_count_of_entries_that_wrapped(tmp_path, many) -> None:
    """Old writers put more entries into a zip than its counter counts."""
    wrapped = 66_000 & 0xFFFF
    end = struct.pack('<4s4H2LH', b'PK\5\6', 0, 0, wrapped, wrapped, *struct.unpack('<2LH', many[-10:]))
    (tmp_path / 'a').write_bytes(many[: -22 - 20 - 56] + end)
    assert sum(1 for _ in Zip().entries(str(tmp_path / 'a'), ignore)) == 66_000


def test_more_than_4_gigabytes(tmp_path) -> None:
    """Sizes and offsets in the zip64 field; the archive is sparse on the disk."""
    big = 5 << 30
    extra = struct.pack('<2H2Q', 1, 16, big, big)
    local = struct.pack('<4s5H3L2H', b'PK\3\4', 45, 0, 0, 0, 0, 7, 0xFFFFFFFF, 0xFFFFFFFF, 3, len(extra))
    after = struct.pack('<4s5H3L2H', b'PK\3\4', 20, 0, 0, 0, 0, zlib.crc32(b'abc'), 3, 3, 5, 0) + b'afterabc'
    at = len(local) + 3 + len(extra) + big
    directory = (
        struct.pack('<4s6H3L5H2L', b'PK\1\2', 45, 45, 0, 0, 0, 0, 7, FULL, FULL, 3, 20, 0, 0, 0, 0, 0)
        + b'big' + extra
        + struct.pack('<4s6H3L5H2L', b'PK\1\2', 45, 45, 0, 0, 0, 0, zlib.crc32(b'abc'), 3, 3, 5, 12, 0, 0, 0, 0, FULL)
        + b'after' + struct.pack('<2HQ', 1, 8, at)
    )  # fmt: skip
    start = at + len(after)
    end = struct.pack('<4sQ2H2L4Q', b'PK\6\6', 44, 45, 45, 0, 0, 2, 2, len(directory), start)
    end += struct.pack('<4sLQL', b'PK\6\7', 0, start + len(directory), 1)
    end += struct.pack('<4s4H2LH', b'PK\5\6', 0, 0, 2, 2, len(directory), 0xFFFFFFFF, 0)
    with open(tmp_path / 'a', 'wb') as file:
        file.write(local + b'big' + extra)
        file.seek(at)
        file.write(after + directory + end)
    with zipfile.ZipFile(tmp_path / 'a') as archive:  # the archive is right
        assert archive.read('after') == b'abc' and archive.getinfo('big').file_size == big
        archive.open('big').close()
    first, second = Zip().entries(str(tmp_path / 'a'), ignore)
    assert first == Entry('big', 0, big, big, Kind.STORED, 7)
    assert second == Entry('after', at, 3, 3, Kind.STORED, zlib.crc32(b'abc'))
    with open(tmp_path / 'a', 'rb') as file:
        assert Zip().read(file.fileno(), second, 'a') == b'abc'


@pytest.mark.parametrize(
    'raw, name',
    [('日本/ü.jpg'.encode(), '日本/ü.jpg'), (b'\x81\x9a.jpg', 'üÜ.jpg'), (b'\xe1_\xff', 'ß_\xa0')],
    ids=['utf8', 'cp437', 'cp437_too'],
)
def test_names_without_the_flag(tmp_path, raw, name) -> None:
    stand_in = '?' * len(raw)
    path = packed(tmp_path / 'a', {stand_in: b'data'})
    changed(path, stand_in.encode(), raw, 2)
    assert contents(Zip(), path) == {name: b'data'}
    assert list(by_zipfile(path)) == [raw.decode('cp437')]


def test_names_with_the_flag_that_are_no_utf8(tmp_path) -> None:
    path = packed(tmp_path / 'a', {'üü': b'data'})
    changed(path, 'üü'.encode(), b'\xff\xfe\xc3\xbc', 2)
    assert contents(Zip(), path) == {os.fsdecode(b'\xff\xfe\xc3\xbc'): b'data'}


@pytest.mark.parametrize('of, name', [(b'x.jpg', 'ö.jpg'), (b'before it was renamed', 'x.jpg')], ids=['right', 'stale'])
def test_name_in_a_field_of_its_own(tmp_path, of, name) -> None:
    field = b'\1' + struct.pack('<L', zlib.crc32(of)) + 'ö.jpg'.encode()
    info = zipfile.ZipInfo('x.jpg')
    info.extra = struct.pack('<2HB', 0x5455, 1, 0) + struct.pack('<2H', 0x7075, len(field)) + field + b'\0\0\0'
    with zipfile.ZipFile(tmp_path / 'a', 'w') as archive:
        archive.writestr(info, b'data')
    assert contents(Zip(), tmp_path / 'a') == {name: b'data'}


@pytest.mark.parametrize('system', [0, 3, 10, 14])
def test_backslashes(tmp_path, system) -> None:
    with zipfile.ZipFile(tmp_path / 'a', 'w') as archive:
        for name in ('a\\b.jpg', 'a\\', 'c/d\\e'):
            info = zipfile.ZipInfo(name)
            info.create_system = system
            archive.writestr(info, b'' if name == 'a\\' else b'data')
    unix = {'a\\b.jpg': b'data', 'a\\': b'', 'c/d\\e': b'data'}
    assert contents(Zip(), tmp_path / 'a') == (unix if system == 3 else {'a/b.jpg': b'data', 'c/d\\e': b'data'})


@pytest.mark.filterwarnings('ignore:Duplicate name')
def test_odd_names(tmp_path) -> None:
    names = [
        '../x',
        'a/../b',
        '/abs/y',
        './z',
        'a//c',
        '..',
        '.',
        '/',
        'd/',
        'twice',
        'twice',
        'nul\0.exe',
        'e' * 65_000,
    ]
    with zipfile.ZipFile(tmp_path / 'a', 'w') as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(name.replace('\0', '!'))
            archive.writestr(info, b'' if name.endswith('/') else b'%d' % number)
    changed(tmp_path / 'a', b'nul!.exe', b'nul\0.exe', 2)
    expected = {'abs/y': b'2', 'z': b'3', 'a/c': b'4', 'twice': b'10', 'nul': b'11', 'e' * 65_000: b'12'}
    assert contents(Zip(), tmp_path / 'a') == expected
    for name in ('/abs/y', './z', 'a//c', 'twice', 'nul', 'e' * 65_000):
        key = '/'.join(part for part in name.split('/') if part not in ('', '.'))
        assert by_zipfile(tmp_path / 'a')[name] == expected[key]


def test_other_methods_and_encryption(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / 'a', 'w') as archive:
        archive.writestr('stored', b'data')
        archive.writestr('bz2', b'data', zipfile.ZIP_BZIP2)
        archive.writestr('lzma', b'data', zipfile.ZIP_LZMA)
        archive.writestr('small', bytes(5 << 20), zipfile.ZIP_BZIP2)  # to less than deflate could make of it
        archive.writestr('last', b'data', zipfile.ZIP_DEFLATED)
    refused = {'bz2': Kind.OTHER_COMPRESSION, 'lzma': Kind.OTHER_COMPRESSION}
    refused['small'] = Kind.OTHER_COMPRESSION
    assert contents(Zip(), tmp_path / 'a') == {'stored': b'data', 'last': b'data', **refused}


@needs_zip
def test_zip_encrypts_and_keeps_links(tmp_path) -> None:
    write_tree(tmp_path / 'in', {'secret': b'data', 'plain': b'more'})
    os.symlink('plain', tmp_path / 'in' / 'link')
    run('zip', '-qry', '../a.zip', 'plain', 'link', cwd=tmp_path / 'in')
    run('zip', '-q', '-P', 'word', '../a.zip', 'secret', cwd=tmp_path / 'in')
    expected = {'plain': b'more', 'link': Kind.OUTSIDE_LINK, 'secret': Kind.ENCRYPTED}
    assert contents(Zip(), tmp_path / 'a.zip') == expected
    run('zip', '-qr', '../b.zip', 'link', cwd=tmp_path / 'in')
    assert contents(Zip(), tmp_path / 'b.zip') == {'link': b'more'}


@needs_zip
def test_several_parts(tmp_path) -> None:
    write_tree(tmp_path, {'a': os.urandom(200_000)})
    run('zip', '-q', '-s', '64k', 's.zip', 'a', cwd=tmp_path)
    with pytest.raises(ArchiveError, match='the last of several parts'):
        contents(Zip(), tmp_path / 's.zip')
    with pytest.raises(ArchiveError, match='one part of several'):
        contents(Zip(), tmp_path / 's.z01')


@needs_zip
def test_something_in_front_that_offsets_know_of(tmp_path) -> None:
    files = some_bytes(SHORT)
    write_tree(tmp_path / 'in', files)
    run('zip', '-qr', '../a.zip', '.', cwd=tmp_path / 'in')
    (tmp_path / 'b.zip').write_bytes(b'#!/bin/sh\n' * 100 + (tmp_path / 'a.zip').read_bytes())
    assert contents(Zip(), tmp_path / 'b.zip') == files
    run('zip', '-qA', 'b.zip', cwd=tmp_path)
    assert contents(Zip(), tmp_path / 'b.zip') == files


def test_empty_archives_and_padding(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / 'a', 'w'):
        pass
    assert contents(Zip(), tmp_path / 'a') == {}
    files = some_bytes(SHORT)
    data = packed(tmp_path / 'a', files).read_bytes()
    (tmp_path / 'a').write_bytes(data + bytes(1000))
    assert contents(Zip(), tmp_path / 'a') == files


def test_a_zip_in_a_zip_is_not_taken_for_it(tmp_path) -> None:
    """Cut off behind a zip that is stored in it, an archive ends as one does."""
    inner = packed(tmp_path / 'inner', {'wrong': b'wrong'}).read_bytes()
    path = packed(tmp_path / 'a', {'first': b'first', 'inner.zip': inner, 'last': b'last'})
    assert contents(Zip(), path)['inner.zip'] == inner
    data = path.read_bytes()
    end = data.index(inner) + len(inner)
    for cut in (data[:end], data[: end + 10], data[: end + 40]):
        path.write_bytes(cut)
        with pytest.raises(ArchiveError, match='damaged'):
            contents(Zip(), path)


def test_only_what_is_asked_for_is_read(tmp_path) -> None:
    """Everything in front of the central directory may be lost: the list is there still, and says where."""
    files = some_bytes(SHORT)
    path = packed(tmp_path / 'a', files)
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    before = list(Zip().entries(str(path), ignore))
    path.write_bytes(b'\xff' * start + path.read_bytes()[start:])
    assert list(Zip().entries(str(path), ignore)) == before and len(before) == len(SHORT)
    with open(path, 'rb') as file, pytest.raises(ArchiveError, match='a.jpg: at byte 0 should be its header'):
        Zip().read(file.fileno(), before[0], str(path))


def test_wrong_central_directories(tmp_path) -> None:
    path = packed(tmp_path / 'a', {'x': b'abc', 'y': b'defg'})
    data = path.read_bytes()
    first = data.index(b'PK\1\2')
    for at, value, problem in [
        (first + 24, struct.pack('<L', 99), "'x' is stored as it is, but of 99 bytes are there 3"),
        (first + 42, struct.pack('<L', 60), 'x: .* central directory begins at byte'),
        (first + 42, struct.pack('<L', 0xFFFFFFFF), "'x' should have a zip64 field of at least 8 bytes"),
        (first + 34, struct.pack('<H', 2), 'x: it is in another part'),
        (first + 28, struct.pack('<H', 7), 'should be its entry 2'),
        (first + 28, struct.pack('<H', 999), 'its entry 1 goes on after its end'),
        (len(data) - 14, struct.pack('<2H', 3, 3), 'has 2 entries, and should have 3'),
        (len(data) - 14, struct.pack('<2H', 1, 1), 'has 2 entries, and should have 1'),
        (len(data) - 12, struct.pack('<H', 9), 'no list of entries'),
        (len(data) - 6, struct.pack('<L', 1 << 31), 'no list of entries'),
        (len(data) - 6, struct.pack('<L', first - 5), 'belongs to one that begins at byte 5'),
    ]:
        path.write_bytes(data[:at] + value + data[at + len(value) :])
        with pytest.raises(ArchiveError, match=problem):
            contents(Zip(), path)


def test_folders_and_modes(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / 'a', 'w') as archive:
        archive.writestr('folder/', b'')
        for system, name in [(3, 'unix'), (0, 'fat')]:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = system, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, b'/etc/passwd')
    assert contents(Zip(), tmp_path / 'a') == {'unix': Kind.OUTSIDE_LINK, 'fat': b'/etc/passwd'}
