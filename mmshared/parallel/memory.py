"""Shared memory without a name.

A name can outlive all who know it: a job that is killed leaves files in /dev/shm, where other jobs then find no room.
So a worker makes a file that never has a name, and the main process opens it as a file of that worker
(``/proc/<pid>/fd``). The kernel gives the memory back when the last of them is gone, however that came. It is from
``memfd_create``, which a small /dev/shm does not limit, or else in /dev/shm.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import stat
from typing import Any, Callable

import numpy as np
import torch

#: Whether this system has what all of this needs: Linux does.
HAS_MEMORY_WITHOUT_NAMES = os.path.isdir('/proc/self/fd')
HEADER = 64
_STATE, _TOKEN = 0, 8
_IN_SHM = '/dev/shm'
_NOT_ALLOWED = (errno.ENOSYS, errno.EPERM, errno.EACCES)  # by an old kernel, or in a sandbox


class SharedMemoryError(RuntimeError):
    """There is not enough shared memory for a batch, or it cannot be found."""


class SharedMemory:
    """A piece of memory that two processes see.

    Args:
        path: of an open file, in ``/proc``.
        nbytes: without the header.

    Attributes:
        nbytes: as given.
        state: a number that both see and may change.

    Raises:
        OSError, RuntimeError: it cannot be mapped.
    """

    def __init__(self, path: str, nbytes: int) -> None:
        self.nbytes = nbytes
        # Unlike mmap of Python, this keeps no descriptor, so that the limit of these is not one of batches.
        self._storage = torch.UntypedStorage.from_file(path, True, HEADER + nbytes)
        self._address = self._storage.data_ptr()
        self._state = ctypes.c_int64.from_address(self._address + _STATE)
        self._token = ctypes.c_int64.from_address(self._address + _TOKEN)

    @property
    def state(self) -> int:
        """See the class."""
        return self._state.value

    @state.setter
    def state(self, state: int) -> None:
        self._state.value = state

    @property
    def token(self) -> int:
        """What tells this piece from all others."""
        return self._token.value

    def payload(self, nbytes: int) -> np.ndarray:
        """The first ``nbytes`` bytes, uint8, as an object that keeps the memory alive and can be referred to weakly."""
        payload = (ctypes.c_char * nbytes).from_address(self._address + HEADER)
        payload.memory = self
        # An array is not known to the garbage collector: a weak reference to it ends when it does, and not before
        # those in one cycle with it have had their __del__, where they may still look, or even live on.
        return np.ndarray((nbytes,), np.uint8, payload)


class OwnMemory(SharedMemory):
    """Memory made by this process.

    Attributes:
        fd: the open file.

    Raises:
        SharedMemoryError: there is not enough.
        OSError: there cannot be another one: too many open files, say.
    """

    def __init__(self, nbytes: int) -> None:
        _leave_descriptors()
        self.fd = _nameless_file(HEADER + nbytes)
        try:
            super().__init__(f'/proc/self/fd/{self.fd}', nbytes)
        except BaseException:
            os.close(self.fd)
            raise
        self._token.value = int.from_bytes(os.urandom(7), 'little')

    def close(self) -> None:
        """Give the memory back, as soon as nobody uses it."""
        os.close(self.fd)


def of_process(pid: int, fd: int, nbytes: int, token: int) -> SharedMemory:
    """The memory that process ``pid`` has made as :class:`OwnMemory`.

    Raises:
        SharedMemoryError: it is not there any more.
    """
    path = f'/proc/{pid}/fd/{fd}'
    try:
        # What it is comes first: PyTorch would make a file that is not there, and anybody's file as long as asked for.
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and not status.st_nlink and status.st_size == HEADER + nbytes:
            memory = SharedMemory(path, nbytes)
            if memory.token == token:
                return memory
        reason = 'holds something else'
    except (OSError, RuntimeError) as error:
        reason = str(error)
    raise SharedMemoryError(
        f'A batch cannot be taken from the worker that loaded it (process {pid}): {path}: {reason}. Either the worker '
        'is gone, because it was killed or ran out of memory (see `dmesg`), or /proc does not show it to process '
        f'{os.getpid()}: both must have one user and one process namespace. Without packed batches, collate_fn=dict('
        "type='pseudo_collate'), neither matters."
    )


def _leave_descriptors() -> None:
    """Raise if few are left of the files that this process may have open: whatever loads samples opens some, too."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed != resource.RLIM_INFINITY and len(os.listdir('/proc/self/fd')) > allowed * 3 // 4:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _nameless_file(nbytes: int) -> int:
    """The descriptor of a new file in memory, of ``nbytes`` zeros."""
    make = getattr(os, 'memfd_create', None)  # not in a Python that was built for an old kernel
    if make is not None:
        try:
            return _sized(make('mmshared-batch'), nbytes, os.ftruncate)
        except OSError as error:
            if error.errno not in _NOT_ALLOWED:
                raise
    try:
        fd = os.open(_IN_SHM, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return _sized(fd, nbytes, _reserve)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    space = os.statvfs(_IN_SHM)
    left, whole = (blocks * space.f_frsize / 1e6 for blocks in (space.f_bavail, space.f_blocks))
    raise SharedMemoryError(
        f'A batch takes {nbytes / 1e6:.1f} MB of shared memory, and {_IN_SHM} has {left:.1f} MB left of {whole:.1f} '
        f'MB. Give it more, about {nbytes / 1e6:.0f} MB for each batch on its way (num_workers * (prefetch_factor + 1) '
        'of each rank): `docker run --shm-size=...`, or in Kubernetes an emptyDir with medium: Memory mounted there. '
        'Else use fewer workers or a smaller prefetch_factor. (Where a sandbox allows memfd_create, no size of '
        f'{_IN_SHM} matters: here it does not.)'
    )


def _sized(fd: int, nbytes: int, size: Callable[[int, int], Any]) -> int:
    try:
        size(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _reserve(fd: int, nbytes: int) -> None:
    """Have the memory now: writing where there is none would end the process with SIGBUS."""
    os.posix_fallocate(fd, 0, nbytes)
