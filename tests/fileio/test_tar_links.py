"""Links in tar files, and members that come again, against what GNU tar unpacks."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from mmshared.fileio.entry import Kind
from mmshared.fileio.formats.tar import Tar

from .archives import LONG, SHORT, contents, member, packed_by_tarfile, run, some_bytes, write_tree


def test_links(tmp_path) -> None:
    """Those that lead to a file of the archive have the bytes that are there once it is unpacked."""
    folder = tmp_path / 'in'
    write_tree(folder, {'a': b'of a', 'sub/b': b'of b', 'sub/deep/c': b'of c', 'other/d': b'of sub/d'})
    links = {
        'first': 'z',  # to what comes later
        'to_a': 'a',
        'sub/up': '../a',
        'sub/deep/up2': '../b',
        'chain1': 'chain2',
        'chain2': './sub/../sub/deep/up2',
        'loop1': 'loop2',
        'loop2': 'loop1',
        'self': 'self',
        'dangling': 'nothing',
        'absolute': '/etc/passwd',
        'absolute_inside': '/a',
        'outside': '../../../../etc/passwd',
        'beside': '../out.tar',
        'folder': 'sub',
        'below': 'folder/b',
    }
    for name, target in links.items():
        os.symlink(target, folder / name)
    (folder / 'z').write_bytes(b'of z')
    os.link(folder / 'a', folder / 'sub' / 'hard')
    os.link(folder / 'sub' / 'up', folder / 'sub' / 'hard_to_link', follow_symlinks=False)
    os.link(folder / 'sub' / 'up', folder / 'hard_elsewhere', follow_symlinks=False)  # there, ../a is outside
    run('tar', '--sort=name', '-cf', '../out.tar', 'first', '.', cwd=folder)
    found = contents(Tar(), tmp_path / 'out.tar')

    outside = {'loop1', 'loop2', 'self', 'dangling', 'absolute', 'absolute_inside', 'outside', 'beside', 'folder'}
    outside |= {'below', 'hard_elsewhere'}
    assert {name for name, data in found.items() if data == Kind.OUTSIDE_LINK} == outside
    os.mkdir(tmp_path / 'unpacked')
    run('tar', '-xf', '../out.tar', cwd=tmp_path / 'unpacked')
    for name, data in found.items():
        assert name in outside or data == (tmp_path / 'unpacked' / name).read_bytes(), name
    assert len(found) == len(links) + 5 + 3


@pytest.mark.parametrize('form', ['v7', 'gnu', 'posix'])
def test_hard_links(tmp_path, form) -> None:
    write_tree(tmp_path / 'in', some_bytes(SHORT))
    for number, name in enumerate(SHORT):
        os.link(tmp_path / 'in' / name, tmp_path / 'in' / f'link{number}')
    run('tar', f'--format={form}', '-cf', 'out.tar', 'in', cwd=tmp_path)
    files = [place for place in (tmp_path / 'in').rglob('*') if place.is_file()]
    assert len(files) == 2 * len(SHORT)
    assert contents(Tar(), tmp_path / 'out.tar') == {
        str(place.relative_to(tmp_path)): place.read_bytes() for place in files
    }


def test_long_link_targets(tmp_path) -> None:
    write_tree(tmp_path / 'in', {LONG[2]: b'far away'})
    os.symlink(LONG[2], tmp_path / 'in' / 'link')
    os.link(tmp_path / 'in' / LONG[2], tmp_path / 'in' / ('h' * 200))
    for form in ('gnu', 'posix'):
        run('tar', f'--format={form}', '-cf', '../out.tar', '.', cwd=tmp_path / 'in')
        assert contents(Tar(), tmp_path / 'out.tar') == dict.fromkeys([LONG[2], 'link', 'h' * 200], b'far away')


@pytest.mark.parametrize(
    'members, expected',
    [
        ([('a', '1'), ('a', '2')], {'a': b'2'}),
        ([('a', '1'), ('b', 'hard:a'), ('a', '2')], {'a': b'2', 'b': b'1'}),
        ([('a', '1'), ('b', 'soft:a'), ('a', '2')], {'a': b'2', 'b': b'2'}),
        ([('b', 'soft:a'), ('a', '1'), ('b', '3')], {'a': b'1', 'b': b'3'}),
        ([('b', '3'), ('a', '1'), ('b', 'soft:a')], {'a': b'1', 'b': b'1'}),
        ([('b', 'soft:a'), ('a', '1'), ('c', '2'), ('b', 'soft:c')], {'a': b'1', 'b': b'2', 'c': b'2'}),
        ([('a', '1'), ('b', 'hard:a'), ('c', 'hard:b'), ('b', '2')], {'a': b'1', 'b': b'2', 'c': b'1'}),
        ([('b', 'hard:a'), ('a', '1')], {'a': b'1', 'b': Kind.OUTSIDE_LINK}),
        ([('b', 'hard:b')], {'b': Kind.OUTSIDE_LINK}),
        ([('./a', '1'), ('x/./b', 'hard:./a'), ('x//c', 'soft:.././/a')], {'a': b'1', 'x/b': b'1', 'x/c': b'1'}),
        ([('/a', '1'), ('b', 'hard:/a')], {'a': b'1', 'b': b'1'}),
        ([('../a', '1'), ('x/../a', '2'), ('b', 'hard:../a'), ('c', '3')], {'b': Kind.OUTSIDE_LINK, 'c': b'3'}),
    ],
    ids=lambda value: '-'.join(f'{name}={what}' for name, what in value) if isinstance(value, list) else '',
)
def test_what_comes_again(tmp_path, members, expected) -> None:
    kinds = {'hard': tarfile.LNKTYPE, 'soft': tarfile.SYMTYPE}
    with tarfile.open(tmp_path / 'a', 'w') as archive:
        for name, what in members:
            kind, _, target = what.partition(':')
            data = b'' if target else what.encode()
            archive.addfile(member(name, len(data), kinds.get(kind, tarfile.REGTYPE), target), io.BytesIO(data))
    assert contents(Tar(), tmp_path / 'a') == expected


def test_links_one_after_the_other(tmp_path) -> None:
    """39 are followed, hundreds in a row neither recurse nor take long."""
    links = [member(f'{n}', 0, tarfile.SYMTYPE, f'{n + 1}') for n in range(1000)]
    path = packed_by_tarfile(tmp_path / 'a', [*links, member('1000', 3)], {'1000': b'end'})
    found = contents(Tar(), path)
    assert found['999'] == found['961'] == b'end'
    assert found['0'] == found['900'] == Kind.OUTSIDE_LINK


def test_links_as_what_they_lead_to(tmp_path) -> None:
    write_tree(tmp_path, {'in/a': b'of a', 'elsewhere': b'outside'})
    os.symlink('a', tmp_path / 'in' / 'b')
    os.symlink('../elsewhere', tmp_path / 'in' / 'c')
    run('tar', '--dereference', '-cf', '../out.tar', '.', cwd=tmp_path / 'in')
    assert contents(Tar(), tmp_path / 'out.tar') == {'a': b'of a', 'b': b'of a', 'c': b'outside'}
