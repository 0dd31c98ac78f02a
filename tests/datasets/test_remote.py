"""Annotation files that mmengine's file backends fetch: once per node and job, and never a stale one."""

from __future__ import annotations

import copy
import http.server
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset

from mmshared.annotations import StoreCache, open_store
from mmshared.datasets import SharedCocoDataset
from mmshared.datasets.remote import FetchError

from .helpers import Child, content, describe, options, stock, write
from .mock_backend import fetches, identity
from .oracle import attempt, compare_datasets, difference

ROOT = Path(__file__).resolve().parents[2]
URI = 'mock://bucket/ann.json'


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The folder that ``mock://`` serves; temporary files go to ``tmp_path / 'tmp'``, so that leftovers are seen."""
    folder = tmp_path / 'server'
    (folder / 'bucket').mkdir(parents=True)
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setenv('MOCK_FOLDER', str(folder))
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path / 'tmp'))
    for name in ('WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID', 'SLURM_STEP_NUM_TASKS'):
        monkeypatch.delenv(name, raising=False)
    write(folder / 'bucket' / 'ann.json', content())
    return folder


@pytest.fixture
def make(tmp_path):
    """A function that makes a dataset with this test's cache."""

    def make(file=URI, **more):
        return SharedCocoDataset(ann_file=file, cache_dir=str(tmp_path / 'cache'), **options(**more))

    return make


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """A function that starts ``action`` in so many processes of one job, and returns their results when all have one.

    Like ranks in training they live until then.
    """
    monkeypatch.setenv('WORLD_SIZE', '8')
    monkeypatch.setenv('MASTER_ADDR', '127.0.0.1')
    monkeypatch.setenv('MASTER_PORT', '29500')
    stay = tmp_path / 'stay'

    def run(action, count):
        stay.touch()
        children = [Child(action, stay) for _ in range(count)]
        try:
            return [child.result() for child in children]
        finally:
            stay.unlink()
            for child in children:
                child.wait()

    return run


def job(action):
    """``action()`` in a process that is a job of its own."""
    child = Child(action)
    result = child.result()
    child.wait()
    return result


def leftovers(tmp_path):
    """Names of all temporary things that a fetch or a build may leave."""
    cache = tmp_path / 'cache'
    found = [p.name for p in cache.iterdir() if p.suffix in ('.draft', '.lock')] if cache.exists() else []
    return found + os.listdir(tmp_path / 'tmp')


STYLES = {
    'prefix': (URI, {}),
    'prefix and arguments': ('mock://ann.json', {'backend_args': {'bucket': 'bucket'}}),
    'backend': (URI, {'backend_args': {'backend': 'mock'}}),
    'backend and arguments': ('mock://ann.json', {'backend_args': {'backend': 'mock', 'bucket': 'bucket'}}),
    'data_root': ('ann.json', {'data_root': 'mock://bucket'}),
    'cluster': ('cluster:mock://bucket/ann.json', {}),
}


@pytest.mark.parametrize('style', STYLES)
def test_parity_with_stock_however_the_address_is_given(style, server, make, tmp_path):
    uri, more = STYLES[style]
    for extra in ({}, {'filter_cfg': {'filter_empty_gt': True}, 'serialize_data': False}):
        assert compare_datasets(stock(uri, **more, **extra), make(uri, **more, **extra)) is None
    assert fetches(server) == [os.getpid()] * 3, 'stock fetches each time, this once'
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    'backend_args', [None, {}, {'backend': 'local'}, {'backend': 'other-local'}], ids=['none', 'empty', 'local', 'own']
)
@pytest.mark.parametrize('kind', [str, Path])
def test_a_local_file_is_read_where_it_is(backend_args, kind, make, tmp_path):
    file = write(tmp_path / 'local.json', content())
    b = make(kind(file), backend_args=backend_args)
    assert compare_datasets(stock(kind(file), backend_args=backend_args), b) is None
    assert b._store.path == open_store(file, str(tmp_path / 'cache')).path


def test_arguments_stock_rejects(server, make, tmp_path):
    file = write(tmp_path / 'local.json', content())
    for uri, backend_args in (
        (file, {'no': 'such'}),
        (file, {'backend': 'no such'}),
        ('nosuch://bucket/ann.json', None),
        (URI, {'no': 'such'}),
        (URI, {'bucket': object()}),
        ('mock://bucket://ann.json', None),
        ('', None),
    ):
        a, b = (attempt(lambda f=f, u=uri, args=backend_args: f(u, backend_args=args)) for f in (stock, make))
        assert isinstance(a, Exception), (uri, backend_args)
        assert isinstance(b, (FetchError, type(a))) and (uri in str(b) or uri == file), b
    assert leftovers(tmp_path) == []


def test_copies_and_workers_do_not_fetch(server, make):
    dataset = make()
    expected = [dataset.get_data_info(i) for i in range(len(dataset))]
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset), dataset.get_subset(12)):
        assert difference(expected, [other.get_data_info(i) for i in range(12)]) is None
    # Children of this process belong to its job: they map what it fetched, also those who load only then.
    for context, datasets in (('spawn', [dataset, make(lazy_init=True)]), ('fork', [make(lazy_init=True)])):
        loader = DataLoader(
            ConcatDataset([Subset(d, range(12)) for d in datasets]),
            batch_size=4,
            num_workers=1,
            multiprocessing_context=context,
            collate_fn=identity,
        )
        assert difference(expected * len(datasets), [item for batch in loader for item in batch]) is None
    assert fetches(server) == [os.getpid()]


def test_one_fetch_for_eight_ranks(server, make, ranks):
    results = ranks(lambda: describe(make()), 8)
    assert results == [results[0]] * 8
    assert results[0]['digest'] == describe(make())['digest']
    processes = fetches(server)
    assert len(processes) == 2 and processes[1] == os.getpid(), 'this process is not one of the job, which is over'


def test_one_fetch_for_eight_ranks_of_torchrun(server, tmp_path, unused_port):
    out = tmp_path / 'out'
    out.mkdir()
    run = [sys.executable, '-m', 'torch.distributed.run', '--nproc-per-node=8', f'--master-port={unused_port}']
    worker = [str(ROOT / 'tests' / 'datasets' / 'remote_worker.py'), URI, str(tmp_path / 'cache'), str(out)]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'TMPDIR': str(tmp_path / 'tmp')}
    done = subprocess.run(run + worker, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads((out / f'{rank}.json').read_text()) for rank in range(8)]
    assert results == [results[0]] * 8 and results[0]['count'] == 12
    assert len(fetches(server)) == 1
    assert fetches(server, 'made') == fetches(server), 'the others do not touch the backend'


def test_a_later_job_fetches_again_and_parses_what_is_new(server, make, tmp_path):
    first = job(lambda: describe(make()))
    assert job(lambda: describe(make())) == first, 'same bytes: the same store'
    write(server / 'bucket' / 'ann.json', content(seed=1))
    second = job(lambda: describe(make()))
    assert second['digest'] != first['digest'] and second['inode'] != first['inode']
    assert compare_datasets(stock(URI), make()) is None
    assert len(set(fetches(server))) == 4, 'each job fetched'
    assert len([p for p in (tmp_path / 'cache').iterdir() if p.suffix == '.note']) == 1, 'that of this process'


def test_a_later_job_with_the_same_launcher_variables_is_another_job(server, make, ranks):
    first = ranks(lambda: describe(make()), 2)
    write(server / 'bucket' / 'ann.json', content(seed=1))
    second = ranks(lambda: describe(make()), 2)
    assert first[0]['digest'] != second[0]['digest'] and first[0] == first[1] and second[0] == second[1]
    assert len(fetches(server)) == 2


def test_within_a_job_all_see_one_content(server, make):
    a = make()
    write(server / 'bucket' / 'ann.json', content(seed=1))
    assert describe(make()) == describe(a)
    assert len(fetches(server)) == 1


def test_a_store_that_was_removed_is_fetched_again(server, make, tmp_path):
    first = describe(make())
    assert len(StoreCache(str(tmp_path / 'cache')).clear()) == 1
    second = describe(make())
    assert second['digest'] == first['digest'] and len(fetches(server)) == 2


def test_notes_of_dead_jobs_go(server, make, tmp_path):
    job(lambda: describe(make()))
    notes = [p for p in (tmp_path / 'cache').iterdir() if p.suffix == '.note']
    assert len(notes) == 1
    StoreCache(str(tmp_path / 'cache')).prune()
    assert not notes[0].exists()


@pytest.fixture
def web():
    """The address of a real HTTP server whose ``/ann.json`` is good; all else is 404."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            data = json.dumps(content()).encode()
            if self.path != '/ann.json':
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header('Content-Length', str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{running.server_port}'
        running.shutdown()


def test_http(web, server, make, tmp_path):
    assert compare_datasets(stock(f'{web}/ann.json'), make(f'{web}/ann.json')) is None
    assert leftovers(tmp_path) == []


def test_a_failing_fetch_fails_on_every_rank(web, server, make, ranks, tmp_path):
    for uri, backend_args, cause, text in (
        (f'{web}/missing.json', None, 'HTTPError', '404'),
        ('mock://bucket/missing.json', None, 'FileNotFoundError', 'No such file'),
        ('s3://bucket/ann.json', None, 'ImportError', 'petrel_client'),
        ('s3://bucket/ann.json', {'backend': 'petrel'}, 'ImportError', 'petrel_client'),
    ):
        results = ranks(lambda uri=uri, args=backend_args: describe(make(uri, backend_args=args)), 4)
        assert {r['error'] for r in results} == {'FetchError'}, results
        assert all(uri in r['text'] and text in r['text'] and cause in r['text'] for r in results)
        assert len({r['text'] for r in results}) == 1
        assert cause in {r['cause'] for r in results}, "whoever fetched has the backend's own exception"
    assert leftovers(tmp_path) == [] and list((tmp_path / 'cache').iterdir()) == []


def test_a_bad_file_is_rejected_by_every_rank(server, make, ranks, tmp_path):
    data = content()
    del data['annotations'][17]['area']
    write(server / 'bucket' / 'ann.json', data)
    results = ranks(lambda: describe(make()), 4)
    assert {r['error'] for r in results} == {'AnnotationFileError'}
    assert all(URI in r['text'] and 'annotations[17]' in r['text'] for r in results)
    assert leftovers(tmp_path) == [] and list((tmp_path / 'cache').iterdir()) == []


def test_another_rank_takes_over_when_the_fetcher_is_killed(server, make, ranks, tmp_path):
    (server / 'stall').touch()
    children = [Child(lambda: describe(make())) for _ in range(3)]
    end = time.monotonic() + 60
    while not fetches(server, 'half') and time.monotonic() < end:
        time.sleep(0.02)
    (victim,) = fetches(server, 'half')
    (half,) = [p for p in (tmp_path / 'cache').rglob('*') if p.parent.suffix == '.draft']
    next(child for child in children if child.pid == victim).kill()
    (server / 'stall').unlink()
    others = [child for child in children if child.pid != victim]
    results = [child.result() for child in others]
    for child in others:
        child.wait()
    assert results[0] == results[1] and results[0]['count'] == 12
    assert fetches(server)[0] == victim and set(fetches(server)[1:]) <= {child.pid for child in others}
    assert not half.exists() and leftovers(tmp_path) == []
