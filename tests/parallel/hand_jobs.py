"""Jobs whose batches tell whether they have been overwritten, in processes with limits of their own."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import platform
import random
import signal
import struct
import subprocess
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mmshared.parallel import packed_collate

#: How the kernel names shared memory of batches: of mmshared, and of PyTorch.
NAMES = ('/memfd:mmshared', '/dev/shm/#', '/dev/shm/torch')
#: Elements of the tensor of a sample: batches of two of them travel in shared memory, or in the message.
BIG, SMALL = 40_000, 100


class Numbers:
    """Samples in which every element of every array is the sample's index.

    Args:
        count: of samples.
        sizes: elements of their tensors, one after the other and from the beginning again.
    """

    def __init__(self, count: int, sizes: Sequence[int] = (BIG,)) -> None:
        self.count, self.sizes = count, sizes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Dict[str, Any]:
        size = self.sizes[index % len(self.sizes)]
        return dict(
            index=index,
            image=torch.full((size,), index, dtype=torch.int32),
            boxes=torch.full((5, 4), float(index)),
            masks=np.full((2, size // 4), index, np.int64),
        )


def is_intact(batch: Dict[str, Any]) -> bool:
    """Whether every element is that of its sample."""
    return all(
        (array == index).all()
        for name in ('image', 'boxes', 'masks')
        for array, index in zip(batch[name], batch['index'])
    )


def loader(count: int = 100_000, sizes: Sequence[int] = (BIG,), **arguments: Any) -> DataLoader:
    """A loader of :class:`Numbers`, in batches of two from one worker if nothing else is said."""
    defaults = dict(dataset=Numbers(count, sizes), batch_size=2, num_workers=1, collate_fn=packed_collate)
    return DataLoader(**{**defaults, **arguments})


def take(batches: Iterator[Any], count: int) -> None:
    """Let ``count`` batches pass, and look at each."""
    for _ in range(count):
        assert is_intact(next(batches))


def workers() -> List[int]:
    """The process ids of this process's workers."""
    return sorted(process.pid for process in multiprocessing.active_children())


class Piece(NamedTuple):
    """A piece of shared memory that is mapped.

    Attributes:
        name: the kernel's, which is not in any folder.
        inode: its number.
    """

    name: str
    inode: int


INHERITED: Set[Piece] = set()


def pieces(pid: Any = 'self') -> Set[Piece]:
    """What a process has mapped of shared memory for batches: of mmshared, and of PyTorch.

    What this process had from the one that it is a fork of does not count, nor does it in forks of this one.
    """
    found = set()
    with open(f'/proc/{pid}/maps') as file:
        for line in file:
            _, _, _, _, inode, *name = line.split(maxsplit=5)
            if name and name[0].startswith(NAMES):
                found.add(Piece(name[0].strip(), int(inode)))
    return found - INHERITED


def descriptors(pid: Any = 'self') -> List[str]:
    """What a process has open."""
    names = []
    for fd in os.listdir(f'/proc/{pid}/fd'):
        try:
            names.append(os.readlink(f'/proc/{pid}/fd/{fd}'))
        except FileNotFoundError:  # that of the folder itself
            continue
    return names


def of_batches(names: Sequence[str]) -> List[str]:
    """Those of :func:`descriptors` that are shared memory."""
    return [name for name in names if name.startswith(NAMES)]


def resident(pid: Any = 'self') -> int:
    """Bytes of memory that a process has for itself."""
    with open(f'/proc/{pid}/status') as file:
        (line,) = [line for line in file if line.startswith('RssAnon')]
    return int(line.split()[1]) << 10


def is_alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        with open(f'/proc/{pid}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Wait for ``condition``; whether it came true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Job:
    """A function in a forked process, with a process group of its own that is ended with it.

    Args:
        function: what to run; what it returns is sent back.
        arguments: for it.
        seconds: how long it may take; then it shows where all its threads are.

    Attributes:
        pid: the process.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, seconds: float = 100.0) -> None:
        context = multiprocessing.get_context('fork')
        self._results, results = context.Pipe(duplex=False)
        self._seconds = seconds
        self._process = context.Process(target=_run, args=(results, function, arguments))
        self._process.start()
        results.close()
        self.pid: int = self._process.pid

    def result(self) -> Any:
        """What the function returned; its exception fails the test."""
        try:
            if not self._results.poll(self._seconds):
                os.kill(self.pid, signal.SIGUSR1)
                pytest.fail(f'nothing came within {self._seconds} s')
            try:
                value, error = self._results.recv()
            except EOFError:
                self._process.join(10)
                pytest.fail(f'the process ended without a result: exit code {self._process.exitcode}')
            assert error is None, error
            return value
        finally:
            self.end()

    def end(self) -> None:
        """Kill whatever is left of it, when it has had time to clean up."""
        self._process.join(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.join()
        self._results.close()


def _run(results: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    os.setsid()
    faulthandler.register(signal.SIGUSR1, file=2)  # (not with a timeout: after a fork that would wait forever)
    gc.freeze()  # what has come from the test's own process is no garbage of the job's
    try:
        INHERITED.update(pieces())
        sent = function(*arguments), None
    except BaseException:
        sent = None, traceback.format_exc()
    results.send(sent)
    results.close()


def in_process(function: Callable[..., Any], *arguments: Any, seconds: float = 100.0) -> Any:
    """``function(*arguments)`` in a process of its own: see :class:`Job`."""
    return Job(function, *arguments, seconds=seconds).result()


def environment(repo: Path) -> Dict[str, str]:
    """That of a new interpreter which is to find the tests."""
    return {**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'}


def small_shm(megabytes: int) -> None:
    """Give this process, and those that it starts, a /dev/shm of its own.

    Raises:
        PermissionError: that is not allowed here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts = 0x00020000
    if libc.unshare(new_mounts):
        raise PermissionError('unshare')
    for command in (['--make-rprivate', '/'], ['-t', 'tmpfs', '-o', f'size={megabytes}m', 'none', '/dev/shm']):
        if subprocess.run(['mount', *command], capture_output=True).returncode:
            raise PermissionError('mount')


class _Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_char_p)]


#: The kernel's name of an architecture, and its number of memfd_create.
_MEMFD_CREATE = {'x86_64': (0xC000003E, 319), 'aarch64': (0xC00000B7, 279)}
can_forbid = pytest.mark.skipif(platform.machine() not in _MEMFD_CREATE, reason='not known how to forbid memfd_create')


def forbid_memfd(number: int) -> None:
    """Have the kernel refuse ``memfd_create`` to this process, and those that it starts, with this error number."""
    architecture, call = _MEMFD_CREATE[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06  # of 32 bits; jump if equal, else over so many; return
    allow, refuse = 0x7FFF0000, 0x00050000 | number
    steps = (
        (load, 0, 0, 4),  # the architecture
        (equal, 0, 3, architecture),
        (load, 0, 0, 0),  # the call
        (equal, 0, 1, call),
        (give, 0, 0, refuse),
        (give, 0, 0, allow),
    )
    program = _Program(len(steps), b''.join(struct.pack('HBBI', *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, seccomp, filtering = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert libc.prctl(seccomp, filtering, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
    with pytest.raises(OSError) as caught:
        os.memfd_create('test')
    assert caught.value.errno == number


def failure(function: Callable[[], Any]) -> Optional[str]:
    """What ``function`` raises, as a user would read it; None: nothing."""
    try:
        function()
    except BaseException as error:
        return f'{type(error).__name__}: {error}'
    return None


class Play:
    """One random step after the other: batches are taken, held, dropped, cut to a view, left in a cycle, looked at in
    threads and forks; and after each step, all that are held are as they were.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.held, self.views, self.wrong = draw, [], [], []
        self.threads: List[threading.Thread] = []
        self.children: List[int] = []
        self.loaders = [self._begin() for _ in range(2)]

    def _begin(self) -> Any:
        sizes = self.draw.choice([[BIG], [BIG, SMALL], [BIG, 3 * BIG, 2 * BIG]])
        workers, ahead, persistent = self.draw.choice([1, 2]), self.draw.choice([1, 3]), self.draw.random() < 0.5
        return iter(loader(60, sizes=sizes, num_workers=workers, prefetch_factor=ahead, persistent_workers=persistent))

    def run(self, steps: int) -> None:
        names = ['next'] * 12 + ['drop'] * 5 + ['view', 'drop view', 'cycle', 'collect', 'thread', 'fork', 'restart']
        for _ in range(steps):
            getattr(self, '_' + self.draw.choice(names).replace(' ', '_'))()
            self.look()
        for thread in self.threads:
            thread.join()
        for child in self.children:
            assert os.waitpid(child, 0)[1] == 0
        assert not self.wrong

    def look(self) -> None:
        assert all(map(is_intact, self.held))
        assert all((view == index).all() for view, index in self.views)

    def _next(self) -> None:
        which = self.draw.randrange(len(self.loaders))
        batch = next(self.loaders[which], None)
        if batch is None:
            self.loaders[which] = self._begin()
        else:
            self.held.append(batch)
        del self.held[:-12]

    def _drop(self) -> None:
        if self.held:
            self.held.pop(self.draw.randrange(len(self.held)))

    def _view(self) -> None:
        if self.held:
            batch = self.held.pop()
            self.views.append((batch[self.draw.choice(['image', 'masks', 'boxes'])][-1][1:], batch['index'][-1]))

    def _drop_view(self) -> None:
        del self.views[:1]

    def _cycle(self) -> None:
        cycle = [self.held[-1:]]
        cycle.append(cycle)

    def _collect(self) -> None:
        gc.collect()

    def _thread(self) -> None:
        def watch(batches: List[Any]) -> None:
            for _ in range(20):
                self.wrong.extend(batch for batch in batches if not is_intact(batch))
                time.sleep(0.001)

        self.threads.append(threading.Thread(target=watch, args=(list(self.held),)))
        self.threads[-1].start()

    def _fork(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                for _ in range(20):
                    self.look()
                    time.sleep(0.005)
                os._exit(0)
            finally:
                os._exit(1)
        self.children.append(child)

    def _restart(self) -> None:
        self.loaders[self.draw.randrange(len(self.loaders))] = self._begin()
