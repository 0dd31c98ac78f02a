"""Locks that die with their holder, and knowing where they do not work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from cache_helpers import names, run_child, worker_env
from fake_store import Builder, check, decode

from mmshared.annotations.cache import StoreCache, errors, location, locks
from mmshared.annotations.cache.once import LookAgain, once

pytestmark = pytest.mark.skipif(not locks.SUPPORTED, reason='this system has no flock')


@pytest.fixture
def folder(tmp_path):
    locks.problem.cache_clear()
    yield tmp_path
    locks.problem.cache_clear()


def test_probe_leaves_nothing(folder):
    assert locks.problem(folder) is None
    assert names(folder) == []
    assert 'No such file' in locks.problem(folder / 'missing')


def test_probe_that_hangs_ends(folder, monkeypatch):
    """A flock that does not return, as on some network file systems: a real one, on a file that another one locked."""
    with open(folder / 'busy', 'w') as first, open(folder / 'busy', 'w') as second:
        assert locks.try_lock(first.fileno())
        monkeypatch.setattr(locks, '_excludes', lambda path: locks.fcntl.flock(second, locks.fcntl.LOCK_EX))
        monkeypatch.setattr(locks, 'PROBE_SECONDS', 0.1)
        assert locks.problem(folder) == 'flock fails there (no answer within 0.1 s)'
        locks.unlock(first.fileno())  # lets the helper thread end


def test_locks_that_do_not_exclude_are_noticed(folder, monkeypatch):
    monkeypatch.setattr(locks, 'try_lock', lambda *args, **kwargs: True)
    assert locks.problem(folder) == 'flock does not exclude anyone there'


@pytest.mark.parametrize('local_works', [True, False])
def test_without_locks_in_the_cache_those_of_a_local_folder_serve(folder, monkeypatch, local_works):
    source = folder / 'a.json'
    source.write_bytes(b'[]')
    cache_dir, local = folder / 'cache', folder / 'local'
    probe = locks._excludes
    monkeypatch.setattr(locks, '_excludes', lambda path: path == local and local_works and probe(path))
    monkeypatch.setattr(
        'mmshared.annotations.cache.store_cache.local_folders', lambda: [location.Folder(local, private=True)]
    )
    seen = []

    class Looking(Builder):
        def __call__(self, *args):
            seen.append((names(local), [name for name in names(cache_dir) if name.endswith('.lock')]))
            super().__call__(*args)

    path = StoreCache(cache_dir, 1).get(source, Looking(), check)
    assert decode(path) == b'[]' and names(cache_dir) == [path.name] and names(local) == []
    ((in_local, in_cache),) = seen
    assert in_cache == [] and len(in_local) == (1 if local_works else 0)
    assert all(name.endswith(f'-{path.name}.lock') for name in in_local)


def test_holder_and_note(folder):
    path = folder / 'x.lock'
    first, second = locks.BuildLock(path, 'x'), locks.BuildLock(path, 'x')
    assert first.acquire(None) is None
    first.leave({'done': 1})
    seen = []

    def waiting(note):
        seen.append(note)
        first.leave({'error': {'text': 'ü' * 100}})
        first.release()

    assert second.acquire(waiting) == {'error': {'text': 'ü' * 100}}
    assert seen == [{'done': 1}] and names(folder) == []
    with pytest.raises(ValueError, match='reserved'):
        assert second.acquire(waiting) is None
        try:
            second.leave({'text': 'x' * locks.NOTE_BYTES})
        finally:
            second.release()
    second.release()  # once more does no harm
    assert names(folder) == []


def test_a_link_in_place_of_the_lock_is_not_followed(folder):
    (folder / 'victim').write_bytes(b'precious')
    (folder / 'x.lock').symlink_to(folder / 'victim')
    with pytest.raises(errors.CacheAccessError, match='x.json'):
        locks.BuildLock(folder / 'x.lock', 'x.json').acquire(None)
    assert (folder / 'victim').read_bytes() == b'precious'


def test_a_forked_child_has_no_lock(folder):
    lock = locks.BuildLock(folder / 'x.lock', 'x')
    assert lock.acquire(None) is None

    def child():
        lock.leave({'child': 1})
        lock.release()
        return os.path.exists(lock.path)

    assert run_child(child) is True
    assert locks._read(lock._fd) == {}
    lock.release()


def test_a_forked_child_lets_go_when_the_parent_does(folder):
    lock = locks.BuildLock(folder / 'x.lock', 'x')
    assert lock.acquire(None) is None
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    lock.release()
    try:
        assert lock.acquire(None) is None
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_threads_of_one_process_take_turns(folder):
    results, made = [], []

    def find():
        return made[0] if made else None

    def make():
        time.sleep(0.2)
        made.append(object())
        return made[0]

    def run():
        results.append(once(locks.BuildLock(folder / 'x.lock', 'x'), find, make, lambda note: None))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == made * 4 and names(folder) == []


def test_giving_up_is_not_a_failure_for_those_who_wait(folder):
    path = folder / 'x.lock'
    first = locks.BuildLock(path, 'x')

    def make():
        waiter = locks.BuildLock(path, 'x')
        thread = threading.Thread(
            target=lambda: notes.append(once(waiter, lambda: None, lambda: 'made', lambda note: None))
        )
        thread.start()
        threads.append(thread)
        time.sleep(0.2)
        raise LookAgain

    notes, threads = [], []
    with pytest.raises(LookAgain):
        once(first, lambda: None, make, None)
    threads[0].join(30)
    assert notes == ['made']


@pytest.mark.parametrize(
    'error, kind',
    [
        (ValueError('record 3'), ValueError),
        (KeyError('bbox', 3), KeyError),
        (errors.CacheSpaceError('full'), None),
        (FileNotFoundError(2, 'No such file', 'x.json'), FileNotFoundError),
        (RuntimeError(), RuntimeError),
        (UnicodeDecodeError('utf-8', b'\xff', 0, 1, 'bad'), ValueError),
        (ValueError('\ud800 lone, ünï'), ValueError),
        (ValueError('x' * 100_000), ValueError),
    ],
)
def test_errors_travel(error, kind):
    import json

    note = json.dumps(errors.to_note(error))
    assert len(note) < locks.NOTE_BYTES
    again = errors.from_note(json.loads(note))
    assert isinstance(again, kind or type(error)) and str(again) == str(error)[: errors.MAX_TEXT]


def test_unknown_errors_travel_as_text():
    class Local(Exception):
        def __init__(self, one, two):
            super().__init__(f'{one} {two}')

    again = errors.from_note(errors.to_note(Local(1, 2)))
    assert type(again) is errors.BuildFailedError and 'Local: 1 2' in str(again)
    for note in (
        {},
        {'module': 'os', 'class': 'system', 'text': 'true', 'args': ['true']},
        {'module': 'builtins', 'class': 'SystemExit', 'text': '1'},
        {'module': 3, 'class': None, 'args': 4},
    ):
        assert type(errors.from_note(note)) is errors.BuildFailedError


def test_on_a_system_without_file_locks(tmp_path):
    """As on Windows: imports, builds, publishes, prunes; nothing of POSIX is needed."""
    (tmp_path / 'a.json').write_bytes(b'[]')
    code = f"""
import multiprocessing, os, random, sys
sys.modules['fcntl'] = sys.modules['mmengine'] = None    # without MMEngine: it is the cache that is tried here
for name in ('geteuid', 'getuid', 'register_at_fork', 'O_TMPFILE', 'O_CLOEXEC', 'O_DIRECTORY', 'O_NOFOLLOW', 'pread',
             'pwrite', 'fchmod', 'statvfs'):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = 'win32'
sys.path.insert(0, {os.path.dirname(__file__)!r})
from fake_store import Builder, check, decode
from mmshared.annotations.cache import StoreCache
cache = StoreCache({os.fspath(tmp_path / 'cache')!r}, 1)
held = cache.acquire({os.fspath(tmp_path / 'a.json')!r}, Builder(), check)
assert decode(held.path) == b'[]' and not held.locked
assert cache.derived(held.path, 'k', lambda out: out.write(b'x'), lambda path: True).exists()
held.close()
assert len(cache.clear()) == 1
"""
    done = subprocess.run([sys.executable, '-c', code], env=worker_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path / 'cache') == []
