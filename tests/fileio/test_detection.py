"""Which format an archive has, against files that compressors and packers made."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shlex
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from mmshared.fileio.errors import ArchiveError, CompressedArchiveError
from mmshared.fileio.formats.detection import format_of
from mmshared.fileio.formats.tar import Tar
from mmshared.fileio.formats.zip import Zip

from .archives import SHORT, contents, run, some_bytes, write_tree

#: Names that say something else than what is in the file.
LIES = ['a', 'a.tar', 'a.zip', 'a.rec', 'a.tar.gz', 'a b.tgz']


@pytest.fixture
def tree(tmp_path):
    write_tree(tmp_path / 'in', some_bytes(SHORT))
    return tmp_path / 'in'


@pytest.mark.parametrize('name', LIES)
@pytest.mark.parametrize('form', ['v7', 'oldgnu', 'gnu', 'ustar', 'posix'])
def test_tar(tree, form, name) -> None:
    run('tar', f'--format={form}', '-cf', f'../{name}', '.', cwd=tree)
    path = str(tree.parent / name)
    assert isinstance(format_of(path), Tar)
    assert contents(format_of(path), path) == some_bytes(SHORT)


@pytest.mark.parametrize('first', ['BZh9', '\x1f', 'PK\3\4', 'Rar!', '\n#\xced', 'LZIP'])
def test_a_tar_begins_with_any_name(tmp_path, first) -> None:
    with tarfile.open(tmp_path / 'a', 'w') as archive:
        archive.addfile(tarfile.TarInfo(first))
    assert isinstance(format_of(str(tmp_path / 'a')), Tar)


@pytest.mark.parametrize('blocks', [1, 2, 20])
def test_a_tar_of_nothing(tmp_path, blocks) -> None:
    (tmp_path / 'a').write_bytes(bytes(512 * blocks))
    assert contents(format_of(str(tmp_path / 'a')), tmp_path / 'a') == {}


@pytest.mark.parametrize('name', LIES)
@pytest.mark.parametrize('front', [b'', b'#!/bin/sh\n', b'\xff\xd8\xff' + bytes(5000), bytes(5120)])
@pytest.mark.parametrize('files', [{}, {'a': b'b'}], ids=['empty', 'one'])
def test_zip(tmp_path, files, front, name) -> None:
    with zipfile.ZipFile(tmp_path / 'in', 'w') as archive:
        for key, data in files.items():
            archive.writestr(key, data)
    path = tmp_path / name
    path.write_bytes(front + (tmp_path / 'in').read_bytes())
    assert isinstance(format_of(str(path)), Zip)
    assert contents(format_of(str(path)), path) == files


def test_recordio(tmp_path) -> None:
    from mmshared.fileio.formats.recordio import RecordIO

    (tmp_path / 'a.tar').write_bytes(bytes([0x0A, 0x23, 0xD7, 0xCE]) + (4).to_bytes(4, 'little') + b'data')
    assert isinstance(format_of(str(tmp_path / 'a.tar')), RecordIO)


@pytest.mark.parametrize('name', [*LIES, 'a.tar.zst', "a'b.tar.xz", 'a.rec.bz2', 'x.tlz'])
@pytest.mark.parametrize('program', ['gzip', 'bzip2', 'xz', 'zstd', 'lz4'])
def test_compressed(tree, program, name) -> None:
    """Refused by any name; and the command of the message gives an archive that can be read."""
    if shutil.which(program) is None:
        pytest.skip(f'{program} is not installed')
    run('sh', '-c', f'tar -cf - . | {program} -c > ../{shlex.quote(name)}', cwd=tree)
    path = str(tree.parent / name)
    with pytest.raises(CompressedArchiveError, match=f'compressed as a whole .{program}') as caught:
        format_of(path)
    command = str(caught.value).partition('Decompress it once: ')[2]
    out = shlex.split(command)[-1]
    assert not os.path.exists(out)
    subprocess.run(command, shell=True, check=True, timeout=60)
    assert contents(format_of(out), out) == some_bytes(SHORT)


@pytest.mark.parametrize(
    'name, out', [('a.tar.gz', 'a.tar'), ('a.tgz', 'a.tar'), ('a.tar', 'a-plain.tar'), ('a', 'a-plain')]
)
def test_the_remedy(tmp_path, name, out) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b'data'))
    with pytest.raises(CompressedArchiveError) as caught:
        format_of(str(tmp_path / name))
    assert str(caught.value).endswith(f'gunzip -c {tmp_path}/{name} > {tmp_path}/{out}')


@pytest.mark.parametrize(
    'data',
    [
        gzip.compress(bytes(10**6)),
        bz2.compress(b''),
        bz2.compress(b'data'),
        lzma.compress(b'data'),
        b'\x1f\x9d\x90data',
    ],
    ids=['gzip', 'bzip2_empty', 'bzip2', 'xz', 'compress'],
)
def test_compressed_by_others(tmp_path, data) -> None:
    (tmp_path / 'a.zip').write_bytes(data)
    with pytest.raises(CompressedArchiveError, match='Decompress it once'):
        format_of(str(tmp_path / 'a.zip'))


@pytest.mark.parametrize(
    'data, problem',
    [
        (b'', 'it is empty'),
        (b'7z\xbc\xaf\x27\x1c\0\4' + bytes(24), 'it is a 7z archive'),
        (b'Rar!\x1a\x07\x01\0' + bytes(24), 'it is a rar archive'),
        (b'<!DOCTYPE html><html>not found</html>', 'it begins with .*DOCTYPE'),
        (b'version https://git-lfs.github.com/spec/v1\n', 'it begins with .*version https'),
        (b'x', 'not an archive'),
        (bytes(100), 'not an archive'),
        (bytes(32768) + b'CD001' + bytes(2000), 'not an archive'),
        (os.urandom(1) * 70_000, 'not an archive'),
        (b'\x89PNG\r\n' + b'PK\5\6' * 20_000, 'not an archive'),
        (b'PK\5\6', 'cut off'),
        (b'PK\3\4' + b'x' * 100, 'cut off'),
    ],
    ids=['empty', '7z', 'rar', 'html', 'lfs', 'x', 'zeros', 'iso', 'byte', 'ends', 'zip_end', 'zip_begin'],
)
def test_what_is_none(tmp_path, data, problem) -> None:
    path = tmp_path / 'a.tar'
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=problem) as caught:
        contents(format_of(str(path)), path)
    assert str(path) in str(caught.value) and not isinstance(caught.value, CompressedArchiveError)


def test_what_is_no_file(tmp_path) -> None:
    with pytest.raises(ArchiveError, match='it is a folder.*tar .*zip or RecordIO.*mmshared pack-images'):
        format_of(str(tmp_path))
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(ArchiveError, match='not a regular file'):
        format_of(str(tmp_path / 'pipe'))
    with pytest.raises(FileNotFoundError):
        format_of(str(tmp_path / 'missing.tar'))


def test_a_header_with_another_byte_is_no_tar(tmp_path) -> None:
    data = bytearray(tarfile.TarInfo('name').tobuf() + bytes(1024))
    positions = [at for at in range(512) if not 148 <= at < 156]
    for at in positions:
        data[at] ^= 1
        (tmp_path / 'a').write_bytes(data)
        with pytest.raises(ArchiveError, match='not an archive'):
            format_of(str(tmp_path / 'a'))
        data[at] ^= 1
    (tmp_path / 'a').write_bytes(data)
    assert isinstance(format_of(str(tmp_path / 'a')), Tar)
