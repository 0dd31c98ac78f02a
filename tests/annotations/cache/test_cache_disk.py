"""Full disks, read-only folders, users without a home: on real small file systems, as real other users."""

from __future__ import annotations

import mmap
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from cache_helpers import fill, mount, names, needs_root, run_child, worker_command, worker_env
from fake_store import Builder, check, decode, encode

from mmshared.annotations.cache import StoreCache, filesystem, locks, publish
from mmshared.annotations.cache.errors import CacheAccessError, CacheSpaceError

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='mounts and user ids of Linux')
NOBODY = 12345
LOCAL = '/var/tmp/mmshared-{}'


@pytest.fixture
def disk(tmp_path):
    """A small tmpfs: 60 pages, made anew by each call, unmounted at the end."""
    folder = tmp_path / 'disk'
    mounted = []

    def remount(options='size=240k'):
        if mounted:
            subprocess.run(['umount', os.fspath(folder)], check=True)
            mounted.clear()
        mount(folder, options)
        mounted.append(folder)
        return folder

    yield remount
    if mounted:
        subprocess.run(['umount', '-l', os.fspath(folder)], check=True)


@pytest.fixture
def tmp_path():
    """A folder that other users can enter: pytest's own is closed to them."""
    with tempfile.TemporaryDirectory(prefix='mmshared-test-') as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / 'a.json'
    path.write_bytes(b'0123456789' * 2000)  # 5 pages, and so many for the store
    return path


@needs_root
@pytest.mark.parametrize('nameless', [True, False])
def test_disk_full_at_every_write(disk, source, monkeypatch, nameless):
    if not nameless:  # as on file systems without O_TMPFILE
        monkeypatch.setattr(publish, '_open_nameless', lambda folder: None)
    outcomes = []
    for pages in range(14):
        folder = disk()
        fill(folder, leave_pages=pages)
        locks.problem.cache_clear()
        try:
            path = StoreCache(folder, 1).get(source, Builder(steps=10), check)
        except CacheSpaceError as error:
            outcomes.append(False)
            for part in (os.fspath(folder), 'free', 'a.json', 'MMSHARED_CACHE', 'cache_dir'):
                assert part in str(error)
            assert names(folder) == ['filler'], pages
        else:
            outcomes.append(True)
            assert decode(path) == source.read_bytes()
            assert names(folder) == sorted([path.name, 'filler'])
    assert outcomes == sorted(outcomes) and len(set(outcomes)) == 2, outcomes  # from some level on, it works


@needs_root
def test_no_inodes_left(disk, source):
    outcomes = []
    for inodes in range(1, 8):
        folder = disk(f'nr_inodes={inodes}')
        locks.problem.cache_clear()
        try:
            StoreCache(folder, 1).get(source, Builder(), check)
            outcomes.append(True)
        except CacheSpaceError:
            outcomes.append(False)
            assert names(folder) == []
    assert outcomes == sorted(outcomes) and len(set(outcomes)) == 2, outcomes


@needs_root
def test_everybody_gets_the_same_error_on_a_full_disk(disk, source):
    folder = disk()
    fill(folder, leave_pages=6)
    processes = [
        subprocess.Popen(worker_command(source, folder, '1'), env=worker_env(), stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert all('CacheSpaceError: No space in the cache folder' in error for error in errors), errors
    assert names(folder) == ['filler']


def test_a_limit_on_file_size(source, tmp_path):
    def action():
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
        StoreCache(tmp_path / 'cache', 1).get(source, Builder(), check)

    result = run_child(action)
    assert result['error'] == 'CacheSpaceError' and 'File too large' in result['text']
    assert names(tmp_path / 'cache') == []


@needs_root
def test_a_derived_file_that_does_not_fit_is_none(disk, source):
    cache = StoreCache(disk(), 1)
    store = cache.get(source, Builder(), check)
    fill(store.parent, leave_pages=3)
    assert cache.derived(store, 'k', lambda out: out.write(encode(b'x' * 100_000)), check) is None
    assert names(store.parent) == sorted([store.name, 'filler'])


@needs_root
def test_a_full_default_folder_gives_way_to_a_local_one(disk, source, monkeypatch):
    monkeypatch.delenv('MMSHARED_CACHE', raising=False)
    home = disk()
    monkeypatch.setenv('XDG_CACHE_HOME', os.fspath(home))

    def action():
        fill(home, leave_pages=6)
        build = Builder()
        path = StoreCache(None, 1).get(source, build, check)
        again = StoreCache(None, 1).get(source, build, check)
        return [
            os.fspath(path),
            build.calls,
            path == again,
            decode(path) == source.read_bytes(),
            names(home / 'mmshared'),
            names(path.parent),
        ]

    path, calls, same, equal, at_home, there = run_child(action, private_var_tmp=True)
    assert path.startswith(LOCAL.format(0)) and calls == 2 and same and equal
    assert at_home == [] and len(there) == 1


@needs_root
def test_a_full_named_folder_is_an_error(disk, source, monkeypatch):
    folder = disk()
    monkeypatch.setenv('MMSHARED_CACHE', os.fspath(folder))

    def action():
        fill(folder, leave_pages=6)
        StoreCache(None, 1).get(source, Builder(), check)

    assert run_child(action, private_var_tmp=True)['error'] == 'CacheSpaceError'


def falls_back(cache_dir, source, uid=0):
    """What a child sees that opens ``source`` twice with ``cache_dir``: path, builds, mode of the folder, log lines."""

    def action():
        lines = []
        from mmshared.annotations.cache import store_cache as cache

        cache.say = lambda message, *args, **level: lines.append(message % args)
        build = Builder()
        path = StoreCache(cache_dir, 1).get(source, build, check)
        assert StoreCache(cache_dir, 1).get(source, build, check) == path
        assert decode(path) == source.read_bytes()
        return [os.fspath(path), build.calls, os.stat(path.parent).st_mode & 0o7777, lines]

    return run_child(action, uid=uid, private_var_tmp=True)


@needs_root
def test_no_home(source, monkeypatch):
    for name in ('MMSHARED_CACHE', 'XDG_CACHE_HOME'):
        monkeypatch.delenv(name, raising=False)
    path, builds, mode, lines = falls_back(None, source, uid=NOBODY)
    assert path.startswith(LOCAL.format(NOBODY)) and builds == 1 and mode == 0o700
    monkeypatch.setenv('XDG_CACHE_HOME', '/root/not/mine')
    path, builds, mode, lines = falls_back(None, source, uid=NOBODY)
    assert path.startswith(LOCAL.format(NOBODY)) and builds == 1
    assert lines == [
        f'annotation cache: /root/not/mine/mmshared cannot be used (permission denied). Using '
        f'{LOCAL.format(NOBODY)} instead.'
    ]


@needs_root
def test_a_read_only_cache_is_read_and_else_replaced(disk, source, tmp_path):
    folder = disk('size=4m')
    prebuilt = StoreCache(folder, 1).get(source, Builder(), check)
    subprocess.run(['mount', '-o', 'remount,ro', os.fspath(folder)], check=True)
    for uid, why in ((0, 'read-only file system'), (NOBODY, 'it belongs to user id 0, not to 12345')):
        other = tmp_path / f'other{uid}.json'
        other.write_bytes(b'other')
        path, builds, _, lines = falls_back(folder, other, uid)
        assert path.startswith(LOCAL.format(uid)) and builds == 1
        assert lines == [f'annotation cache: {folder} cannot be used ({why}). Using {LOCAL.format(uid)} instead.']
    assert falls_back(folder, source)[:2] == [os.fspath(prebuilt), 0]


@needs_root
def test_a_teams_prebuilt_store(source, tmp_path):
    folder = tmp_path / 'team'
    prebuilt = StoreCache(folder, 1).get(source, Builder(), check)
    folder.chmod(0o755)
    assert falls_back(folder, source, NOBODY)[:2] == [os.fspath(prebuilt), 0]

    def action():
        cache = StoreCache(folder, 1)
        with cache.acquire(source, Builder(), check) as held:
            derived = cache.derived(held.path, 'k', lambda out: out.write(encode(b'd')), check)
            assert cache.clear() == []  # neither in use nor ours
            return [held.locked, os.fspath(derived)]

    locked, derived = run_child(action, uid=NOBODY, private_var_tmp=True)
    assert locked and derived.startswith(LOCAL.format(NOBODY))
    assert names(folder) == [prebuilt.name]


@needs_root
def test_a_folder_that_others_may_write_is_not_written(source, tmp_path):
    for mode in (0o770, 0o707, 0o1777):
        folder = tmp_path / f'{mode:o}'
        folder.mkdir()
        folder.chmod(mode)
        path, builds, _, lines = falls_back(folder, source)
        assert path.startswith(LOCAL.format(0)) and builds == 1
        assert f'others may write to it (mode {mode:04o})' in lines[0] and len(lines) == 1
        assert names(folder) == []


@needs_root
@pytest.mark.parametrize('trap', ['link', 'foreign', 'open'])
def test_a_trap_in_var_tmp_is_avoided(source, tmp_path, trap, monkeypatch):
    """Another user was there first, with a link, a folder, or a store of their own making."""
    monkeypatch.setenv('TMPDIR', os.fspath(tmp_path / 'tmp'))
    monkeypatch.setattr('tempfile.tempdir', None)
    (tmp_path / 'tmp').mkdir()
    (tmp_path / 'tmp').chmod(0o1777)
    monkeypatch.setenv('MMSHARED_CACHE', '/proc/nowhere')

    def action():
        name = LOCAL.format(NOBODY)
        target = tmp_path / 'target'
        target.mkdir()
        if trap == 'link':
            os.symlink(target, name)
        else:
            os.mkdir(name)
            os.chmod(name, 0o777)
        owner = NOBODY if trap in ('link', 'open') else 0
        os.chown(target, owner, owner)
        os.chown(name, owner, owner)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        first = StoreCache(None, 1).get(source, Builder(), check)
        return [os.fspath(first), names(name)]

    path, there = run_child(action, private_var_tmp=True)
    assert path.startswith(os.fspath(tmp_path / 'tmp' / f'mmshared-{NOBODY}')) and there == []


@needs_root
def test_nowhere_to_write(source, tmp_path, monkeypatch):
    def action():
        subprocess.run(['mount', '-o', 'remount,ro', '/var/tmp'], check=True)
        monkeypatch.setattr('tempfile.tempdir', '/proc')
        StoreCache('/proc/cache', 1).get(source, Builder(), check)

    result = run_child(action, private_var_tmp=True)
    assert result['error'] == 'CacheAccessError'
    for part in ('/proc/cache cannot be used', LOCAL.format(0), 'read-only file system', 'MMSHARED_CACHE', 'cache_dir'):
        assert part in result['text']


@needs_root
def test_network_file_systems_are_passed_over_unless_named(disk, source, monkeypatch):
    """No network file system can be mounted here: tmpfs counts as one instead, told by the same system call."""
    monkeypatch.setitem(filesystem._NETWORK_MAGIC, 0x01021994, 'nfs')
    home, local = disk('size=4m'), source.parent / 'local'
    monkeypatch.delenv('MMSHARED_CACHE', raising=False)
    monkeypatch.setenv('XDG_CACHE_HOME', os.fspath(home))
    monkeypatch.setattr('tempfile.tempdir', os.fspath(local))
    local.mkdir()
    path, builds, _, lines = falls_back(None, source)  # its /var/tmp is a tmpfs, too
    assert path.startswith(os.fspath(local / 'mmshared-0')) and builds == 1 and names(home) == []
    assert lines == [
        f'annotation cache: {home}/mmshared is on a network file system (nfs); {LOCAL.format(0)} is on a network file '
        f'system (nfs). Using {local}/mmshared-0 instead.'
    ]
    path, builds, _, lines = falls_back(home / 'mine', source)
    assert path.startswith(os.fspath(home / 'mine')) and builds == 1 and lines == []
    monkeypatch.setattr('tempfile.tempdir', os.fspath(home))  # nothing else at all: better than failing
    path, builds, _, lines = falls_back(None, source.rename(source.with_name('b.json')))
    assert path.startswith(os.fspath(home / 'mmshared')) and builds == 1


def test_strange_umask(source, tmp_path):
    for mask, mode in ((0o777, 0o600), (0o077, 0o600), (0, 0o644)):

        def action(mask=mask):
            os.umask(mask)
            path = StoreCache(tmp_path / f'{mask:o}' / 'deep' / 'cache', 1).get(source, Builder(), check)
            return [os.stat(path).st_mode & 0o777, *(os.stat(path.parents[i]).st_mode & 0o777 for i in range(3))]

        assert run_child(action) == [mode, 0o700, 0o700, 0o700]


def test_a_folder_removed_during_the_build(source, tmp_path):
    def build(path, out, progress, scratch):
        shutil.rmtree(tmp_path / 'cache')

    with pytest.raises(CacheAccessError, match='No such file'):
        StoreCache(tmp_path / 'cache', 1).get(source, build, check)


def test_a_store_is_not_sparse(source, tmp_path):
    path = StoreCache(tmp_path / 'cache', 1).get(source, Builder(repeat=50), check)
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    with path.open('rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[:] == path.read_bytes()
