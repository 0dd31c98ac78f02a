"""Pieces of shared memory one by one: made, seen by another process, looked at, used again, given back."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import resource
import sys
import threading
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.parallel.arrivals import Arrivals, Place, claim
from mmshared.parallel.memory import HEADER, OwnMemory, SharedMemoryError, of_process
from mmshared.parallel.ring import FREE, IN_USE, LOST, Ring, ring_of_this_process

from .hand_jobs import descriptors, failure, in_process, of_batches, pieces

NBYTES = 1 << 16


class Worker:
    """A child that makes memory, and answers questions about it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context('fork')
        self._ask, answers = context.Pipe()
        self._process = context.Process(target=self._serve, args=(answers,), daemon=True)
        self._process.start()
        answers.close()
        self.pid = self._process.pid

    def _serve(self, questions: Any) -> None:
        ring = ring_of_this_process()
        made: Dict[int, OwnMemory] = {}
        while True:
            name, *arguments = questions.recv()
            if name == 'send':  # a batch whose bytes are all equal
                value, nbytes = arguments
                memory = ring.take(nbytes)
                memory.payload(nbytes)[:] = value
                made[memory.token] = memory
                answer = Place(os.getpid(), memory.fd, memory.nbytes, memory.token, nbytes, tuple(ring.retired))
                ring.retired.clear()
            elif name == 'state':
                answer = made[arguments[0]].state
            elif name == 'replace':  # what is behind a descriptor
                fd, path = arguments
                other = os.open(path, os.O_RDONLY)
                answer = os.dup2(other, fd)
                os.close(other)
            elif name == 'replace by another':
                answer = os.dup2(OwnMemory(arguments[1]).fd, arguments[0])
            else:
                answer = len(of_batches(descriptors()))
            questions.send(answer)

    def __call__(self, *question: Any) -> Any:
        self._ask.send(question)
        return self._ask.recv()

    def kill(self) -> None:
        """End it, and forget the object that stands for the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()


@pytest.fixture
def worker():
    process = Worker()
    yield process
    process.kill()


def test_two_processes_see_one_memory_and_its_state(worker):
    place = worker('send', 7, NBYTES)
    memory = of_process(place.pid, place.fd, place.capacity, place.token)
    assert (memory.payload(NBYTES) == 7).all()
    assert memory.state == IN_USE == worker('state', place.token)
    memory.state = FREE
    assert worker('state', place.token) == FREE


def test_what_is_mapped_needs_no_descriptor_and_goes_with_the_last_view():
    before, mapped = descriptors(), pieces()
    own = OwnMemory(NBYTES)
    assert len(descriptors()) == len(before) + 1 and len(pieces() - mapped) == 1
    own.close()
    view = own.payload(NBYTES)[3:5]
    del own
    assert descriptors() == before and len(pieces() - mapped) == 1
    view[:] = 1
    del view
    assert pieces() <= mapped


VIEWS: Dict[str, Callable[[np.ndarray], Any]] = {
    'payload': lambda payload: payload,
    'array': lambda payload: np.ndarray((4, 4), np.float64, payload, 64),
    'array of Fortran': lambda payload: np.ndarray((4, 4), np.float64, payload, 64, order='F'),
    'view of a view': lambda payload: np.ndarray((4, 4), np.float64, payload, 64).T[1:, ::2].view(np.int64),
    'tensor': lambda payload: torch.frombuffer(payload, dtype=torch.float32, count=16, offset=64),
    'view of a tensor': lambda payload: torch.frombuffer(payload, dtype=torch.float32).view(2, -1).t()[3:],
    'array of a tensor': lambda payload: torch.frombuffer(payload, dtype=torch.float32).numpy()[1:],
    'tensor of an array': lambda payload: torch.from_numpy(np.ndarray((4, 4), np.float64, payload, 64)[1:]),
    'another tensor of its storage': lambda payload: torch.empty(0).set_(
        torch.frombuffer(payload, dtype=torch.float32).untyped_storage()
    ),
    'memoryview': lambda payload: memoryview(np.ndarray((4, 4), np.float64, payload, 64)),
}


@pytest.mark.parametrize('kind', VIEWS)
def test_any_view_keeps_memory_from_being_used_again(worker, kind):
    arrivals, before = Arrivals(), pieces()
    place = worker('send', 7, NBYTES)
    view = VIEWS[kind](arrivals.claim(place))
    assert worker('state', place.token) == IN_USE
    del arrivals  # of which a view knows nothing
    gc.collect()
    assert worker('state', place.token) == IN_USE and len(pieces() - before) == 1
    assert np.array(view).tobytes()[:4] == b'\7' * 4
    del view
    assert worker('state', place.token) == FREE


class Garbage:
    """Only the collector frees it; it looks at what it has at the very end, or gives it to somebody."""

    def __init__(self, thing: Any, last: Callable[[Any], Any]) -> None:
        self.me, self.thing, self.last = self, thing, last

    def __del__(self) -> None:
        self.last(self.thing)


def test_memory_is_kept_for_whoever_looks_at_it_while_it_is_collected(worker):
    """One that is garbage may be looked at in a ``__del__``, and not be garbage afterwards."""
    arrivals, kept = Arrivals(), []
    place = worker('send', 7, NBYTES)
    Garbage(arrivals.claim(place), lambda payload: kept.append((payload, worker('state', place.token))))
    gc.collect()
    assert [state for _, state in kept] == [IN_USE]
    assert worker('state', place.token) == IN_USE
    kept.clear()
    assert worker('state', place.token) == FREE


def test_a_mapping_is_used_for_the_next_batch_and_goes_when_the_worker_says_so(worker):
    arrivals, before = Arrivals(), pieces()
    places = []
    for value in range(5):
        place = worker('send', value, NBYTES)
        assert (arrivals.claim(place) == value).all()
        places.append(place)
    assert len({(place.fd, place.token) for place in places}) == 1
    assert len(pieces() - before) == 1
    held = arrivals.claim(worker('send', 5, NBYTES))
    larger = worker('send', 6, 2 * NBYTES)  # what is held cannot be given up
    assert not larger.retired
    arrivals.claim(larger)
    assert len(pieces() - before) == 2
    del held
    largest = worker('send', 7, 8 * NBYTES)
    assert largest.retired == (places[0].token,)
    arrivals.claim(largest)
    assert len(pieces() - before) == 2 == worker('count')


def test_mappings_go_with_their_worker_but_not_what_is_looked_at(worker):
    arrivals, before = Arrivals(), pieces()
    held = arrivals.claim(worker('send', 1, NBYTES))
    arrivals.claim(worker('send', 2, NBYTES))
    assert len(pieces() - before) == 2
    worker.kill()
    gc.collect()
    assert len(pieces() - before) == 1
    assert (held == 1).all()
    del held
    assert pieces() <= before


def test_the_memory_of_a_process_that_is_nobodys_child_goes_with_its_batch():
    """As no one would say when such a process is over."""

    def job() -> None:
        arrivals, before = Arrivals(), pieces()
        own = OwnMemory(NBYTES)
        own.state = IN_USE
        mapped = pieces() - before
        view = arrivals.claim(Place(os.getpid(), own.fd, NBYTES, own.token, NBYTES, ()))
        assert not arrivals._mapped
        own.close()
        del own
        assert pieces() - before == mapped
        del view
        assert pieces() <= before

    in_process(job)


def test_a_worker_that_is_gone(worker):
    place = worker('send', 1, NBYTES)
    worker.kill()
    with pytest.raises(SharedMemoryError, match=rf'process {worker.pid}\).*No such file.*the worker is gone.*dmesg'):
        Arrivals().claim(place)


def test_memory_that_has_become_something_else_meanwhile(worker, tmp_path):
    """Neither memory of another batch is taken for it, nor is anybody's file touched, however short it is."""
    place = worker('send', 1, NBYTES)
    worker('replace by another', place.fd, place.capacity)
    with pytest.raises(SharedMemoryError, match='holds something else'):
        Arrivals().claim(place)
    for size in (3, HEADER + place.capacity):
        path = tmp_path / str(size)
        path.write_bytes(bytes(size))
        worker('replace', place.fd, str(path))
        with pytest.raises(SharedMemoryError, match='holds something else'):
            Arrivals().claim(place)
        assert path.read_bytes() == bytes(size)


def test_memory_leaves_descriptors_for_others():
    def job() -> int:
        before, own = len(descriptors()), []
        allowed = 2 * before + 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
        text = failure(lambda: [own.append(OwnMemory(NBYTES)) for _ in range(allowed)])
        assert text == f'OSError: [Errno {errno.EMFILE}] Too many open files'
        assert len(descriptors()) == before + len(own)
        assert abs(allowed / 4 - (allowed - len(descriptors()))) <= 5  # a quarter
        own.pop().close()
        own.append(OwnMemory(NBYTES))
        return len(own)

    assert in_process(job) > 40


# Threads


def test_garbage_may_be_collected_anywhere_while_a_batch_is_claimed(worker):
    """A ``DataLoader`` that is garbage waits for its thread that pins memory, which may be about to claim a batch."""

    def job() -> None:
        worker = Worker()
        arrivals = Arrivals()
        first, second = worker('send', 1, NBYTES), worker('send', 2, NBYTES)
        claimed: List[np.ndarray] = []

        def in_a_thread(_: Any) -> None:
            thread = threading.Thread(target=lambda: claimed.append(arrivals.claim(second)))
            thread.start()
            thread.join()

        gc.disable()
        Garbage(None, in_a_thread)
        collect_within(lambda: arrivals.claim(first), claimed)
        assert [value[0] for value in claimed] == [2, 1]
        worker.kill()

    in_process(job, seconds=20)


def collect_within(function: Callable[[], Any], results: List[Any]) -> None:
    """Call ``function`` and have garbage collected in the middle, wherever arrivals.py calls anything."""

    def collect(frame: Any, event: str, what: Any) -> None:
        if event == 'c_call' and frame.f_code.co_filename.endswith('arrivals.py'):
            gc.collect()

    sys.setprofile(collect)
    try:
        results.append(function())
    finally:
        sys.setprofile(None)


# Forks


def test_a_child_sees_what_was_looked_at_and_its_memory_is_not_used_again():
    def job() -> None:
        worker = Worker()
        before = pieces()
        held, free = worker('send', 1, NBYTES), worker('send', 2, NBYTES)
        view = claim(held)
        claim(free)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reading, 1)
            is_right = (view == 1).all() and len(pieces() - before) == 1
            del view
            gc.collect()
            os._exit(0 if is_right and not pieces() - before else 1)
        del view
        assert worker('state', held.token) == LOST
        assert worker('state', free.token) == FREE
        for value in range(20):
            place = worker('send', value, NBYTES)
            assert place.token == free.token
            assert (claim(place) == value).all()
        assert len(pieces() - before) == 1 == worker('count')
        os.write(writing, b'.')
        assert os.waitpid(child, 0)[1] == 0
        assert worker('state', free.token) == FREE
        worker.kill()

    in_process(job)


def test_what_a_child_does_with_a_batch_is_not_the_parents_business():
    def job() -> None:
        worker = Worker()
        place = worker('send', 1, NBYTES)
        view = claim(place)
        child = os.fork()
        if child == 0:
            del view
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tokens = [worker('send', 2, NBYTES).token for _ in range(3)]
        assert place.token not in tokens and (view == 1).all()
        worker.kill()

    in_process(job)


def test_a_fork_of_a_worker_has_a_ring_of_its_own():
    def job() -> None:
        ring = ring_of_this_process()
        memory = ring.take(NBYTES)
        memory.payload(NBYTES)[:] = 3
        state = memory.state
        child = os.fork()
        if child == 0:
            right = not of_batches(descriptors()) and ring_of_this_process() is not ring
            ring_of_this_process().take(NBYTES).payload(NBYTES)[:] = 4
            del memory, ring
            gc.collect()
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.state == state and (memory.payload(NBYTES) == 3).all()
        assert ring_of_this_process() is ring and len(of_batches(descriptors())) == 1

    in_process(job)


# The ring


class Use:
    """A ring and what was taken from it."""

    def __init__(self) -> None:
        self.before = len(of_batches(descriptors()))
        self.ring, self.used, self.tokens = Ring(), [], set()

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(of_batches(descriptors())) - self.before

    def take(self, nbytes: int) -> OwnMemory:
        memory = self.ring.take(nbytes)
        assert memory.nbytes >= nbytes and memory.state == IN_USE
        assert memory not in self.used
        self.tokens.add(memory.token)
        self.used.append(memory)
        return memory

    def turn(self, sizes: Any) -> int:
        """Batches of these sizes, of which three are in use at a time; the number of pieces in the end."""
        for nbytes in sizes:
            self.take(nbytes)
            if len(self.used) > 3:
                self.used.pop(0).state = FREE
        return self.count

    def close(self) -> None:
        while self.used:
            self.used.pop().state = FREE
        self.ring.close()
        assert self.count == 0 and set(self.ring.retired) == self.tokens


SIZES = {
    'equal': [NBYTES] * 200,
    'growing': range(NBYTES, 9 * NBYTES, NBYTES // 50),
    'shrinking': range(9 * NBYTES, NBYTES, -NBYTES // 50),
    'alternating': [NBYTES, 9 * NBYTES] * 200,
    'alternating by three': [NBYTES, 9 * NBYTES, 3 * NBYTES] * 100,
    'a large one at times': ([NBYTES] * 30 + [9 * NBYTES]) * 8,
    'small ones, then large ones': ([NBYTES] * 50 + [9 * NBYTES] * 50) * 3,
    'random': np.random.default_rng(0).integers(NBYTES, 9 * NBYTES, 400).tolist(),
}


@pytest.mark.parametrize('sizes', SIZES)
def test_there_are_about_as_many_pieces_as_batches_in_use(sizes):
    use = Use()
    assert use.turn(SIZES[sizes]) <= 4 + (4 if len(set(SIZES[sizes])) > 1 else 0)
    if sizes == 'equal':
        assert len(use.tokens) == 4
    use.close()


def test_batches_of_about_one_size_use_the_same_memory():
    use = Use()
    use.turn((np.random.default_rng(0).uniform(0.97, 1.0, 200) * (1 << 20)).astype(int).tolist())
    assert len(use.tokens) <= 8
    use.close()


def test_memory_that_nobody_needs_any_more_is_given_back():
    use = Use()
    for _ in range(40):
        use.take(NBYTES)
    assert use.count == 40
    while use.used:
        use.used.pop().state = FREE
    assert use.turn([NBYTES] * 40) <= 5
    assert len(use.ring.retired) >= 35
    use.close()


steps = st.lists(
    st.tuples(st.sampled_from(['take', 'take', 'free', 'lose']), st.integers(1, 1 << 20), st.integers(0, 10)),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_whatever_is_taken_and_freed_no_batch_is_overwritten(steps):
    use, most = Use(), 0
    for value, (what, nbytes, which) in enumerate(steps):
        if what == 'take':
            memory = use.take(nbytes)
            memory.value = value
            memory.payload(memory.nbytes)[:: memory.nbytes // 7 + 1] = value
        elif use.used:
            use.used.pop(which % len(use.used)).state = FREE if what == 'free' else LOST
        most = max(most, len(use.used))
        assert use.count <= 2 * most + sum(memory.state == LOST for memory in use.ring._pieces)
        for memory in use.used:
            assert (memory.payload(memory.nbytes)[:: memory.nbytes // 7 + 1] == memory.value).all()
    use.close()
