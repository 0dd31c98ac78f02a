"""What a process finds out for its job: who belongs to it, how long it is valid, and what a killed one leaves."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from cache_helpers import job_key_alone, mount, names, needs_root, run_child

from mmshared.annotations.cache import CacheSpaceError, StoreCache, locks, tempfiles_in
from mmshared.annotations.cache.job import job_key
from mmshared.annotations.cache.workplace import workplace

LAUNCHERS = {
    'torchrun': {'WORLD_SIZE': '8', 'TORCHELASTIC_RUN_ID': 'none', 'MASTER_ADDR': 'a', 'MASTER_PORT': '29500'},
    'slurm': {'SLURM_STEP_NUM_TASKS': '8', 'SLURM_JOB_ID': '17', 'SLURM_STEP_ID': '0'},
    'mpi': {'OMPI_COMM_WORLD_SIZE': '8', 'PMIX_NAMESPACE': '123'},
    'other': {'WORLD_SIZE': '8', 'MASTER_ADDR': 'a', 'MASTER_PORT': '29500'},
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in {name for variables in LAUNCHERS.values() for name in variables}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize('launcher', LAUNCHERS)
def test_ranks_of_a_launcher_are_one_job(launcher, monkeypatch):
    alone = job_key()
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    together = job_key()
    assert run_child(job_key) == together != alone
    size, *rest = LAUNCHERS[launcher]
    for name in rest:
        with monkeypatch.context() as other:
            other.setenv(name, 'other')
            assert job_key() != together, name
    for value in ('1', '', 'x'):
        monkeypatch.setenv(size, value)
        assert job_key() == alone, 'one process needs no launcher: an interactive shell of Slurm is no job'


def test_processes_without_a_launcher_are_jobs_of_their_own():
    assert len({job_key(), run_child(job_key), run_child(job_key)}) == 3


@pytest.mark.parametrize('context', ['fork', 'spawn', 'forkserver'])
def test_children_of_multiprocessing_belong_to_their_parent(context):
    with multiprocessing.get_context(context).Pool(1) as pool:
        assert pool.apply(job_key_alone) == job_key()


def ask(folder, text='found'):
    """The text that the job of this process has, and whether it had to be made."""
    made = []

    def make(place):
        made.append(text)
        return text, text

    return [StoreCache(folder).once_per_job('key', 'label', make, lambda known: known), bool(made)]


def test_a_note_lives_as_long_as_its_job(tmp_path):
    assert ask(tmp_path, 'a') == ['a', True] and ask(tmp_path, 'b') == ['a', False]
    assert run_child(lambda: ask(tmp_path, 'c')) == ['c', True]
    assert run_child(lambda: ask(tmp_path, 'd')) == ['d', True]
    assert ask(tmp_path, 'e') == ['a', False]
    StoreCache(tmp_path).prune()
    assert len(names(tmp_path)) == 1 and ask(tmp_path, 'f') == ['a', False], 'this job lives'


def test_the_next_job_of_the_same_launcher_variables_asks_anew(tmp_path, monkeypatch):
    for name, value in LAUNCHERS['torchrun'].items():
        monkeypatch.setenv(name, value)
    assert run_child(lambda: ask(tmp_path, 'a')) == ['a', True]
    assert run_child(lambda: ask(tmp_path, 'b')) == ['b', True]
    assert ask(tmp_path, 'c') == ['c', True]
    assert run_child(lambda: ask(tmp_path, 'd')) == ['c', False], 'one that runs at the same time'


@pytest.mark.skipif(not os.path.isdir('/proc/self/fd'), reason='open files are looked up in /proc')
def test_a_worker_that_outlives_its_trainer_does_not_keep_the_note(tmp_path):
    def open_notes():
        paths = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]
        return [os.readlink(path) for path in paths if os.path.exists(path) and os.readlink(path).endswith('.note')]

    ask(tmp_path)
    assert str(tmp_path / names(tmp_path)[0]) in open_notes()
    assert run_child(open_notes) == []


def test_what_cannot_be_used_any_more_is_made_anew(tmp_path):
    cache, made = StoreCache(tmp_path), []

    def make(place):
        made.append(place)
        return f'text {len(made)}', 'result'

    assert cache.once_per_job('key', 'label', make, lambda text: None) == 'result'
    assert cache.once_per_job('key', 'label', make, lambda text: None) == 'result'
    assert cache.once_per_job('key', 'label', make, lambda text: text) == 'text 2'
    assert cache.once_per_job('other', 'label', make, lambda text: text) == 'result'
    assert len(made) == 3 and not any(place.exists() for place in made)


def test_without_locks_each_process_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, 'SUPPORTED', False)
    locks.problem.cache_clear()
    try:
        assert ask(tmp_path, 'a') == ['a', True] and ask(tmp_path, 'b') == ['b', True]
        assert names(tmp_path) == []
    finally:
        locks.problem.cache_clear()


def test_temporary_files_of_a_killed_process_go(tmp_path):
    def killed():
        with workplace(tmp_path) as place, tempfiles_in(place):
            tempfile.NamedTemporaryFile(delete=False).write(b'half')  # noqa: SIM115
            Path(tempfile.mkdtemp(), 'file').write_text('deep')
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            killed()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (left,) = names(tmp_path)
    assert len(os.listdir(tmp_path / left)) == 2
    with workplace(tmp_path) as mine:
        assert ask(tmp_path) == ['found', True]
        assert not (tmp_path / left).exists() and mine.exists(), 'the workplace of a living process stays'
    assert [name for name in names(tmp_path) if not name.endswith('.note')] == []


def test_files_of_another_thread_stay_until_the_process_ends(tmp_path):
    def leaves():
        with workplace(tmp_path) as place, tempfiles_in(place):
            file = tempfile.mkstemp()[1]
        StoreCache(tmp_path).prune()
        return os.path.exists(file) and Path(tempfile.mkdtemp()).parent != place

    before = tempfile.tempdir
    tempfile.tempdir = os.fspath(tmp_path / 'usual')
    os.mkdir(tempfile.tempdir)
    try:
        assert run_child(leaves) is True
        assert tempfile.tempdir == os.fspath(tmp_path / 'usual')
    finally:
        tempfile.tempdir = before
    StoreCache(tmp_path).prune()
    assert names(tmp_path) == ['usual']


@needs_root
def test_a_full_disk_is_named(tmp_path):
    folder = tmp_path / 'small'

    def make(place):
        with tempfiles_in(place), tempfile.NamedTemporaryFile() as file:
            file.write(b'x' * 10**6)
        return '', ''

    mount(folder, 'size=256k')
    try:
        with pytest.raises(CacheSpaceError) as caught:
            StoreCache(folder).once_per_job('key', 'mock://bucket/ann.json', make, lambda text: text)
        assert caught.value.__cause__.errno == errno.ENOSPC
        assert os.fspath(folder) in str(caught.value) and 'mock://bucket/ann.json' in str(caught.value)
        assert names(folder) == []
    finally:
        subprocess.run(['umount', os.fspath(folder)], check=True)
