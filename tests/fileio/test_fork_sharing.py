"""One archive, many processes: a handle that they share reads wrong bytes; ``RecordBackend`` never does."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmshared.fileio.record_backend import RecordBackend

from . import fork_jobs
from .fork_jobs import (
    DATA_ROOT,
    PATIENCE,
    Brought,
    Numbers,
    Record,
    SharedDescriptor,
    SharedFile,
    SharedTar,
    SharedZip,
    Workers,
    all_done,
    epochs,
    read_many,
    seek_then_read,
    wrong,
)
from .known_archives import KINDS, backend_args, content_of, name_of, write_archive

WORKERS, READS, ENTRIES = 8, 100_000, 2000
METHODS = ('fork', 'spawn', 'forkserver')
NAIVE = {
    'descriptor': ('tar', SharedDescriptor),
    'file object': ('tar', SharedFile),
    'tarfile': ('tar', SharedTar),
    'zipfile': ('zip', SharedZip),
}


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    """One of each kind, and a cache."""
    folder = tmp_path_factory.mktemp('archives')
    return {kind: write_archive(folder, kind, ENTRIES) for kind in KINDS}, folder / 'cache'


@pytest.fixture(scope='module')
def arguments(archives):
    """``backend_args``, by kind."""
    paths, cache = archives
    return {kind: backend_args(paths[kind], cache) for kind in KINDS}


def backend(arguments):
    """The backend of these arguments."""
    return RecordBackend(**{key: value for key, value in arguments.items() if key != 'backend'})


def wrong_reads(reader, reads=READS):
    """What is wrong with reads at random by forked workers that have the handle of this process."""
    assert not wrong(reader.read, 7)
    stop = multiprocessing.get_context('fork').Event()
    each = [(reader, ENTRIES, reads // WORKERS, seed, stop) for seed in range(WORKERS)]
    return [text for found in all_done('fork', read_many, each) for text in found]


# ---- a handle for all
@pytest.mark.parametrize('way', NAIVE)
def test_a_shared_handle_reads_wrong_bytes(way, archives):
    """As soon as two workers are between ``seek`` and ``read`` at once: far fewer reads than these are enough."""
    kind, reader = NAIVE[way]
    assert wrong_reads(reader(archives[0][kind]), 100 * READS)


@pytest.mark.parametrize('way', ['descriptor', 'file object'])
def test_a_shared_offset_is_where_the_last_seek_went(way, archives):
    """The same, not left to chance: two go to their entries, and only then do they read."""
    reader = NAIVE[way][1](archives[0]['tar'])
    barrier = multiprocessing.get_context('fork').Barrier(2)
    results = all_done('fork', seek_then_read, [(reader, number, barrier) for number in (100, 1900)])
    assert any('not those of the entry' in text for found in results for text in found)


# ---- RecordBackend
@pytest.mark.parametrize('kind', KINDS)
def test_record_backend_reads_what_is_there(kind, arguments):
    assert wrong_reads(Record(arguments[kind])) == []


@pytest.mark.filterwarnings('ignore:This DataLoader will create')
@pytest.mark.parametrize('method', METHODS)
def test_persistent_workers(method, arguments):
    """Epoch after epoch, all formats in each worker, by ``backend_args`` and by backends that the dataset brings."""
    if method == 'forkserver':
        multiprocessing.get_context(method).set_forkserver_preload([fork_jobs.__name__])
    readers = [Record(one) for one in arguments.values()] + [Brought(backend(one)) for one in arguments.values()]
    dataset = Numbers(readers, ENTRIES)
    assert not [text for _, text in map(dataset.__getitem__, range(0, len(dataset), 97)) if text]
    reads, workers, found = epochs(dataset, WORKERS, READS, method)
    assert found == [] and workers == WORKERS and reads >= READS


@pytest.mark.parametrize('kind', KINDS)
def test_a_handle_travels_by_its_arguments(kind, arguments):
    used = backend(arguments[kind])
    assert used.get(DATA_ROOT + name_of(5)) == content_of(5)
    sent = pickle.dumps(used)
    assert len(sent) < 1000 + len(pickle.dumps(arguments[kind]))
    again = pickle.loads(sent)
    assert (again.get(DATA_ROOT + name_of(6)), used.get(DATA_ROOT + name_of(6))) == (content_of(6),) * 2


@pytest.mark.parametrize('kind', KINDS)
def test_a_thread_reads_while_workers_fork(kind, arguments):
    """A fork copies the locks and descriptors of the moment; whatever it meets, the child reads its own."""
    reader, stop, found = Record(arguments[kind]), threading.Event(), []
    never = multiprocessing.get_context('fork').Event()

    def read_on(seed):
        while not stop.is_set():
            found.extend(read_many(reader, ENTRIES, 100, seed, never))

    threads = [threading.Thread(target=read_on, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(5):
            each = [(reader, ENTRIES, 100, 10 * turn + seed, never) for seed in range(WORKERS)]
            found += [text for some in all_done('fork', read_many, each) for text in some]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert found == [] and not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize('kind', KINDS)
def test_workers_fork_while_the_archive_is_opened(kind, archives, tmp_path):
    """The first read builds the index, under locks of the cache; a worker of that moment builds or waits, and reads."""
    met = 0
    for turn in range(12):
        reader = Record(backend_args(archives[0][kind], tmp_path / f'cache{turn}'))
        found, never = [], multiprocessing.get_context('fork').Event()
        opening = threading.Thread(target=lambda: found.append(wrong(reader.read, 3)))  # noqa: B023
        opening.start()
        with Workers('fork', read_many, [(reader, ENTRIES, 20, turn, never)]) as workers:
            met += opening.is_alive()
            assert workers.results() == [[]]
        opening.join(PATIENCE)
        assert not opening.is_alive() and found == [None]
    assert met, 'no fork came before the archive was open: this shows nothing'


def test_two_jobs_at_once(arguments, archives, repo, tmp_path):
    """Two groups of ranks that know nothing of each other, with workers, and no index yet."""
    settings = {
        'archives': [{**one, 'cache_dir': str(tmp_path / 'cache')} for one in arguments.values()],
        'entries': ENTRIES,
        'workers': 2,
        'reads': READS // 4,
    }
    environment = {**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', '-m']
    command += [fork_jobs.__name__, json.dumps(settings)]
    outs = [tmp_path / f'job{number}' for number in range(2)]
    jobs = []
    for out in outs:
        out.mkdir()
        with open(out / 'log', 'wb') as log:
            jobs.append(
                subprocess.Popen([*command, str(out)], cwd=repo, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
    try:
        ends = [job.wait(2 * PATIENCE) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    assert ends == [0, 0], [Path(out, 'log').read_text()[-4000:] for out in outs]
    for out in outs:
        for rank in range(2):
            reads, workers, found = json.loads((out / f'{rank}.json').read_text())
            assert found == [] and workers == 2 and reads >= READS // 4
