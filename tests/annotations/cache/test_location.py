"""Which folders are looked in, and telling network file systems apart."""

from __future__ import annotations

import os
import sys
import time

import pytest
from cache_helpers import needs_root, run_child

from mmshared.annotations.cache import filesystem, location
from mmshared.annotations.cache.source import Fingerprint


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in ('MMSHARED_CACHE', 'XDG_CACHE_HOME'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('HOME', '/home/me')


def first(cache_dir=None):
    folder = location.candidates(cache_dir)[0]
    return os.fspath(folder.path), folder.named


def test_order(monkeypatch):
    assert first() == ('/home/me/.cache/mmshared', False)
    monkeypatch.setenv('XDG_CACHE_HOME', 'relative')
    assert first() == ('/home/me/.cache/mmshared', False)
    monkeypatch.setenv('XDG_CACHE_HOME', '/xdg')
    assert first() == ('/xdg/mmshared', False)
    monkeypatch.setenv('MMSHARED_CACHE', '/env')
    assert first() == ('/env', True)
    assert first('/arg') == ('/arg', True)
    assert first('~/x') == ('/home/me/x', True)
    assert first('x') == (os.path.abspath('x'), True)
    monkeypatch.setenv('MMSHARED_CACHE', '')
    assert first('') == ('/xdg/mmshared', False)
    rest = location.candidates()[1:]
    assert rest == location.local_folders() and all(folder.private for folder in rest)
    assert os.fspath(rest[0].path) == f'/var/tmp/mmshared-{os.geteuid()}'


@needs_root
def test_a_user_that_nobody_knows():
    def action():
        return [os.fspath(folder.path) for folder in location.candidates()]

    assert run_child(action, uid=54321)[0] == '/var/tmp/mmshared-54321'


def test_problems(tmp_path):
    (tmp_path / 'file').write_bytes(b'')
    (tmp_path / 'dangling').symlink_to(tmp_path / 'nowhere')
    (tmp_path / 'link').symlink_to(tmp_path / 'real')
    (tmp_path / 'real').mkdir(mode=0o700)
    assert location.Folder(tmp_path / 'file').problem() == 'it is not a folder'
    assert location.Folder(tmp_path / 'file' / 'x').problem() == 'not a directory'
    assert location.Folder(tmp_path / 'dangling').problem() == 'no such file or directory'
    assert location.Folder(tmp_path / 'link').problem() is None  # a cache moved to a larger disk
    assert location.Folder(tmp_path / 'link', private=True).problem() == 'it is not a folder'
    assert not location.Folder(tmp_path / 'link', private=True).readable()
    assert os.listdir(tmp_path / 'real') == []


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='statfs and mountinfo of Linux')
def test_filesystems(tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / 'not' / 'there', '/dev/shm', '/'):
        assert filesystem.network_filesystem(path) is None
    assert filesystem._mounted_type('/proc/self') == 'proc'
    assert filesystem._statfs_type('/proc') == 0x9FA0
    assert filesystem._mounted_type('/sys') == 'sysfs'
    kind = filesystem._mounted_type(tmp_path)
    monkeypatch.setattr(filesystem, '_NETWORK_NAMES', {kind})
    assert filesystem.network_filesystem(tmp_path / 'x') == kind
    monkeypatch.setattr(filesystem, '_FUSE_MAGIC', filesystem._statfs_type(tmp_path))
    assert filesystem.network_filesystem(tmp_path) == kind
    monkeypatch.setattr(filesystem, '_LOCAL_FUSE', {kind})
    assert filesystem.network_filesystem(tmp_path) is None


@needs_root
def test_mount_points_with_spaces(tmp_path):
    from cache_helpers import mount

    def action():
        import ctypes

        ctypes.CDLL(None).unshare(0x00020000)
        mount(tmp_path / 'with space', 'size=64k')
        return [filesystem._mounted_type(tmp_path / 'with space' / 'x'), filesystem._mounted_type(tmp_path / 'with')]

    inside, beside = run_child(action, private_var_tmp=True)
    assert inside == 'tmpfs' and beside == filesystem._mounted_type(tmp_path)


def test_fingerprint(tmp_path):
    path = tmp_path / 'a.json'
    path.write_bytes(bytes(5 << 20))
    mark = Fingerprint.of_file(path)
    assert mark.again() == mark and mark.size == 5 << 20 and mark.label == 'a.json'
    assert mark.key(1) == Fingerprint.of_file(str(path)).key(1) != mark.key(2)
    assert mark.prefix(1).startswith('a-v1-') and mark.prefix(1) != Fingerprint('/elsewhere/a.json').prefix(1)
    assert Fingerprint('s3://b/c/a.json').label == 'a.json' and Fingerprint('').label == ''
    assert dict(mark.facts)['inode'] == path.stat().st_ino
    for offset in (0, 16383, (5 << 20) - 1):
        with path.open('r+b') as file:
            file.seek(offset)
            file.write(b'!')
        assert dict(Fingerprint.of_file(path).facts)['blocks'] != dict(mark.facts)['blocks']
        mark = Fingerprint.of_file(path)


def test_a_file_changed_just_now_is_given_time():
    """Within one tick of the kernel's clock a second change may not show in the times (it does since Linux 6.13)."""
    now = time.time_ns() | 1
    Fingerprint('/a.json', (('ctime_ns', now),), is_file=True).settle()
    assert time.time_ns() >= now + 20_000_000
