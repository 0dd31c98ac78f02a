"""Few descriptors, a small /dev/shm, no memfd_create, files deleted underneath, signals, and thousands of batches."""

from __future__ import annotations

import copy
import errno
import gc
import multiprocessing
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any, Dict, Iterable, List

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from torch.utils.data import IterableDataset

from mmshared.parallel import SharedMemoryError, packed_collate
from mmshared.parallel import batch as of_batch

from .hand_jobs import (
    BIG,
    SMALL,
    Numbers,
    can_forbid,
    descriptors,
    environment,
    failure,
    forbid_memfd,
    in_process,
    is_alive,
    is_intact,
    loader,
    of_batches,
    pieces,
    resident,
    small_shm,
    take,
    until,
    workers,
)

# Descriptors


class Files(Numbers):
    """Whose samples are in files, as a rule."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        with open('/proc/self/stat') as file:
            file.read()
        return super().__getitem__(index)


def hold(count: int, collate: Any) -> None:
    """Hold so many batches with 256 descriptors, while as many more pass; batches are of eight tensors or more.

    A new interpreter has some ten of these. What this process has from the tests before does not count.
    """
    torch.multiprocessing.set_sharing_strategy('file_descriptor')
    allowed = 246 + len(descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    batches = iter(loader(dataset=Files(100_000), batch_size=4, collate_fn=collate, num_workers=2))
    take(batches, 4)
    opened, held = len(descriptors()), []
    for _ in range(count):
        held.append(next(batches))
        if collate is packed_collate:
            assert len(descriptors()) <= opened
            assert len(pieces()) <= len(held) + 10
    opened = [len(of_batches(descriptors(pid))) for pid in workers()]
    assert len(held) > 256 or sum(opened) >= count and max(opened) <= count / 2 + 10
    take(batches, count)
    assert all(map(is_intact, held))
    held.clear()
    take(batches, 100)
    assert len(pieces()) <= 10


@pytest.mark.parametrize('count', [64, 300])
def test_many_batches_are_held_with_few_descriptors(count):
    """Each takes one piece of memory, and no descriptor here; when the worker has few left, none."""
    in_process(hold, count, packed_collate)


def test_stock_cannot_hold_64():
    with pytest.raises(AssertionError, match='Too many open files'):
        in_process(hold, 64, pseudo_collate)


# /dev/shm and memfd_create


def in_small_shm(function: Any, *arguments: Any) -> Any:
    """:func:`in_process` with 64 MB in /dev/shm."""

    def job() -> Any:
        try:
            small_shm(64)
        except PermissionError as error:
            return error
        torch.multiprocessing.set_sharing_strategy('file_descriptor')
        return function(*arguments)

    result = in_process(job)
    if isinstance(result, PermissionError):
        pytest.skip(f'a small /dev/shm cannot be mounted here: {result}')
    return result


LARGE = 2_500_000  # a batch of 20 MB, and as much in masks


def used() -> int:
    """Megabytes in /dev/shm: semaphores do not count."""
    space = os.statvfs('/dev/shm')
    return (space.f_blocks - space.f_bfree) * space.f_frsize >> 20


def test_a_small_shm_does_not_matter():
    def job() -> None:
        batches = iter(loader(sizes=[LARGE]))
        held = []
        for _ in range(10):
            held = [*held[-4:], next(batches)]
            assert not used()
        assert all(map(is_intact, held))
        assert sum(len(image) * 8 for batch in held for image in batch['image']) > 64e6

    in_small_shm(job)


@can_forbid
@pytest.mark.parametrize('number', [errno.EPERM, errno.ENOSYS], ids=['EPERM', 'ENOSYS'])
def test_without_memfd_create_a_small_shm_is_used_and_nothing_is_left(number):
    def iterate(ready: Any) -> None:
        held: List[Any] = []
        for batch in loader(sizes=[BIG, SMALL, 2 * BIG]):
            held = [*held[-2:], batch]
            assert all(map(is_intact, held))
            if batch['index'][0] == 40:
                ready.set()

    def job() -> None:
        forbid_memfd(number)
        context = multiprocessing.get_context('fork')
        ready = context.Event()
        main = context.Process(target=iterate, args=(ready,))
        main.start()
        assert ready.wait(60)
        assert used() > 0 and not os.listdir('/dev/shm')
        with open(f'/proc/{main.pid}/task/{main.pid}/children') as file:
            (worker,) = map(int, file.read().split())
        assert all('/dev/shm/#' in piece.name for piece in pieces(main.pid)) and pieces(main.pid)
        main.kill()
        main.join()
        assert until(lambda: not is_alive(worker))
        assert until(lambda: not used()) and not os.listdir('/dev/shm')

    in_small_shm(job)


@can_forbid
def test_where_no_file_can_be_made_batches_travel_in_messages():
    def job() -> None:
        forbid_memfd(errno.EPERM)
        os.open = _refuses_shm(os.open)
        held = []
        for one in loader(60, sizes=[BIG, 10 * BIG]):
            held.append(one)
            assert all(map(is_intact, held)) and not pieces()
        assert len(held) == 30

    in_process(job)


def _refuses_shm(stock: Any) -> Any:
    """``os.open`` for a /dev/shm in which no file without a name can be made, as on some file systems."""

    def refuse(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return stock(path, flags, *arguments, **options)

    return refuse


@can_forbid
def test_too_small_a_shm_is_an_error_that_says_so():
    """Neither the end of a process that writes where nothing is, nor waiting."""

    def job() -> str:
        forbid_memfd(errno.EPERM)
        batches, held = iter(loader(sizes=[LARGE])), []
        with pytest.raises(SharedMemoryError) as caught:
            while True:
                held.append(next(batches))
        assert held and all(map(is_intact, held))
        text = str(caught.value)
        del caught, batches
        assert used() and not os.listdir('/dev/shm')
        held.clear()
        gc.collect()  # the error and its traceback
        assert until(lambda: not used())
        take(iter(loader(sizes=[BIG])), 20)  # for which there is room
        return text

    text = in_small_shm(job)
    numbers = re.search(
        r'A batch takes (\d+\.\d) MB of shared memory, and /dev/shm has (\d+\.\d) MB left of 67\.1 MB', text
    )
    assert numbers, text
    needed, left = map(float, numbers.groups())
    assert 40 < needed < 50 and left < needed
    for advice in ('--shm-size', 'medium: Memory', 'num_workers', 'prefetch_factor', 'memfd_create'):
        assert advice in text


def test_without_anything_that_is_needed_batches_travel_in_messages():
    def job() -> None:
        of_batch.HAS_MEMORY_WITHOUT_NAMES = False
        held = []
        for one in loader(60, sizes=[BIG, 10 * BIG]):
            held.append(one)
            assert all(map(is_intact, held)) and not pieces()
        assert len(held) == 30

    in_process(job)


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root, to become somebody else')
def test_processes_that_may_not_look_into_each_other():
    """Who was an administrator before is closed to other processes of the same user."""

    def job() -> str:
        os.setgid(65534)
        os.setuid(65534)
        return failure(lambda: next(iter(loader())))

    text = in_process(job)
    assert text.startswith('SharedMemoryError: ') and 'Permission denied' in text and 'both must have one user' in text


# What is not packed


class Sparse(Numbers):
    """With a tensor that PyTorch sends by itself."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return dict(super().__getitem__(index), sparse=torch.eye(4).mul(index + 1).to_sparse())


@pytest.mark.parametrize('strategy', ['file_descriptor', 'file_system'])
def test_tensors_that_are_not_packed(strategy):
    def job() -> None:
        torch.multiprocessing.set_sharing_strategy(strategy)
        for unpacked in (True, False):
            batches = iter(loader(dataset=Sparse(100), collate_fn=partial(packed_collate, unpacked=unpacked)))
            held = [next(batches) for _ in range(20)]
            del batches
            for batch in held:
                whole = batch if unpacked else batch.unpack()
                assert is_intact(whole)
                for sparse, index in zip(whole['sparse'], whole['index']):
                    assert torch.equal(sparse.to_dense(), torch.eye(4) * (index + 1))

    in_process(job)


@pytest.mark.parametrize('unpacked', [True, False])
def test_a_file_of_pytorch_that_is_deleted_underneath(unpacked):
    """As systemd does when a user logs out."""

    def job() -> None:
        torch.multiprocessing.set_sharing_strategy('file_system')
        batches = iter(loader(dataset=Sparse(100), collate_fn=partial(packed_collate, unpacked=unpacked)))
        (worker,) = workers()
        names = []
        assert until(batches._worker_result_queue._reader.poll)
        for name in os.listdir('/dev/shm'):
            if name.startswith(f'torch_{worker}_'):
                os.remove(f'/dev/shm/{name}')
                names.append(name)
        assert names
        with pytest.raises(SharedMemoryError, match='RemoveIPC=no in /etc/systemd/logind.conf') as caught:
            for _ in range(3):
                next(batches)
        assert any(name in str(caught.value) for name in names)

    in_process(job)


class Bad:
    """Cannot be read."""

    def __reduce__(self) -> Any:
        return fail, ('no such thing',)


def fail(text: str) -> None:
    raise RuntimeError(text)


def test_other_errors_of_reading_a_batch_are_themselves():
    def job() -> None:
        for collate in (pseudo_collate, packed_collate):
            batches = iter(
                loader(collate_fn=lambda samples, collate=collate: collate([*samples, {**samples[0], 'index': Bad()}]))
            )
            assert failure(lambda batches=batches: next(batches)) == 'RuntimeError: no such thing'
            del batches
        assert not pieces()

    in_process(job)


# What cannot be done with a packed batch


class Nested(IterableDataset):
    """Has a loader of its own in the worker, as some have for hard examples."""

    def __init__(self, look: Any) -> None:
        self.look = look

    def __iter__(self) -> Iterable[Any]:
        return map(self.look, loader(10, num_workers=0))


LOOKS = {
    'item': lambda batch: batch['image'],
    'iteration': lambda batch: [*batch],
    'length': len,
    'copy': copy.copy,
    'deep copy': copy.deepcopy,
    'pickle': pickle.dumps,
}


def test_a_packed_batch_in_a_worker_says_what_can_be_done_with_it():
    def look(batch: Any) -> Dict[str, Any]:
        return {name: failure(partial(look, batch)) for name, look in LOOKS.items()}

    texts = next(iter(loader(dataset=Nested(look), batch_size=None, collate_fn=None)))
    for name, text in texts.items():
        assert text.startswith('TypeError: ') and "'pseudo_collate' or 'default_collate'" in text, name
        assert ('only go from a worker to the main process' in text) is (name in ('copy', 'deep copy', 'pickle'))


def test_a_packed_batch_that_is_a_sample_of_another_one():
    stream = loader(dataset=Nested(lambda batch: batch), batch_size=2, collate_fn=packed_collate)
    assert [[is_intact(batch) for batch in batches] for batches in stream] == [[True, True], [True, True], [True]]


# Arguments and signals


def mark(worker: int) -> None:
    os.environ['MARK'] = str(worker)


class Slow(Numbers):
    """Of which one takes long."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        if index == 20:
            time.sleep(60)
        return dict(super().__getitem__(index), mark=os.environ['MARK'])


def test_worker_init_fn_and_timeout():
    def job() -> None:
        batches = iter(loader(dataset=Slow(100), worker_init_fn=mark, timeout=2, num_workers=2))
        held = [next(batches) for _ in range(10)]
        with pytest.raises(RuntimeError, match='timed out after 2'):
            next(batches)
        assert all(map(is_intact, held))
        assert [batch['mark'][0] for batch in held] == ['0', '1'] * 5

    in_process(job)


SCRIPT = """
import os
from tests.parallel.hand_jobs import *
held, batches = [], iter(loader(num_workers=2, sizes=[BIG, SMALL], persistent_workers=True))
print(*workers(), flush=True)
for number, batch in enumerate(batches):
    held = [*held[-5:], batch]
    if number == 50:
        print('going', flush=True)
"""


def test_ctrl_c(repo):
    """As at a terminal: all processes get it."""
    job = subprocess.Popen(
        [sys.executable, '-c', SCRIPT],
        cwd=repo,
        env=environment(repo),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )
    try:
        pids = [int(pid) for pid in job.stdout.readline().split()]
        assert job.stdout.readline() == 'going\n' and len(pids) == 2
        os.killpg(job.pid, signal.SIGINT)
        _, errors = job.communicate(timeout=60)
        assert job.returncode != 0 and errors.rstrip().endswith('KeyboardInterrupt'), errors
        assert until(lambda: not any(map(is_alive, pids)), 20)
        assert not [name for name in os.listdir('/dev/shm') for pid in [job.pid, *pids] if f'_{pid}_' in name]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)


def test_batches_that_outlive_the_interpreter(repo):
    """Wherever they are kept, the end is silent."""
    script = """
import builtins, json, sys
from functools import partial
from tests.parallel.hand_jobs import *
print('imported', file=sys.stderr)
batches = iter(loader(persistent_workers=True))
kept = builtins.kept = next(batches)
json.kept = sys.kept = next(batches)['masks']
workers.kept = [next(batches)]
workers.kept.append(workers.kept)
torch.kept = loader(collate_fn=partial(packed_collate, unpacked=False))
torch.kept_too = next(iter(torch.kept))
"""
    done = subprocess.run(
        [sys.executable, '-c', script], env=environment(repo), cwd=repo, capture_output=True, text=True, timeout=100
    )
    said = done.stderr.split('imported\n')  # OneDL's stack has something to say before
    assert (done.returncode, said[1:]) == (0, [''])


# Much


def test_thousands_of_batches():
    def job() -> None:
        batches = iter(loader(num_workers=2, sizes=[SMALL, BIG, BIG // 2, SMALL, SMALL], batch_size=1))

        def state() -> List[List[int]]:
            pids = [os.getpid(), *workers()]
            return [[resident(pid), len(descriptors(pid)), len(pieces(pid))] for pid in pids]

        take(batches, 500)
        before = state()
        take(batches, 2500)
        for (memory, *numbers), (memory_before, *numbers_before) in zip(state(), before):
            assert memory <= memory_before + (8 << 20)
            assert all(number <= number_before + 4 for number, number_before in zip(numbers, numbers_before))

    in_process(job)


def available() -> int:
    with open('/proc/meminfo') as file:
        (line,) = [line for line in file if line.startswith('MemAvailable')]
    return int(line.split()[1]) << 10


class Huge:
    """One sample with an array and a tensor of more than 2 GB together, most of it zeros."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Dict[str, Any]:
        array, tensor = np.zeros((1 << 31) + 5, np.uint8), torch.zeros(1 << 20)
        array[-1] = array[1 << 30] = tensor[-1] = 7
        return dict(array=array, tensor=tensor)


@pytest.mark.skipif(available() < 8 << 30, reason='needs 8 GB of memory')
def test_more_than_two_gigabytes():
    def job() -> None:
        (batch,) = loader(dataset=Huge(), batch_size=1)
        (array,), (tensor,) = batch['array'], batch['tensor']
        assert array.shape == ((1 << 31) + 5,) and array[-1] == 7
        assert np.flatnonzero(array[:: 1 << 20]).tolist() == [1 << 10]
        assert tensor.nonzero().flatten().tolist() == [(1 << 20) - 1]

    in_process(job)
