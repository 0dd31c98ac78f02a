"""What one process sees: found or built, rebuilt when anything changed, never half, clear errors."""

from __future__ import annotations

import copy
import logging
import mmap
import os
import pickle
import time

import pytest
from cache_helpers import names
from fake_store import Builder, check, decode, encode

from mmshared.annotations.cache import StoreCache
from mmshared.annotations.cache.errors import CacheError, SourceChangedError
from mmshared.annotations.cache.holds import hold
from mmshared.annotations.cache.source import Fingerprint


@pytest.fixture
def source(tmp_path):
    path = tmp_path / 'instances train.json'
    path.write_bytes(b'{"images": []}')
    return path


@pytest.fixture
def cache(tmp_path):
    return StoreCache(tmp_path / 'cache', version=1)


def test_builds_once_then_finds(cache, source):
    build = Builder()
    first = cache.get(source, build, check)
    assert decode(first) == source.read_bytes()
    assert cache.get(source, build, check) == first == StoreCache(cache.cache_dir, 1).get(str(source), build, check)
    assert build.calls == 1
    assert names(cache.cache_dir) == [first.name]
    assert first.name.startswith('instances_train-v1-') and first.suffix == '.mmstore'


def test_a_cache_is_a_small_value(cache, source):
    clone = pickle.loads(pickle.dumps(cache))
    assert clone.get(source, Builder(), check) == cache.get(source, Builder(), check)
    assert len(pickle.dumps(cache)) < 500


def test_same_name_in_two_folders(cache, source, tmp_path):
    other = tmp_path / 'other' / source.name
    other.parent.mkdir()
    other.write_bytes(source.read_bytes())
    assert cache.get(source, Builder(), check) != cache.get(other, Builder(), check)
    assert len(names(cache.cache_dir)) == 2


def test_a_link_is_the_file_it_points_to(cache, source, tmp_path):
    link = tmp_path / 'link.json'
    link.symlink_to(source)
    assert cache.get(link, Builder(), check) == cache.get(source, Builder(), check)


@pytest.mark.parametrize('how', ['in place', 'replaced', 'appended', 'middle of a large file'])
def test_changed_source_is_rebuilt_and_the_old_store_goes(cache, source, how):
    if how == 'middle of a large file':
        source.write_bytes(bytes(3 << 20))
    old = cache.get(source, Builder(), check)
    times = source.stat().st_atime_ns, source.stat().st_mtime_ns
    if how == 'in place':
        source.write_bytes(source.read_bytes()[::-1])
    elif how == 'replaced':
        new = source.with_name('new')
        new.write_bytes(source.read_bytes()[::-1])
        os.replace(new, source)
    elif how == 'appended':
        with source.open('ab') as file:
            file.write(b'\n')
    else:
        with source.open('r+b') as file:  # between the blocks that are hashed
            file.seek((1 << 20) + 12345)
            file.write(b'!')
    os.utime(source, ns=times)
    assert source.stat().st_mtime_ns == times[1]
    build = Builder()
    new_store = cache.get(source, build, check)
    assert build.calls == 1 and new_store != old
    assert decode(new_store) == source.read_bytes()
    assert names(cache.cache_dir) == [new_store.name]


def test_an_edit_right_after_the_build_is_seen(cache, source):
    """Within one tick of the kernel's clock, too: the builder waits until a later edit must show."""
    source.write_bytes(bytes(2 << 20))
    cache.get(source, Builder(), check)
    for i in range(8):
        with source.open('r+b') as file:
            file.seek((1 << 20) + 12345)
            file.write(bytes([i + 1]))
        times = source.stat()
        os.utime(source, ns=(times.st_atime_ns, 10**18))
        assert decode(cache.get(source, Builder(), check))[(1 << 20) + 12345] == i + 1


@pytest.mark.parametrize('damage', ['truncated', 'emptied', 'header', 'payload', 'longer'])
def test_damaged_store_is_replaced_never_written_over(cache, source, damage):
    path = cache.get(source, Builder(repeat=1000), check)
    good = path.read_bytes()
    bad = {
        'truncated': good[:100],
        'emptied': b'',
        'header': b'XXXX' + good[4:],
        'payload': good[:-1] + b'?',
        'longer': good + b'?',
    }[damage]
    path.write_bytes(bad)
    inode = path.stat().st_ino
    with path.open('rb') as file:  # somebody else may still have the damaged one
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if bad else b''
        build = Builder(repeat=1000)
        assert cache.get(source, build, check) == path
        assert build.calls == 1 and path.read_bytes() == good and path.stat().st_ino != inode
        assert view[:] == bad
    assert names(cache.cache_dir) == [path.name]


def test_each_version_has_its_own_store(cache, source):
    newer = StoreCache(cache.cache_dir, version=2)
    first, second = cache.get(source, Builder(), check), newer.get(source, Builder(), check)
    assert first != second and first.exists()  # an older program may run at the same time
    assert cache.get(source, None, check) == first


def test_a_failed_build_leaves_nothing(cache, source):
    def build(source, out, progress, scratch):
        out.write(b'x' * 100_000)
        scratch().write(b'y' * 100_000)
        raise ValueError('record 3: no bbox')

    with pytest.raises(ValueError, match='record 3: no bbox'):
        cache.get(source, build, check)
    assert names(cache.cache_dir) == []
    assert decode(cache.get(source, Builder(), check)) == source.read_bytes()


def test_interrupted_build_leaves_nothing(cache, source):
    def build(source, out, progress, scratch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.get(source, build, check)
    assert names(cache.cache_dir) == []


def test_a_builder_whose_store_fails_its_check(cache, source):
    with pytest.raises(CacheError, match='refused by its own check'):
        cache.get(source, lambda source, out, progress, scratch: out.write(b'junk'), check)
    assert names(cache.cache_dir) == []


def test_source_that_changes_once_is_read_again(cache, source):
    class Restless(Builder):
        def __call__(self, path, *args):
            super().__call__(path, *args)
            if self.calls == 1:
                source.write_bytes(b'{"images": [1]}')

    build = Restless()
    assert decode(cache.get(source, build, check)) == b'{"images": [1]}'
    assert build.calls == 2 and len(names(cache.cache_dir)) == 1


def test_source_that_never_rests(cache, source):
    class Restless(Builder):
        def __call__(self, path, *args):
            super().__call__(path, *args)
            source.write_bytes(b'%d' % self.calls)

    build = Restless()
    with pytest.raises(SourceChangedError, match='changed each of the 3 times.*Something is still writing it'):
        cache.get(source, build, check)
    assert build.calls == 3 and names(cache.cache_dir) == []


def test_source_that_vanishes_while_it_is_read(cache, source):
    def build(path, out, progress, scratch):
        source.unlink()

    with pytest.raises(FileNotFoundError):
        cache.get(source, build, check)
    assert names(cache.cache_dir) == []


def test_sources_that_cannot_be_read(cache, tmp_path):
    for call in (cache.get, cache.acquire):
        with pytest.raises(FileNotFoundError, match='missing.json'):
            call(tmp_path / 'missing.json', Builder(), check)
    with pytest.raises(IsADirectoryError):
        cache.get(tmp_path, Builder(), check)
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(ValueError, match='not a regular file'):
        cache.get(tmp_path / 'pipe', Builder(), check)
    assert not os.path.exists(cache.cache_dir)


def test_a_remote_source_has_the_key_it_is_given(cache):
    def build(source, out, progress, scratch):
        calls.append(source)
        out.write(encode(b'remote'))

    calls = []
    mark = Fingerprint('s3://bucket/a/instances.json', (('etag', 'abc'),))
    first = cache.get(mark, build, check)
    assert cache.get(mark, build, check) == first and first.name.startswith('instances-v1-')
    assert cache.get(Fingerprint(mark.source, (('etag', 'def'),)), build, check) != first
    assert calls == [mark.source] * 2
    assert len(names(cache.cache_dir)) == 1  # the earlier one was superseded


def test_names_of_any_kind(cache, tmp_path):
    for name in ('a' * 250 + '.json', 'ünï ☃.json', '-rf', os.fsdecode(b'\xff\xfe.json'), '..json'):
        path = tmp_path / name
        path.write_bytes(os.fsencode(name))
        store = cache.get(path, Builder(), check)
        assert decode(store) == os.fsencode(name)
        assert store.name.isascii() and len(store.name) < 120 and not store.name.startswith('.')


def test_acquire_holds_and_survives_clearing(cache, source):
    with cache.acquire(source, Builder(), check) as held:
        assert held.locked and cache.list()[0].in_use
        assert cache.clear() == [] and held.path.exists()
        assert os.fstat(held.fileno()).st_ino == held.path.stat().st_ino
    with pytest.raises(ValueError, match='closed'):
        held.fileno()
    assert [entry.path for entry in cache.clear()] == [held.path]
    assert names(cache.cache_dir) == []


def test_a_copied_hold_is_one_of_its_own(cache, source):
    held = cache.acquire(source, Builder(), check)
    copies = copy.deepcopy(held), pickle.loads(pickle.dumps(held))
    held.close()
    assert len({held.path, *(one.path for one in copies)}) == 1 and cache.clear() == []
    for one in copies:
        one.close()
    assert len(cache.clear()) == 1


def test_acquire_gives_up_when_stores_keep_vanishing(cache, source):
    def vanishing(path):
        good = check(path)
        os.unlink(path)
        return good

    with pytest.raises(CacheError, match='removed each time'):
        cache.acquire(source, Builder(), vanishing)


def test_a_source_that_the_builder_does_not_find(cache):
    def build(source, out, progress, scratch):
        calls.append(source)
        raise FileNotFoundError(source)

    calls = []
    with pytest.raises(FileNotFoundError, match='s3://missing'):
        cache.acquire(Fingerprint('s3://missing'), build, check)
    assert len(calls) == 1 and names(cache.cache_dir) == []


def test_superseded_store_in_use_stays(cache, source):
    old = hold(cache.get(source, Builder(), check))
    source.write_bytes(b'changed')
    new = cache.get(source, Builder(), check)
    assert names(cache.cache_dir) == sorted([old.path.name, new.name])
    old.close()
    source.write_bytes(b'changed again')
    newest = cache.get(source, Builder(), check)
    assert names(cache.cache_dir) == [newest.name]


def test_derived_files_live_and_die_with_their_store(cache, source):
    def build(out):
        calls.append(1)
        out.write(encode(b'filtered'))

    calls = []
    store = cache.get(source, Builder(), check)
    path = cache.derived(store, 'filter=1', build, check)
    assert decode(path) == b'filtered' and path.parent == store.parent
    assert cache.derived(store, 'filter=1', build, check) == path and len(calls) == 1
    assert cache.derived(store, 'filter=2', build, check) != path and len(calls) == 2
    path.write_bytes(b'damaged')
    assert decode(cache.derived(store, 'filter=1', build, check)) == b'filtered'
    assert [entry.size for entry in cache.list()] == [sum(p.stat().st_size for p in store.parent.iterdir())]
    cache.clear()
    assert names(cache.cache_dir) == []


def test_derived_files_go_when_the_store_is_rebuilt(cache, source):
    store = cache.get(source, Builder(), check)
    path = cache.derived(store, 'k', lambda out: out.write(b'x'), lambda p: True)
    store.write_bytes(b'damaged')
    assert cache.get(source, Builder(), check) == store
    assert names(cache.cache_dir) == [store.name] and not path.exists()


def test_stale_lock_and_drafts_go(cache, source):
    store = cache.get(source, Builder(), check)
    (store.parent / f'{store.name}.lock').write_bytes(b'')
    (store.parent / '.abcdefgh.draft').write_bytes(b'half')
    assert cache.get(source, Builder(), check) == store
    assert names(cache.cache_dir) == [store.name]


def test_files_of_the_users_stay(cache, source):
    store = cache.get(source, Builder(), check)
    theirs = ['poetry.lock', 'idea.draft', 'a.note', '.lock', 'x.derived', 'a.mmstore.note', '.x.draft']
    for name in theirs:
        (store.parent / name).write_bytes(b'mine')
    for name in ('work.note', 'w.lock', '0123456789abcdef.note'):
        (store.parent / name).mkdir()
        (store.parent / name / 'file').write_bytes(b'mine')
    cache.get(source, Builder(), check)
    cache.clear()
    left = sorted(path.name for path in store.parent.iterdir())
    assert left == sorted([*theirs, 'work.note', 'w.lock', '0123456789abcdef.note'])
    assert (store.parent / 'work.note' / 'file').exists()


def test_tells_what_it_does(cache, tmp_path, caplog):
    caplog.set_level(logging.INFO, 'mmshared')
    large = tmp_path / 'large.json'
    with large.open('wb') as file:
        file.truncate(60_000_000)

    def build(source, out, progress, scratch):
        progress(30_000_000, 60_000_000)
        out.write(encode(b''))

    cache.get(large, build, check)
    assert 'reading large.json (60 MB)' in caplog.messages[0]
    assert 'large.json: done in' in caplog.messages[-1] and 'the store takes 28 bytes' in caplog.messages[-1]


def test_prune_by_age_and_size(cache, tmp_path):
    stores = []
    for i in range(4):
        path = tmp_path / f'{i}.json'
        path.write_bytes(b'x' * 1000)
        stores.append(cache.get(path, Builder(), check))
        then = time.time() - (4 - i) * 86400
        os.utime(stores[-1], (then, then))
    assert [entry.source for entry in cache.list()] == ['0', '1', '2', '3']
    assert [entry.source for entry in cache.list(describe=lambda path: '/a/b.json')] == ['/a/b.json'] * 4
    assert cache.prune() == []
    held = hold(stores[0])  # that is a use, too
    assert [entry.path for entry in cache.prune(unused_seconds=2.5 * 86400)] == [stores[1]]
    assert [entry.path for entry in cache.prune(max_bytes=2200)] == [stores[2]]
    held.close()
    assert [entry.path for entry in cache.prune(max_bytes=1500)] == [stores[3]]
    assert names(cache.cache_dir) == [stores[0].name]
