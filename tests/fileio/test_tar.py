"""Tar against GNU tar, Python's tarfile, and the disk that both packed or unpack to."""

from __future__ import annotations

import os
import tarfile
import tracemalloc
from typing import Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmshared.fileio.entry import Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.tar import Tar

from .archives import (
    FORMATS,
    LONG,
    SHORT,
    UNICODE,
    contents,
    ignore,
    member,
    packed_by_tarfile,
    run,
    some_bytes,
    write_tree,
)

NAMES = {
    'v7': SHORT + UNICODE,
    'ustar': SHORT + UNICODE + LONG[:1],
    'oldgnu': SHORT + UNICODE + LONG,
    'gnu': SHORT + UNICODE + LONG,
    'posix': SHORT + UNICODE + LONG,
}


def with_size(header: bytes, field: bytes) -> bytes:
    """A header of 512 bytes with another size field, and the checksum that goes with it."""
    changed = header[:124] + field.ljust(12, b'\0') + header[136:148] + b' ' * 8 + header[156:]
    return changed[:148] + b'%06o\0 ' % sum(changed) + changed[156:]


@pytest.mark.parametrize('form', list(NAMES))
def test_gnu_tar(tmp_path, form) -> None:
    files = some_bytes(NAMES[form])
    write_tree(tmp_path / 'in', files)
    run('tar', f'--format={form}', '-cf', '../out.tar', '.', cwd=tmp_path / 'in')
    assert contents(Tar(), tmp_path / 'out.tar') == files
    listed = run('tar', '--quoting-style=literal', '-tf', 'out.tar', cwd=tmp_path).split('\n')
    assert {name[2:] for name in listed if name and not name.endswith('/')} == set(files)


@pytest.mark.parametrize('form', list(FORMATS))
def test_tarfile(tmp_path, form) -> None:
    files = some_bytes(NAMES['posix' if form == 'pax' else form])
    path = packed_by_tarfile(tmp_path / 'a', [member(name, len(data)) for name, data in files.items()], files, form)
    assert contents(Tar(), path) == files
    with tarfile.open(path) as archive:
        assert files == {info.name: archive.extractfile(info).read() for info in archive}


@given(
    names=st.lists(
        st.text(st.characters(blacklist_characters='\0', blacklist_categories=['Cs']), min_size=1).filter(
            lambda name: name[-1] != '/'
        ),
        max_size=8,
    ),
    form=st.sampled_from(['gnu', 'pax']),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names(tmp_path, names, form) -> None:
    data = some_bytes(names)
    path = packed_by_tarfile(tmp_path / 'a', [member(name, len(data[name])) for name in names], data, form)
    # The oracle's names, with the rule for what an entry can be called written once more.
    expected = {}
    with tarfile.open(path) as archive:
        for info in archive:
            parts = [part for part in info.name.split('/') if part not in ('', '.')]
            if parts and '..' not in parts:
                expected['/'.join(parts)] = archive.extractfile(info).read()
    assert contents(Tar(), path) == expected


def test_bytes_that_are_no_text(tmp_path) -> None:
    name = os.fsdecode(b'\xff\xfe/\xe4.jpg')
    write_tree(tmp_path / 'in', {name: b'latin-1'})
    for form in ('gnu', 'posix'):
        run('tar', f'--format={form}', '-cf', '../out.tar', '.', cwd=tmp_path / 'in')
        assert contents(Tar(), tmp_path / 'out.tar') == {name: b'latin-1'}


def test_names_of_an_incremental_archive(tmp_path) -> None:
    """GNU's header has times there, where ustar has the first part of a long name."""
    files = some_bytes(SHORT)
    write_tree(tmp_path / 'in', files)
    run('tar', '--format=gnu', '-g', 'state', '-cf', 'out.tar', 'in', cwd=tmp_path)
    assert contents(Tar(), tmp_path / 'out.tar') == {f'in/{name}': data for name, data in files.items()}


@pytest.mark.parametrize('pieces', [2, 60])
@pytest.mark.parametrize('form', ['oldgnu', 'gnu', 'posix-0.0', 'posix-0.1', 'posix-1.0'])
def test_sparse_files_are_refused(tmp_path, form, pieces) -> None:
    files = some_bytes(['before', 'z_after'])
    write_tree(tmp_path / 'in', files)
    with open(tmp_path / 'in' / 'sparse', 'wb') as file:
        for piece in range(pieces):  # many: their list takes further headers
            file.seek((2 * piece + 1) << 16)
            file.write(b'piece')
    form, _, version = form.partition('-')
    how = [f'--sparse-version={version}'] if version else []
    run('tar', f'--format={form}', '-S', *how, '--sort=name', '-cf', '../out.tar', '.', cwd=tmp_path / 'in')
    assert contents(Tar(), tmp_path / 'out.tar') == {**files, 'sparse': Kind.SPARSE}


def test_appended_and_concatenated(tmp_path) -> None:
    write_tree(tmp_path, {'a': b'first', 'b': b'other', 'd': b'last'})
    run('tar', '-cf', '1.tar', 'a', 'b', cwd=tmp_path)
    (tmp_path / 'a').write_bytes(b'second, longer')
    run('tar', '-rf', '1.tar', 'a', cwd=tmp_path)
    assert contents(Tar(), tmp_path / '1.tar') == {'a': b'second, longer', 'b': b'other'}
    run('tar', '-cf', '2.tar', 'd', cwd=tmp_path)
    both = tmp_path / 'both.tar'
    both.write_bytes((tmp_path / '1.tar').read_bytes() + (tmp_path / '2.tar').read_bytes())
    assert run('tar', '-tf', 'both.tar', cwd=tmp_path).split() == ['a', 'b', 'a']
    assert contents(Tar(), both) == {'a': b'second, longer', 'b': b'other'}
    run('tar', '-Af', '1.tar', '2.tar', cwd=tmp_path)
    assert contents(Tar(), tmp_path / '1.tar') == {'a': b'second, longer', 'b': b'other', 'd': b'last'}


@pytest.mark.parametrize(
    'end, problem',
    [
        (512 * 3, None),
        (512 * 4, None),
        (512 * 4 + 7, '2055 bytes are no whole blocks'),
        (512 * 3 + 7, 'cut off'),
        (512 * 3 - 1, 'cut off'),
        (700, 'a: x: the tar file is cut off.*no entry is whole'),
        (500, 'cut off'),
    ],
)
def test_no_blocks_at_the_end(tmp_path, end, problem) -> None:
    path = packed_by_tarfile(tmp_path / 'a', [member('x', 600)], {'x': b'y' * 600})
    os.truncate(path, end)
    if problem is None:
        assert contents(Tar(), path) == {'x': b'y' * 600}
    else:
        with pytest.raises(ArchiveError, match=problem):
            contents(Tar(), path)


def test_nothing_but_files(tmp_path) -> None:
    kinds = [tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b'V', b'Q']
    members = [member(f'kind{n}', 0, kind) for n, kind in enumerate(kinds)]
    members += [member('old_folder/', 0, tarfile.AREGTYPE), member('contiguous', 3, tarfile.CONTTYPE)]
    path = packed_by_tarfile(tmp_path / 'a', [*members, member('file', 4)], {'file': b'data', 'contiguous': b'abc'})
    assert contents(Tar(), path) == {'file': b'data', 'contiguous': b'abc'}


def test_unknown_members_have_data(tmp_path) -> None:
    path = packed_by_tarfile(tmp_path / 'a', [member('u', 700, b'Q'), member('f', 1)], {'u': b'u' * 700, 'f': b'f'})
    assert contents(Tar(), path) == {'f': b'f'}


def test_a_cut_name_that_ends_with_a_slash(tmp_path) -> None:
    """The header has a long name's first 100 bytes: their last being a slash does not make it a folder."""
    name = 'd' * 99 + '/' + 'file.jpg'
    info = member(name, 5, tarfile.AREGTYPE)
    path = tmp_path / 'a'
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b'image'.ljust(512, b'\0') + bytes(1024))
    run('tar', '-xf', 'a', cwd=tmp_path)
    assert contents(Tar(), path) == {name: (tmp_path / name).read_bytes()} == {name: b'image'}


@pytest.mark.parametrize('form', ['gnu', 'pax'])
def test_more_than_8_gigabytes(tmp_path, form) -> None:
    big = 9 << 30
    with open(tmp_path / 'a', 'wb') as file:  # sparse on the disk
        head = member('big', big).tobuf(FORMATS[form])
        file.write(head)
        file.seek(big - 3, os.SEEK_CUR)
        file.write(b'end' + member('after', 5).tobuf(FORMATS[form]) + b'after')
        file.truncate(len(head) + big + 512 * 4)
    found = {entry.name: entry for entry in Tar().entries(str(tmp_path / 'a'), ignore)}
    assert (found['big'].size, found['big'].offset) == (big, len(head))
    with open(tmp_path / 'a', 'rb') as file:
        assert Tar().read(file.fileno(), found['after'], 'a') == b'after'
        with tarfile.open(fileobj=file) as archive:
            assert found['after'].offset == archive.getmember('after').offset_data


@pytest.mark.parametrize(
    'field, problem',
    [
        (b'\x80' + b'\x7f' * 11, 'cut off'),
        (b'\xff' * 12, '-1 bytes'),
        (b'77777777777', 'cut off'),
        (b'what?', 'damaged'),
    ],
    ids=['absurd', 'negative', 'beyond', 'text'],
)
def test_wrong_sizes(tmp_path, field, problem) -> None:
    good = member('good', 3).tobuf() + b'abc'.ljust(512, b'\0')
    (tmp_path / 'a').write_bytes(good + with_size(member('bad').tobuf(), field) + bytes(2048))
    with pytest.raises(ArchiveError, match=problem) as caught:
        contents(Tar(), tmp_path / 'a')
    assert "'good'" in str(caught.value) and str(tmp_path / 'a') in str(caught.value) and '1024' in str(caught.value)


def pax(records: bytes, size: Optional[int] = None) -> bytes:
    """A pax header as it lies in an archive."""
    padding = bytes(-len(records) % 512)
    return member('pax', len(records) if size is None else size, tarfile.XHDTYPE).tobuf() + records + padding


def test_size_of_a_pax_header_counts(tmp_path) -> None:
    path = tmp_path / 'a'
    path.write_bytes(
        pax(b'12 size=600\n') + member('x', 3).tobuf() + b'x' * 600 + bytes(424) + member('y').tobuf() + bytes(1024)
    )
    assert contents(Tar(), path) == {'x': b'x' * 600, 'y': b''}
    with tarfile.open(path) as archive:
        assert archive.extractfile('x').read() == b'x' * 600


@pytest.mark.parametrize(
    'records',
    [b'11 size=-1\n', b'13 size=1e10\n', b'12 size=6_0\n', b'30 size=999999999999999999999\n', b'99 path=a\n',
     b'5 path=a\n', b'path=a\n', b'9 path a\n', b'0 path=a\n', b'9 path=a ', b'999999999999999999999999999 path=a\n'],
    ids=['negative', 'float', 'underscore', 'huge', 'long', 'short', 'none', 'no_equals', 'zero', 'no_end', 'digits'],
)  # fmt: skip
def test_wrong_pax_headers(tmp_path, records) -> None:
    (tmp_path / 'a').write_bytes(pax(records) + member('x', 3).tobuf() + b'abc'.ljust(512, b'\0') + bytes(1024))
    with pytest.raises(ArchiveError, match='damaged at byte|cut off'):
        contents(Tar(), tmp_path / 'a')


@pytest.mark.parametrize('kind', [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize('size', [(1 << 24) + 1, 1 << 33], ids=['over', 'far_over'])
def test_long_extended_headers_are_not_read(tmp_path, kind, size) -> None:
    with open(tmp_path / 'a', 'wb') as file:
        file.write(member('x', size, kind).tobuf(tarfile.GNU_FORMAT))
        file.truncate(size + 4096)
    tracemalloc.start()
    with pytest.raises(ArchiveError, match=f'claims to be {size} bytes'):
        contents(Tar(), tmp_path / 'a')
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_extended_header_for_nothing(tmp_path) -> None:
    (tmp_path / 'a').write_bytes(pax(b'9 path=a\n') + bytes(1024))
    with pytest.raises(ArchiveError, match='nothing that it could be about'):
        contents(Tar(), tmp_path / 'a')


def test_global_headers(tmp_path) -> None:
    """As git archive writes them."""
    data = member('x', 3).tobuf() + b'abc'.ljust(512, b'\0') + bytes(1024)
    head = member('g', 14, tarfile.XGLTYPE).tobuf() + b'14 comment=ab\n'.ljust(512, b'\0')
    (tmp_path / 'a').write_bytes(head + data)
    assert contents(Tar(), tmp_path / 'a') == {'x': b'abc'}


def test_a_header_full_of_zeros_is_no_end(tmp_path) -> None:
    path = packed_by_tarfile(tmp_path / 'a', [member(name, 3) for name in 'xyz'], dict.fromkeys('xyz', b'abc'))
    data = bytearray(path.read_bytes())
    data[1024:1536] = bytes(512)
    path.write_bytes(data)
    with tarfile.open(path) as archive:
        assert archive.getnames() == ['x']  # without a word
    with pytest.raises(ArchiveError, match="byte 1024, behind 'x': a header is overwritten with zeros"):
        contents(Tar(), path)


def test_memory_does_not_grow_with_entries(tmp_path) -> None:
    info = member('name', 1)
    with open(tmp_path / 'a', 'wb') as file:
        for number in range(3000):
            info.name = f'folder/{number:08d}.jpg'
            file.write(info.tobuf(tarfile.USTAR_FORMAT) + b'x'.ljust(512, b'\0'))
    tracemalloc.start()
    count = sum(1 for _ in Tar().entries(str(tmp_path / 'a'), ignore))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3000 and peak < 100_000


def test_progress_and_descriptors(tmp_path) -> None:
    members = [member(f'{number}') for number in range(600)]
    path = packed_by_tarfile(tmp_path / 'a', members, {})
    calls = []
    before = os.listdir('/proc/self/fd')
    walk = Tar().entries(str(path), lambda *call: calls.append(call))
    next(walk)
    walk.close()
    assert sum(1 for _ in Tar().entries(str(path), lambda *call: calls.append(call))) == 600
    assert os.listdir('/proc/self/fd') == before
    size = path.stat().st_size
    assert calls == sorted(calls) and len(calls) == 3 and calls[-1] == (size, size)


def test_the_archive_became_shorter(tmp_path) -> None:
    path = packed_by_tarfile(tmp_path / 'a', [member('x', 600)], {'x': b'y' * 600})
    (entry,) = Tar().entries(str(path), ignore)
    os.truncate(path, 1000)
    with open(path, 'rb') as file, pytest.raises(ArchiveError, match=f'{path}: x: .*112 bytes too early'):
        Tar().read(file.fileno(), entry, str(path))
