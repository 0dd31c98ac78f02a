"""What pack_images does not replace, does not publish, and does not leave behind."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import threading
from pathlib import Path
from typing import Callable

import pytest

from mmshared.annotations.cache.errors import CacheSpaceError
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.packing import pack_images, packing
from mmshared.fileio.packing.source import FileChangedError

from ..annotations.cache.cache_helpers import run_child
from .packed import FILES, FORMATS, archive_files, by_others, listed, make, named


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / 'data' / 'train2017', FILES)


# ---- files that others change
def meddle(monkeypatch, action: Callable[[], object]) -> None:
    """Have ``action()`` done when the folder was looked through, before its files are read."""
    write = packing._write

    def meddled(*arguments):
        action()
        return write(*arguments)

    monkeypatch.setattr(packing, '_write', meddled)


@pytest.mark.parametrize('suffix', FORMATS)
@pytest.mark.parametrize('change', ['removed', 'longer', 'shorter', 'a pipe', 'a folder'])
def test_files_that_change_meanwhile(folder, tmp_path, suffix, change, monkeypatch):
    victim = folder / 'a' / 'z.jpg'

    def act():
        if change == 'longer':
            victim.write_bytes(b'z' * 513)
        elif change == 'shorter':
            victim.write_bytes(b'z' * 511)
        else:
            victim.unlink()
        if change == 'a pipe':
            os.mkfifo(victim)
        elif change == 'a folder':
            victim.mkdir()

    meddle(monkeypatch, act)
    message = 'was removed while' if change == 'removed' else 'was changed while'
    with pytest.raises(FileChangedError, match=f'z.jpg: {message}'):
        pack_images(folder, tmp_path / f'out.{suffix}')
    assert listed(tmp_path) == ['data']


@pytest.mark.parametrize('suffix', FORMATS)
def test_a_file_that_is_written_while_it_is_read(tmp_path, suffix, monkeypatch):
    folder = make(tmp_path / 'd', {'large.jpg': bytes(32 << 20)})
    stop = threading.Event()

    def write():
        with open(folder / 'large.jpg', 'r+b') as file:
            while not stop.is_set():
                file.seek(0)
                file.write(os.urandom(8))
                file.flush()

    writer = threading.Thread(target=write)
    meddle(monkeypatch, writer.start)
    try:
        with pytest.raises(FileChangedError, match='was changed while'):
            pack_images(folder, tmp_path / f'out.{suffix}')
    finally:
        stop.set()
        writer.join()
    assert listed(tmp_path) == ['d']


@pytest.mark.parametrize('suffix', FORMATS)
def test_what_does_not_read_back_is_not_published(folder, tmp_path, suffix, monkeypatch):
    """A disk that loses a bit of the first file."""
    real = os.fsync

    def lossy(descriptor):
        real(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            at = os.pread(descriptor, 4000, 0).find(b'nine')
            if at >= 0:
                os.pwrite(descriptor, b'N', at)

    monkeypatch.setattr(os, 'fsync', lossy)
    with pytest.raises(ArchiveError, match=r'train2017/000000000009.jpg: .*The disk') as caught:
        pack_images(folder, tmp_path / f'out.{suffix}')
    assert caught.value.archive == os.fspath(tmp_path / f'out.{suffix}') and listed(tmp_path) == ['data']
    pack_images(folder, tmp_path / f'out.{suffix}', verify=False)  # who does not want to know
    assert tmp_path.joinpath(f'out.{suffix}').exists()


# ---- what is there already
@pytest.mark.parametrize('suffix', FORMATS)
def test_nothing_is_replaced_unless_it_is_forced(folder, tmp_path, suffix):
    for name in archive_files('out', suffix):
        (tmp_path / name).write_text('precious')
        with pytest.raises(FileExistsError, match=f'{name}: is there already.*--force'):
            pack_images(folder, tmp_path / f'out.{suffix}')
        assert (tmp_path / name).read_text() == 'precious' and listed(tmp_path) == ['data', name]
        pack_images(folder, tmp_path / f'out.{suffix}', force=True)
        assert by_others(tmp_path / f'out.{suffix}') == named(folder)
        for written in archive_files('out', suffix):
            (tmp_path / written).unlink()


@pytest.mark.parametrize('shard_size', [None, 2000], ids=['one', 'shards'])
@pytest.mark.parametrize('suffix', FORMATS)
def test_what_comes_meanwhile_is_not_replaced(folder, tmp_path, suffix, shard_size, monkeypatch):
    """Packing takes hours: another one may have the same target, and be complete before."""
    other = tmp_path / ('out' if shard_size is None else 'out-99999')
    other = other.with_suffix(f'.{suffix}')
    meddle(monkeypatch, lambda: other.write_text('precious'))
    with pytest.raises(FileExistsError, match=re.escape(f'{other}: ')):
        pack_images(folder, tmp_path / f'out.{suffix}', shard_size)
    assert other.read_text() == 'precious' and listed(tmp_path) == ['data', other.name]


@pytest.mark.parametrize('kind', ['folder', 'link', 'broken link', 'pipe'])
def test_only_regular_files_are_replaced(folder, tmp_path, kind):
    target = tmp_path / 'out.lst'
    if kind == 'folder':
        target.mkdir()
    elif kind == 'pipe':
        os.mkfifo(target)
    else:
        target.symlink_to(folder / 'b.jpg' if kind == 'link' else 'nowhere')
    with pytest.raises(FileExistsError, match=r'out\.lst: is not a regular file'):
        pack_images(folder, tmp_path / 'out.rec', force=True)
    assert listed(tmp_path) == ['data', 'out.lst'] and (folder / 'b.jpg').read_bytes() == b''


@pytest.mark.parametrize('suffix', FORMATS)
def test_shards_of_an_earlier_run(folder, tmp_path, suffix):
    """They would be found by the same pattern."""
    output = tmp_path / f'out.{suffix}'
    pack_images(folder, output, shard_size=1)
    (tmp_path / 'out-1.txt').write_text('other')
    (tmp_path / 'outside-00000.tar').write_text('other')
    before = {name: (tmp_path / name).read_bytes() for name in listed(tmp_path) if name != 'data'}
    (folder / 'b.jpg').write_bytes(b'new')
    for size in (10**6, 1):
        with pytest.raises(FileExistsError, match='--force'):
            pack_images(folder, output, shard_size=size)
    assert {name: (tmp_path / name).read_bytes() for name in listed(tmp_path) if name != 'data'} == before
    packed = pack_images(folder, output, shard_size=10**6, force=True)
    removed = {name for i in range(1, len(FILES)) for name in archive_files(f'out-{i:05d}', suffix)}
    assert {path.name for path in packed.removed} == removed
    assert listed(tmp_path) == sorted(['data', 'out-1.txt', 'outside-00000.tar', *archive_files('out-00000', suffix)])
    assert by_others(packed.archives[0])['train2017/b.jpg'] == b'new'


def test_something_else_that_the_pattern_would_find(folder, tmp_path):
    (tmp_path / 'out-val.tar').write_text('other')
    for force in (False, True):
        with pytest.raises(
            FileExistsError, match=r'out-val\.tar: is no shard of out\.tar, but .*out-\*\.tar would find'
        ):
            pack_images(folder, tmp_path / 'out.tar', shard_size=1, force=force)
    pack_images(folder, tmp_path / 'out.tar')  # not in the way of a single archive
    (tmp_path / 'out-val.tar').unlink()
    (tmp_path / 'out-00099.tar').mkdir()
    with pytest.raises(FileExistsError, match='not a regular file'):
        pack_images(folder, tmp_path / 'out.tar', shard_size=1, force=True)


@pytest.mark.parametrize('name', ['out', 'out.tgz', 'out.TAR', '.tar', 'out.tar.gz'])
def test_names_that_say_no_format(folder, tmp_path, name):
    with pytest.raises(ValueError, match='has to end in .tar, .zip, .rec'):
        pack_images(folder, tmp_path / name)


def test_places_where_nothing_can_go(folder, tmp_path):
    for place in (folder, folder / 'a'):
        with pytest.raises(ValueError, match='below the folder that is packed'):
            pack_images(folder, place / 'out.tar')
    (tmp_path / 'link').symlink_to(folder / 'a')
    with pytest.raises(ValueError, match='below the folder that is packed'):
        pack_images(folder, tmp_path / 'link' / 'out.tar')
    with pytest.raises(FileNotFoundError, match='missing: is no folder'):
        pack_images(folder, tmp_path / 'missing' / 'out.tar')


# ---- failing
@pytest.mark.parametrize('suffix', FORMATS)
def test_a_limit_on_file_size(tmp_path, suffix):
    folder = make(tmp_path / 'd', {f'{i}.jpg': bytes(30_000) for i in range(4)})

    def action():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        pack_images(folder, tmp_path / f'out.{suffix}')

    result = run_child(action)
    assert result['error'] == 'CacheSpaceError' and 'File too large' in result['text']
    assert re.search(rf'for the archive of {folder}\. It needs about 1[23]\d kB', result['text'])
    assert listed(tmp_path) == ['d']


@pytest.mark.parametrize('failing', range(1, 7))
def test_publishing_fails_in_the_middle(tmp_path, failing, monkeypatch):
    """All or nothing: what already had its name loses it."""
    folder = make(tmp_path / 'd', {'a.jpg': b'a', 'b.jpg': b'b'})
    real, calls = os.link, []

    def link(*arguments, **options):
        calls.append(arguments)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return real(*arguments, **options)

    monkeypatch.setattr(os, 'link', link)
    with pytest.raises(CacheSpaceError):
        pack_images(folder, tmp_path / 'out.rec', shard_size=1)
    assert listed(tmp_path) == ['d'] and len(calls) == failing


def test_the_archives_name_appears_after_its_index(tmp_path, monkeypatch):
    folder = make(tmp_path / 'd', {'a.jpg': b'a'})
    real, seen = os.link, []

    def link(*arguments, **options):
        real(*arguments, **options)
        seen.append(listed(tmp_path))

    monkeypatch.setattr(os, 'link', link)
    pack_images(folder, tmp_path / 'out.rec')
    assert seen == [['d', 'out.lst'], ['d', 'out.idx', 'out.lst'], ['d', 'out.idx', 'out.lst', 'out.rec']]


@pytest.mark.parametrize('suffix', FORMATS)
def test_where_files_cannot_be_nameless(folder, tmp_path, suffix, monkeypatch):
    """As on NFS."""
    from mmshared.annotations.cache import publish

    monkeypatch.setattr(publish, '_open_nameless', lambda folder: None)
    pack_images(folder, tmp_path / f'out.{suffix}')
    assert by_others(tmp_path / f'out.{suffix}') == named(folder)
    assert listed(tmp_path) == sorted(['data', *archive_files('out', suffix)])
    meddle(monkeypatch, (folder / 'b.jpg').unlink)
    with pytest.raises(FileChangedError):
        pack_images(folder, tmp_path / f'new.{suffix}')
    assert listed(tmp_path) == sorted(['data', *archive_files('out', suffix)])
