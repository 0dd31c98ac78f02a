"""A batch stays as it is while anything of it is looked at, and its memory is used again afterwards, or given back."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate

from mmshared.parallel import SharedMemoryError, packed_collate

from .hand_jobs import (
    BIG,
    SMALL,
    Numbers,
    Play,
    descriptors,
    environment,
    in_process,
    is_alive,
    is_intact,
    loader,
    of_batches,
    pieces,
    take,
    until,
    workers,
)

packed = partial(packed_collate, unpacked=False)


class Masks(Numbers):
    """With masks as MMDetection has them."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        from mmdet.structures.mask import BitmapMasks

        sample = super().__getitem__(index)
        return dict(sample, bitmaps=BitmapMasks(np.full((3, 50, 60), index % 200, np.uint8), 50, 60))


def raise_with_a_local(batch: Dict[str, Any]) -> BaseException:
    image = batch['image'][1]
    try:
        raise ValueError(f'an image of {len(image)}')
    except ValueError as error:
        return error


KEPT: Dict[str, Callable[[Any], Any]] = {
    'batch': lambda batch: batch,
    'tensor': lambda batch: batch['image'][1],
    'slice': lambda batch: batch['image'][1][10:20],
    'view of a view': lambda batch: batch['boxes'][1].t()[1:].unsqueeze(0).expand(2, -1, -1),
    'array': lambda batch: batch['masks'][1],
    'view of an array': lambda batch: batch['masks'][1][1:, ::3].T.view(np.uint64)[::2],
    'array of a tensor': lambda batch: np.asarray(batch['image'][1])[5:],
    'bitmaps': lambda batch: batch['bitmaps'][1],
    'one of the bitmaps': lambda batch: batch['bitmaps'][1][1:2],
    'traceback': raise_with_a_local,
    'what waits for a thread': lambda batch: threading.Timer(1e6, print, [batch['image'][1]]),
}


def content(kept: Any) -> np.ndarray:
    """What is in a kept thing."""
    if isinstance(kept, dict):
        kept = kept['image'][1]
    if isinstance(kept, BaseException):
        kept = kept.__traceback__.tb_frame.f_locals['image']
    if isinstance(kept, threading.Timer):
        (kept,) = kept.args
    return np.array(getattr(kept, 'masks', kept))


def test_anything_kept_of_a_batch_stays_as_it_is():
    """While hundreds of others pass; and when nothing is kept, their number of pieces is that of the rings."""

    def job() -> None:
        pytest.importorskip('mmdet')
        batches = iter(loader(dataset=Masks(100_000), num_workers=3, persistent_workers=True))
        take(batches, 6)
        kept = {}
        for name, keep in KEPT.items():
            batch = next(batches)
            kept[name] = keep(batch), content(keep(batch))
            assert kept[name][1].size and (kept[name][1] % 200 == batch['index'][1] % 200).all()
        del batch
        for _ in range(200):
            take(batches, 1)
        for name, (thing, as_it_was) in kept.items():
            assert np.array_equal(content(thing), as_it_was), name
        assert len(pieces()) <= len(KEPT) + 3 * 5
        kept.clear()
        del thing
        gc.collect()  # the error and its traceback
        seen = set()
        for _ in range(500):
            take(batches, 1)
            seen |= pieces()
        assert len(seen) <= 3 * 5 + 500 // 16  # what is spare for 16 batches is given back
        assert sum(len(of_batches(descriptors(pid))) for pid in workers()) <= len(pieces()) <= 3 * 5

    in_process(job)


class WithLittleThings(Numbers):
    """With what metrics keep of every batch."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        little = dict(keypoints=np.full((17, 2), index), label=torch.tensor([index, index]))
        return dict(super().__getitem__(index), **little)


def test_little_things_do_not_keep_a_batch():
    def job() -> None:
        kept = []
        for number, batch in enumerate(loader(dataset=WithLittleThings(200))):
            kept.append((number, batch['keypoints'][1], batch['label'][1], batch['label'][0].numpy()))
            assert len(pieces()) <= 5
        assert len(kept) == 100
        for number, keypoints, label, of_label in kept:
            assert (keypoints == 2 * number + 1).all() and label.tolist() == [2 * number + 1] * 2
            assert of_label.tolist() == [2 * number] * 2

    in_process(job)


@pytest.fixture(scope='module', autouse=True)
def mmdet_is_there():
    """Imported once here, rather than in the worker of a job."""
    import mmdet.structures.mask  # noqa: F401


@pytest.mark.parametrize('method', ['spawn', 'forkserver'])
def test_other_start_methods(method):
    before = pieces()
    batches = iter(loader(multiprocessing_context=method, timeout=100))
    take(batches, 3)
    held = next(batches)
    take(batches, 60)
    assert is_intact(held)
    assert 2 <= len(pieces() - before) <= 5
    del held, batches
    assert pieces() <= before


def test_a_packed_batch_that_is_not_unpacked_yet():
    def job() -> None:
        batches = iter(loader(collate_fn=packed))
        held = [next(batches) for _ in range(3)]
        for _ in range(50):
            next(batches)
        assert all(is_intact(batch.unpack()) for batch in held)
        image = held.pop().unpack()['image'][0]
        for _ in range(50):
            assert is_intact(next(batches).unpack())
        assert (image == 4).all() and all(is_intact(batch.unpack()) for batch in held)

    in_process(job)


class Last:
    """Gives away what it has when it is collected."""

    def __init__(self, batch: Any, kept: List[Any]) -> None:
        self.me, self.batch, self.kept = self, batch, kept

    def __del__(self) -> None:
        self.kept.append(self.batch)


def test_a_batch_that_is_garbage_and_then_is_not():
    def job() -> None:
        kept: List[Any] = []
        batches = iter(loader(collate_fn=packed))
        Last(next(batches), kept)
        gc.collect()
        for _ in range(20):
            next(batches)
        assert is_intact(kept[0].unpack())

    in_process(job)


# Forks


def test_a_process_forked_while_batches_are_held():
    """Sees them unchanged though its parent drops one and goes on; what it drops itself stays in the parent."""

    def job() -> None:
        batches = iter(loader(num_workers=2, persistent_workers=True))
        take(batches, 5)
        dropped, held = next(batches), next(batches)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            held = None
            gc.collect()
            os.read(reading, 1)
            os._exit(0 if is_intact(dropped) else 1)
        del dropped
        take(batches, 200)
        os.write(writing, b'.')
        assert os.waitpid(child, 0)[1] == 0
        take(batches, 50)
        assert is_intact(held)

    in_process(job)


def test_a_process_that_is_given_a_batch():
    def look(batch: Any, results: Any) -> None:
        time.sleep(0.2)
        results.put(is_intact(batch))

    def job() -> None:
        context = multiprocessing.get_context('fork')
        results = context.SimpleQueue()
        batches = iter(loader())
        process = context.Process(target=look, args=(next(batches), results))
        process.start()
        take(batches, 100)
        process.join()
        assert results.get()

    in_process(job)


SCRIPT = """
import os, threading

ready, begun, claimed = threading.Event(), threading.Event(), threading.Event()

def let_the_thread_go_on():
    if ready.is_set():  # the workers' forks are none of it
        begun.set()
        claimed.wait(60)

# Called when mmshared has been: the other way round than registered.
os.register_at_fork(before=let_the_thread_go_on)

from tests.parallel.hand_jobs import *

batches, held = iter(loader()), []
next(batches)

def thread():
    begun.wait()
    held.append(next(batches))
    claimed.set()

threading.Thread(target=thread).start()
ready.set()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.read(reading, 1)
    os._exit(0 if is_intact(held[0]) else 1)
held.clear()
take(batches, 20)
os.write(writing, b'.')
assert os.waitpid(child, 0)[1] == 0
assert len(pieces()) <= 4  # what comes later is used again
"""


def test_a_thread_that_gets_a_batch_while_another_one_forks(repo):
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT], env=environment(repo), cwd=repo, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


class Forks(Numbers):
    """Of which a process of its own looks at each sample."""

    def __getitem__(self, index: int) -> Dict[str, Any]:
        child = os.fork()
        if child == 0:
            os._exit(len(of_batches(descriptors())))
        assert os.waitpid(child, 0)[1] == 0
        return super().__getitem__(index)


def test_a_worker_that_forks():
    def job() -> None:
        held = []
        for batch in loader(dataset=Forks(40)):
            held.append(batch)
            assert all(map(is_intact, held))
            del held[:-10]

    in_process(job)


def test_workers_of_another_loader_keep_nothing_of_the_first_ones():
    """They are forks of the main process, and live longer than what it had mapped."""

    def job() -> None:
        batches = iter(loader())
        take(batches, 10)
        assert pieces()
        others = iter(loader(persistent_workers=True, collate_fn=pseudo_collate, sizes=[SMALL]))
        next(others)
        (other,) = set(workers()) - {batches._workers[0].pid}
        assert not [piece for piece in pieces(other) if 'memfd' in piece.name]

    in_process(job)


# What is given back


def test_all_memory_goes_with_loader_and_batches():
    def job() -> None:
        for persistent in (False, True):
            stream = loader(200, num_workers=2, persistent_workers=persistent)
            for _ in range(3):  # given up in the middle, begun anew
                for batch, _ in zip(stream, range(20)):
                    assert is_intact(batch)
            held = batch
            batches = iter(stream)
            take(batches, 100)
            assert next(batches, None) is None
            assert is_intact(held) and pieces()
            del batches, stream
            gc.collect()
            assert len(pieces()) == 1 and is_intact(held)  # what is held
            del held, batch
            assert not pieces() and not workers()

    in_process(job)


def test_two_loaders_at_once():
    def job() -> None:
        first, second = (iter(loader(num_workers=2, sizes=sizes)) for sizes in ([BIG], [BIG, SMALL, 2 * BIG]))
        held = []
        for _ in range(50):
            held.extend([next(first), next(second)])
            assert all(map(is_intact, held))
            del held[: -random.randrange(1, 9)]
        del first
        take(second, 50)
        assert all(map(is_intact, held))

    in_process(job)


def test_loaders_in_threads():
    def iterate(wrong: List[Any]) -> None:
        held = []
        for batch in loader(40, batch_size=2):
            held.append(batch)
            wrong.extend(batch for batch in held if not is_intact(batch))
            del held[: -random.randrange(1, 4)]

    def job() -> None:
        wrong: List[Any] = []
        for _ in range(8):
            threads = [threading.Thread(target=iterate, args=(wrong,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not wrong
        gc.collect()
        assert not pieces()

    in_process(job)


def drop_the_first(samples: Any) -> Any:
    packed_collate(samples)
    return packed_collate(samples)


def raise_at_times(samples: Any) -> Any:
    batch = packed_collate(samples)
    if samples[0]['index'] % 6 == 0:
        raise ValueError('every third time')
    return batch


@pytest.mark.parametrize('collate', [drop_the_first, raise_at_times])
def test_a_batch_that_is_never_sent(collate):
    def job() -> None:
        batches, failed = iter(loader(400, collate_fn=collate)), 0
        while True:
            try:
                if not is_intact(next(batches)):
                    raise AssertionError
            except StopIteration:
                break
            except ValueError:
                failed += 1
            if workers():
                assert len(of_batches(descriptors(workers()[0]))) <= 6
        assert failed == (67 if collate is raise_at_times else 0)

    in_process(job)


def test_batches_that_nobody_looks_at():
    """An epoch that is given up: its batches are on their way, or have arrived, when the next begins."""

    def job() -> None:
        stream = loader(400, persistent_workers=True, prefetch_factor=4)
        seen = set()
        for _ in range(30):
            batches = iter(stream)
            take(batches, 3)
            seen |= pieces()
            assert len(pieces()) <= 8
        assert len(seen) <= 8 + 30 * 8 // 16
        assert len(of_batches(descriptors(workers()[0]))) <= 8

    in_process(job)


cached: List[Any] = []


def send_twice(samples: Any) -> Any:
    if not cached:
        cached.append(packed_collate(samples))
    return cached[0]


def test_a_batch_that_is_sent_twice():
    def job() -> None:
        batches = iter(loader(collate_fn=send_twice))
        take(batches, 1)
        with pytest.raises(RuntimeError, match='a packed batch can be sent once'):
            next(batches)

    in_process(job, seconds=30)


# Kills


def kill_without_lock(victim: int, event: Any) -> None:
    """SIGKILL at a moment when ``victim`` does not hold the lock of PyTorch's own ``event``.

    All processes of a DataLoader look at that event. Whoever is killed in that very moment leaves the lock taken, and
    the main process waits for it forever, whatever the collate function is.
    """
    while True:
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.002)  # until it has stopped
        if event._cond.acquire(False):
            event._cond.release()
            os.kill(victim, signal.SIGKILL)
            return
        os.kill(victim, signal.SIGCONT)
        time.sleep(0.002)


@pytest.mark.parametrize('sizes', [[BIG], [SMALL, 50 * SMALL, BIG]], ids=['shared', 'mixed'])
def test_a_worker_that_is_killed(sizes):
    """At any moment: the main process says so and does not wait, and what it has stays."""

    def job() -> None:
        shm = set(os.listdir('/dev/shm'))
        for _ in range(5):
            batches = iter(loader(num_workers=2, sizes=sizes))
            held = [next(batches) for _ in range(3)]
            victim = random.choice(workers())
            killing = [victim, batches._workers_done_event]
            threading.Timer(random.uniform(0, 0.05), kill_without_lock, killing).start()
            with pytest.raises(RuntimeError, match=rf'worker\b.*\b{victim}\b') as caught:
                while True:
                    held = [*held[-2:], next(batches)]
            assert all(map(is_intact, held))
            del batches, caught
            gc.collect()
            assert not workers()
        assert not [name for name in set(os.listdir('/dev/shm')) - shm if str(victim) in name]
        del held
        assert not pieces()

    in_process(job)


def test_a_worker_that_is_killed_when_it_has_sent():
    """In a thread, where PyTorch does not notice it first."""

    def iterate(errors: List[BaseException]) -> None:
        batches = iter(loader())
        (worker,) = workers()
        assert until(lambda: len(of_batches(descriptors(worker))) == 2)  # as many as it loads ahead
        assert until(batches._worker_result_queue._reader.poll)
        os.kill(worker, signal.SIGKILL)
        assert until(lambda: not is_alive(worker))
        with pytest.raises(RuntimeError, match=rf'worker\b.*\b{worker}\b') as caught:
            next(batches)
        # PyTorch's own error, unless the process has not quite ended.
        errors.append(caught.value if isinstance(caught.value, SharedMemoryError) else caught.value.__cause__)

    def job() -> None:
        errors: List[BaseException] = []
        thread = threading.Thread(target=iterate, args=(errors,))
        thread.start()
        thread.join()
        assert [type(error) for error in errors] == [SharedMemoryError]
        assert 'A batch cannot be taken from the worker that loaded it' in str(errors[0])

    in_process(job)


def test_the_main_process_is_killed(tmp_path):
    """At any moment: its workers end by themselves, and nothing is left in any folder."""

    def iterate(file: Any) -> None:
        batches = iter(loader(num_workers=2, sizes=[BIG, SMALL], persistent_workers=True))
        file.write_text(' '.join(map(str, workers())))
        held = []
        while True:
            held = [*held[-5:], next(batches)]

    def job() -> None:
        os.environ['TMPDIR'] = str(tmp_path / 'tmp')
        os.mkdir(os.environ['TMPDIR'])
        context = multiprocessing.get_context('fork')
        mains = [context.Process(target=iterate, args=(tmp_path / str(number),)) for number in range(3)]
        for main in mains:
            main.start()
        pids = []
        for number, main in enumerate(mains):
            file = tmp_path / str(number)
            assert until(lambda file=file: file.exists() and file.read_text())
            pids += map(int, file.read_text().split())
            time.sleep(random.uniform(0, 0.3))
            main.kill()
        assert len(pids) == 6
        assert until(lambda: not any(map(is_alive, pids)), 40)
        assert not os.listdir(os.environ['TMPDIR'])
        left = os.listdir('/dev/shm')
        assert not [name for name in left for pid in [*pids, *(main.pid for main in mains)] if f'_{pid}_' in name]

    in_process(job)


# All at once


def test_whatever_is_done_with_batches(seed: int = 0):
    """Held, dropped, cut to a view, forked with, left in cycles, looked at in threads, from several loaders."""

    def job() -> None:
        sys.setswitchinterval(1e-4)
        Play(random.Random(seed)).run(250)
        gc.collect()
        assert not pieces()

    in_process(job)
