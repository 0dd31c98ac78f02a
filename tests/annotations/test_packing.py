"""A store at a place of the user's choice, and such a store, or one that was fetched, as annotation file."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from mmshared.annotations import AnnotationFileError, AnnotationStore, Fingerprint, StoreError, opening, packing
from mmshared.annotations.cache import CacheSpaceError, SourceChangedError, publish
from mmshared.annotations.packing import build_store, pack_store

from .helpers import exact, small


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('MMSHARED_CACHE', os.fspath(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def source(tmp_path):
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(small()))
    return path


@pytest.fixture
def out(tmp_path):
    (tmp_path / 'out').mkdir()
    return tmp_path / 'out'


def test_it_is_used_in_place_of_the_json(source, out, cache, monkeypatch):
    size = pack_store(source, out / 'x.mmstore')
    assert os.listdir(out) == ['x.mmstore'] and size == os.path.getsize(out / 'x.mmstore')
    source.unlink()
    monkeypatch.chdir(out)
    store = opening.open_store('x.mmstore')
    assert exact(store.to_dict()) == exact(small()) and not cache.exists()
    monkeypatch.chdir('/')
    assert exact(pickle.loads(pickle.dumps(store)).to_dict()) == exact(small())


def test_any_name_will_do(source, out):
    pack_store(source, out / 'x.json')
    assert opening.open_store(out / 'x.json').num_images == 3


@pytest.mark.parametrize('nameless', [True, False])
def test_replacing_leaves_no_moment_without_a_store(source, out, monkeypatch, nameless):
    if not nameless:  # as on file systems without O_TMPFILE
        monkeypatch.setattr(publish, '_open_nameless', lambda folder: None)
    target, missing, stop = out / 'x.mmstore', [], threading.Event()
    pack_store(source, target)
    first = AnnotationStore(target)

    def watch():
        while not stop.is_set():
            missing.extend([True] * (not target.exists()))

    thread = threading.Thread(target=watch)
    thread.start()
    for i in range(20):
        data = small()
        data['info'] = {'version': i}
        source.write_text(json.dumps(data))
        pack_store(source, target)
    stop.set()
    thread.join()
    assert not missing and os.listdir(out) == ['x.mmstore']
    assert first.top['info'] == small()['info'], 'whoever has the earlier one mapped keeps it'
    assert AnnotationStore(target).top['info'] == {'version': 19}


def test_what_may_be_replaced(source, out, tmp_path):
    target = out / 'x'
    target.write_text('precious')
    with pytest.raises(FileExistsError, match='not a store'):
        pack_store(source, target)
    assert target.read_text() == 'precious'
    pack_store(source, target, force=True)
    for force in (False, True):
        before = source.read_bytes()
        os.symlink(source, tmp_path / f'link{force}')
        for itself in (source, tmp_path / f'link{force}'):
            with pytest.raises(FileExistsError, match='itself'):
                pack_store(source, itself, force)
        with pytest.raises(FileExistsError, match='not a regular file'):
            pack_store(source, out, force)
        os.symlink(tmp_path / 'nowhere', out / f'dangling{force}')
        with pytest.raises(FileExistsError, match='not a regular file'):
            pack_store(source, out / f'dangling{force}', force)
        assert source.read_bytes() == before
    with pytest.raises(StoreError, match='is a store already'):
        pack_store(target, out / 'y')


def test_a_bad_file_leaves_nothing(source, out):
    data = small()
    data['annotations'][0]['id'] = data['annotations'][2]['id']
    for text in ('{"images": [', json.dumps(data), '[]'):
        source.write_text(text)
        with pytest.raises(AnnotationFileError):
            pack_store(source, out / 'x')
        assert os.listdir(out) == []


def test_a_bad_file_leaves_the_store_of_before(source, out):
    pack_store(source, out / 'x')
    before = (out / 'x').read_bytes()
    source.write_text('{')
    with pytest.raises(AnnotationFileError):
        pack_store(source, out / 'x')
    assert (out / 'x').read_bytes() == before


def test_a_file_that_is_being_written(source, out, monkeypatch):
    def build(file, *args):
        source.write_text(source.read_text() + ' ')
        return build_store(file, *args)

    monkeypatch.setattr(packing, 'build_store', build)
    with pytest.raises(SourceChangedError, match='while it was read'):
        pack_store(source, out / 'x')
    assert os.listdir(out) == []


@pytest.mark.parametrize('mask, mode', [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0, 0o644)])
def test_permissions_follow_the_umask(source, out, mask, mode):
    before = os.umask(mask)
    try:
        pack_store(source, out / 'x')
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(out / 'x').st_mode) == mode


def test_derived_files_of_the_store_before_go(source, out):
    pack_store(source, out / 'x.mmstore')
    store = AnnotationStore(out / 'x.mmstore')
    opening.shared_rows(store, 'key', lambda: None)
    assert len(os.listdir(out)) == 2
    pack_store(source, out / 'x.mmstore')
    assert os.listdir(out) == ['x.mmstore']


def test_a_full_disk(source, tmp_path):
    if not sys.platform.startswith('linux') or os.geteuid() != 0:
        pytest.skip('needs root to mount a small disk')
    disk = tmp_path / 'disk'
    disk.mkdir()
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', os.fspath(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f'mounting is not permitted here: {mounted.stderr.decode().strip()}')
    try:
        data = small()
        data['info']['text'] = 'x' * 200_000
        source.write_text(json.dumps(data))
        with pytest.raises(CacheSpaceError, match='No space in .*free.*It needs'):
            pack_store(source, disk / 'x')
        assert os.listdir(disk) == []
    finally:
        subprocess.run(['umount', '-l', os.fspath(disk)], check=True)


# ---- opening
def test_a_store_that_is_torn_or_of_another_version(source, out):
    pack_store(source, out / 'x')
    data = (out / 'x').read_bytes()
    (out / 'x').write_bytes(data[:-1])
    with pytest.raises(StoreError, match='should have'):
        opening.open_store(out / 'x')
    (out / 'x').write_bytes(data[:100])
    with pytest.raises(StoreError):
        opening.open_store(out / 'x')


def test_a_store_of_what_stock_refuses(source, out, cache):
    data = small()
    data['annotations'][0]['id'] = data['annotations'][2]['id']
    source.write_text(json.dumps(data))
    store = opening.open_store(source, refuse=False)
    assert 'not unique' in str(store.violation)
    with pytest.raises(AnnotationFileError, match='not unique'):
        opening.open_store(store.path)
    (out / 'b.json').write_bytes(source.read_bytes())
    for _ in range(2):
        with pytest.raises(AnnotationFileError, match='not unique'):
            opening.open_store(out / 'b.json')
    assert not [name for name in os.listdir(cache) if name.startswith('b-')]


def test_what_stock_refuses_is_not_parsed_again(source, monkeypatch):
    data = small()
    data['annotations'][0]['id'] = data['annotations'][2]['id']
    source.write_text(json.dumps(data))
    opening.open_store(source, refuse=False)
    monkeypatch.setattr(opening, 'build_store', None)
    assert opening.open_store(source, refuse=False).violation
    with pytest.raises(AnnotationFileError, match='not unique'):
        opening.open_store(source)


def test_a_store_that_was_fetched(source, out, cache, monkeypatch):
    pack_store(source, out / 'x')
    mark = Fingerprint('s3://bucket/x.mmstore', (('etag', '1'),))
    store = opening.open_store(mark, content=os.fspath(out / 'x'))
    (out / 'x').unlink()
    assert exact(store.to_dict()) == exact(small()) and os.path.dirname(store.path) == os.fspath(cache)
    (out / 'x').write_bytes(Path(store.path).read_bytes()[:-1])
    with pytest.raises(StoreError, match='should have'):
        opening.open_store(Fingerprint('s3://bucket/y', (('etag', '2'),)), content=os.fspath(out / 'x'))


@pytest.mark.parametrize('content', [b'', b'MM', b'MMSHARED'[:7], b'{}'])
def test_no_store(content, tmp_path):
    (tmp_path / 'x').write_bytes(content)
    assert not opening.has_store_magic(tmp_path / 'x')


def test_has_store_magic_of_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path in (tmp_path, tmp_path / 'pipe', tmp_path / 'missing', 's3://a/b', ''):
        assert not opening.has_store_magic(path)


def test_asking_for_the_source_is_no_use_of_the_store(source, out):
    pack_store(source, out / 'x')
    os.utime(out / 'x', (1000, 2000))
    assert opening.source_of(out / 'x') == os.path.realpath(source)
    assert os.stat(out / 'x').st_atime == 1000
    (out / 'x').write_bytes(b'MMSHARED')
    assert opening.source_of(out / 'x') is None and opening.source_of(out / 'missing') is None


def test_other_users_map_it(source):
    """A team's folder, packed by root and read by somebody else, who can write neither it nor its folder."""
    if not hasattr(os, 'geteuid') or os.geteuid() != 0:
        pytest.skip('needs root to become another user')
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        pack_store(source, Path(folder, 'x'))
        child = os.fork()
        if child == 0:
            try:
                os.setgid(12345)
                os.setuid(12345)
                store = opening.open_store(Path(folder, 'x'))
                os._exit(0 if exact(store.to_dict()) == exact(small()) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
