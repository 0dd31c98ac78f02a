"""SharedDataset in the processes of jobs: one loads for all, whatever happens to it; jobs do not mix."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import init_default_scope
from torch.utils.data import DataLoader, Subset

from mmshared.annotations.cache import CacheError, StoreCache, location, locks
from mmshared.annotations.opening import source_of
from mmshared.datasets import SharedDataset

from .helpers import Child, write
from .other_datasets import list_files
from .shared_pairs import build, import_other, sharing

LAUNCHER = ('WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID', 'SLURM_STEP_NUM_TASKS')


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in (*LAUNCHER, 'OMPI_COMM_WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(location, 'local_folders', list)  # no other folder stands in for this one
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    init_default_scope('mmdet')
    return tmp_path / 'cache'


@pytest.fixture
def config(tmp_path, monkeypatch, cache):
    """Arguments of the other package's dataset; it logs who loads, and waits until ``tmp_path / 'go'`` is there."""
    config = list_files(tmp_path / 'files')
    import_other(tmp_path / 'files', monkeypatch)
    (tmp_path / 'go').touch()
    return {**config, 'log': str(tmp_path / 'log'), 'wait': str(tmp_path / 'go')}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A function that starts processes of a job, which stay until the test ends."""
    stay = tmp_path / 'stay'
    stay.touch()
    children = []

    def start(action, count=4, port='29500'):
        with monkeypatch.context() as launcher:
            for name, value in (('WORLD_SIZE', '8'), ('MASTER_ADDR', '127.0.0.1'), ('MASTER_PORT', port)):
                launcher.setenv(name, value)
            started = [Child(action, stay) for _ in range(count)]
        children.extend(started)
        return started

    yield start
    stay.unlink()
    for child in children:
        try:
            child.wait()
        except ChildProcessError:  # killed, and waited for
            continue


def seen(dataset):
    """What a rank can tell the test."""
    return {
        'names': [dataset.get_data_info(i)['name'] for i in range(len(dataset))],
        'values': [dataset[i]['value'] for i in range(len(dataset))],
        'found': len(dataset.found),
        'classes': dataset.metainfo['classes'],
        'mapped': hasattr(dataset.data_bytes, '_column'),
    }


def rank(config, seed=0, **more):
    return lambda: seen(build(sharing(config, **more), seed))


def loaders(config):
    return [int(pid) for pid in Path(config['log']).read_text().split()] if os.path.exists(config['log']) else []


def left(cache, *suffixes):
    return [name for name in os.listdir(cache) if name.endswith(suffixes)]


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, 'it never came'
        time.sleep(0.01)


def test_one_process_loads_for_all_ranks(config, job, cache):
    """Each with a generator of its own: the order is that of the one who loaded."""
    children = [job(rank(config, seed), 1)[0] for seed in range(5)]
    results = [child.result() for child in children]
    assert all(result == results[0] for result in results) and results[0]['mapped'], results
    assert len(loaders(config)) == 1 and len(results[0]['names']) == 30
    assert len(left(cache, '.mmdata')) == 1 and left(cache, '.lock', '.draft') == []


def test_another_takes_over_from_a_killed_one(config, job, cache, tmp_path):
    (tmp_path / 'go').unlink()
    children = job(rank(config))
    wait_for(lambda: loaders(config))
    (killed,) = loaders(config)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: len(loaders(config)) == 2)
    (tmp_path / 'go').touch()
    results = [child.result() for child in children if child.pid != killed]
    assert len(results) == 3 and all(result == results[0] for result in results)
    assert len(loaders(config)) == 2 and results[0]['found'] == 30
    assert left(cache, '.lock', '.draft') == []


def test_jobs_at_once_do_not_mix(config, job):
    first = [child.result() for child in job(rank(config), port='1')]
    write(Path(config['ann_file']), [{'name': 'new', 'kind': 'x', 'value': 1}])
    second = [child.result() for child in job(rank(config), port='2')]
    late = job(rank(config), 1, port='1')[0].result()
    assert {len(r['names']) for r in first} == {30} and late == first[0], 'a job keeps what it began with'
    assert all(r['names'] == ['new'] for r in second)
    assert len(loaders(config)) == 2


def test_the_data_go_with_the_last_process(config, job, cache, tmp_path):
    """By themselves; those of a job that was killed with the next one that loads."""
    dataset = build(sharing(config))
    assert len(left(cache, '.mmdata')) == 1
    del dataset
    gc.collect()
    assert left(cache, '.mmdata') == []
    killed = job(rank(config), 2)
    assert [child.result()['mapped'] for child in killed] == [True, True]
    held = left(cache, '.mmdata')
    StoreCache(str(cache)).clear()
    assert left(cache, '.mmdata') == held, 'in use'
    for child in killed:
        child.kill()
    assert len(loaders(config)) == 2
    dataset = build(sharing(config))
    assert len(held) == len(left(cache, '.mmdata')) == 1 and held != left(cache, '.mmdata')
    assert len(loaders(config)) == 3 and len(dataset) == 30


def test_errors_reach_all_ranks(config, job, cache, tmp_path):
    (tmp_path / 'go').unlink()
    write(Path(config['ann_file']), [{'name': 'no kind', 'value': 3}])
    children = job(rank(config))
    wait_for(lambda: loaders(config))
    time.sleep(0.3)  # the others are waiting by then, or try for themselves and get the same
    (tmp_path / 'go').touch()
    results = [child.result() for child in children]
    assert {(r['error'], r['text']) for r in results} == {('KeyError', "'kind'")}
    assert left(cache, '.mmdata', '.lock', '.draft', '.note') == []
    assert loaders(config)


def test_what_cannot_be_pickled_stays_with_each_process(config, job, cache, monkeypatch, messages):
    import other_package

    class Opened(other_package.ListDataset):
        def load_data_list(self):
            data = super().load_data_list()
            self.handle = open(self.ann_file)  # noqa: SIM115
            return data

    config['type'] = Opened
    results = [child.result() for child in job(rank(config), 3)]
    assert all(r == results[0] for r in results) and not results[0]['mapped'] and len(loaders(config)) == 3
    np.random.seed(0)
    assert seen(SharedDataset(config)) == {**results[0], 'classes': tuple(results[0]['classes'])}
    assert len(loaders(config)) == 4, 'it is loaded once by each, not once more to be shared'
    text = messages()
    assert all(word in text for word in ('Opened', "'handle'", 'TextIOWrapper', 'own memory')) and text.count('\n') == 0
    assert left(cache, '.mmdata', '.lock', '.draft') == []


def test_what_cannot_be_compared_stays_with_each_process(config, cache, messages):
    import other_package

    class Deep(other_package.ListDataset):
        def __init__(self, **kwargs):
            self.deep = []
            for _ in range(5000):
                self.deep = [self.deep]
            super().__init__(**kwargs)

    dataset = build(sharing({**config, 'type': Deep}))
    assert len(dataset) == 30 and len(loaders(config)) == 1
    text = messages()
    assert all(word in text for word in ('Deep', 'list', 'RecursionError', 'own memory'))


class Refuses:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise LookupError('not here')


def test_what_cannot_be_unpickled_stays_with_each_process(config, cache, messages, monkeypatch):
    import other_package

    class Refusing(other_package.ListDataset):
        def load_data_list(self):
            self.refuses = Refuses()
            return super().load_data_list()

    first, second = (build(sharing({**config, 'type': Refusing})) for _ in range(2))
    assert seen(first) == {**seen(second), 'mapped': True} and len(loaders(config)) == 2
    assert type(second.refuses) is Refuses and not hasattr(second, 'temporary')
    assert 'LookupError: not here' in messages()


def test_items_that_cannot_be_pickled(config, cache, messages):
    """Only without serialization: mmengine's own would refuse them."""
    import other_package

    class Lambdas(other_package.ListDataset):
        def load_data_list(self):
            return [{**info, 'f': lambda: 1} for info in super().load_data_list()]

    dataset = build(sharing({**config, 'type': Lambdas, 'serialize_data': False}))
    assert type(dataset.data_list) is list and len(dataset) == 30
    assert 'item 0' in messages()
    with pytest.raises((AttributeError, TypeError)):
        build(sharing({**config, 'type': Lambdas}))


PLACES = {
    'no folder': lambda patch, path: patch.setenv('MMSHARED_CACHE', '/proc/nothing'),
    'no locks': lambda patch, path: patch.setattr(locks, 'SUPPORTED', False),
    'others may write': lambda patch, path: (path.mkdir(), path.chmod(0o777)),
}


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('persist', [True, False])
def test_where_nothing_can_be_shared_each_process_loads(place, persist, config, job, cache, monkeypatch, messages):
    more = {'persist': True, 'version': '1'} if persist else {}
    with monkeypatch.context() as patch:
        locks.problem.cache_clear()
        PLACES[place](patch, cache)
        results = [child.result() for child in job(rank(config, **more), 2)]
        build(sharing(config, **more))
    locks.problem.cache_clear()
    assert results[0] == results[1] and not results[0]['mapped'] and results[0]['found'] == 30
    assert len(loaders(config)) == 3
    text = messages()
    assert text.count('ListDataset of') == text.count('own memory') == 1
    assert not cache.exists() or left(cache, '.mmdata') == []


def test_persistent_data_are_found_by_later_jobs(config, cache, job, monkeypatch):
    one = {'persist': True, 'version': '1'}
    results = []
    for more, expected in ((one, 1), (one, 1), ({**one, 'version': '2'}, 2), (one, 2), ({}, 3)):
        child = Child(rank(config, seed=len(results), **more))
        results.append(child.result())
        child.wait()
        assert len(loaders(config)) == expected, (more, results)
    assert results[0] == results[1] == results[3] and results[0] != results[2]
    kept = [name for name in left(cache, '.mmdata') if not name.endswith('.job.mmdata')]
    assert len(kept) == 2 and all(name.startswith('ListDataset-') for name in kept)
    assert {r.get('mapped') for r in results} == {True}
    with monkeypatch.context() as other:
        other.chdir(cache)
        child = Child(rank(config, **one))
        child.result(), child.wait()
    assert len(loaders(config)) == 4, 'relative paths mean other files there'


def test_persistent_data_are_listed_and_pruned(config, cache):
    dataset = build(sharing(config, persist=True, version='1'))
    child = Child(rank(config, persist=True, version='2'))
    child.result(), child.wait()
    stores = StoreCache(str(cache))
    found = stores.list(source_of)
    assert sorted(entry.in_use for entry in found) == [False, True]
    assert {entry.source for entry in found} == {f'ListDataset of {config["ann_file"]}'}
    (gone,) = stores.clear()
    assert not gone.in_use and len(left(cache, '.mmdata')) == 1
    del dataset
    gc.collect()
    assert len(stores.clear()) == 1 and left(cache, '.mmdata') == []


@pytest.mark.parametrize('harm', ['torn', 'foreign', 'written by others', 'empty'])
def test_what_may_be_harmful_or_harmed_is_made_anew(harm, config, cache):
    more = {'persist': True, 'version': '1'}
    child = Child(rank(config, **more))
    expected = child.result()
    child.wait()
    (path,) = (cache / name for name in left(cache, '.mmdata'))
    if harm == 'written by others':
        path.chmod(0o666)
    else:
        content = path.read_bytes()
        path.write_bytes({'torn': content[:-10], 'foreign': b'x' * 5000, 'empty': b''}[harm])
    child = Child(rank(config, **more))
    assert child.result() == expected and len(loaders(config)) == 2
    child.wait()
    assert path.stat().st_mode & 0o022 == 0


def test_pickles_of_a_job_that_is_over_say_so(config, cache, tmp_path):
    def leave():
        dataset = build(sharing(config))
        (tmp_path / 'dataset').write_bytes(pickle.dumps(dataset))

    child = Child(leave)
    child.result(), child.wait()
    StoreCache(str(cache)).prune()
    with pytest.raises(CacheError, match='gone with the job'):
        pickle.loads((tmp_path / 'dataset').read_bytes())


def test_lazily_initialised_in_workers(config, job, cache):
    """Who asks first is a worker, of one process without a launcher."""
    dataset = build(sharing({**config, 'lazy_init': True}))
    loader = DataLoader(Subset(dataset, range(30)), num_workers=3, batch_size=5, collate_fn=list)
    assert [item['sample_idx'] for batch in loader for item in batch] == list(range(30))
    assert len(loaders(config)) == 1
