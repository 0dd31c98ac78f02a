"""What the processes of the benchmark of archives do: read images by one way, or open an archive of very many."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import random
import tarfile
import time
import zipfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from archive_files import DATA_ROOT, TINY_BYTES, name_of
from mmengine import fileio
from mmengine.fileio import BaseStorageBackend, register_backend

import mmshared  # noqa: F401  (registers the backend)

Read = Callable[[int], bytes]
Reply = Dict[str, Any]
CHECKED = 20


# ---- ways to read: each takes the source and the cache, and gives read(number) -> bytes
def _get(root: str, backend_args: Optional[Dict[str, Any]]) -> Read:
    """As ``LoadImageFromFile`` does."""
    return lambda number: fileio.get(root + name_of(number), backend_args=backend_args)


def _folder(source: str, cache: str) -> Read:
    return _get(f'{source}/', None)


class _Plain(BaseStorageBackend):
    """The least that lets a dataset read from Python's modules: the archive is opened anew in each worker."""

    def __init__(self, source: str, kind: str) -> None:
        self._read = {'zipfile': self._zipfile, 'tarfile': self._tarfile, 'tarfile-dict': self._tarfile_dict}[kind](
            source
        )

    def get(self, filepath: str) -> bytes:
        """The bytes of an entry."""
        return self._read(filepath[len(DATA_ROOT) :])

    def get_text(self, filepath: str, encoding: str = 'utf-8') -> str:
        """As the base class wants it."""
        return self.get(filepath).decode(encoding)

    @staticmethod
    def _zipfile(source: str) -> Callable[[str], bytes]:
        return zipfile.ZipFile(source).read

    @staticmethod
    def _tarfile(source: str) -> Callable[[str], bytes]:
        archive = tarfile.open(source)  # noqa: SIM115 - as long as the worker
        return lambda name: archive.extractfile(name).read()

    @staticmethod
    def _tarfile_dict(source: str) -> Callable[[str], bytes]:
        archive = tarfile.open(source)  # noqa: SIM115 - as long as the worker
        members = {member.name: member for member in archive.getmembers()}
        return lambda name: archive.extractfile(members[name]).read()


register_backend('plain', _Plain, force=True)


def _plain(kind: str) -> Callable[[str, str], Read]:
    return lambda source, cache: _get(DATA_ROOT, dict(backend='plain', source=source, kind=kind))


def _lmdb(source: str, cache: str) -> Read:
    return _get(DATA_ROOT, dict(backend='lmdb', db_path=source))


def _record(**options: Any) -> Callable[[str, str], Read]:
    def open_archive(source: str, cache: str) -> Read:
        os.environ['MMSHARED_CACHE'] = (
            cache  # as users have it: what is in backend_args is written as JSON in each read
        )
        return _get(DATA_ROOT, dict(backend='record', archive=source, **options))

    return open_archive


@dataclass(frozen=True)
class Way:
    """A way to read.

    Attributes:
        title: in tables.
        source: what it reads: ``folder``, or how the archive's name ends.
        open: from the source and the cache to the function that reads an entry.
    """

    title: str
    source: str
    open: Callable[[str, str], Read]


WAYS: Dict[str, Way] = {
    'folder': Way('folder (LocalBackend)', 'folder', _folder),
    'zipfile': Way('zip, zipfile of each worker', 'zip', _plain('zipfile')),
    'tarfile': Way('tar, tarfile of each worker, by name', 'tar', _plain('tarfile')),
    'tarfile-dict': Way('tar, tarfile of each worker, by a dict of its members', 'tar', _plain('tarfile-dict')),
    'lmdb': Way('LMDB (LmdbBackend)', 'lmdb', _lmdb),
    'tar': Way('tar, record', 'tar', _record()),
    'zip': Way('zip, record', 'zip', _record()),
    'zip-no-crc': Way('zip, record, verify_crc=False', 'zip', _record(verify_crc=False)),
    'rec': Way('rec, record', 'rec', _record()),
}


# ---- some hundred images, read by several workers
def _worker(connection: Any, way: str, sources: Dict[str, str], cache: str, count: int, seed: int) -> None:
    """Open what is asked for, and read it at random for some seconds; None ends it.

    Replies with reads and the seconds that they took; when no seconds are given, with a digest of some entries.
    """
    draw, readers = random.Random(seed), {}
    for size, seconds in iter(connection.recv, None):
        if size not in readers:
            readers[size] = WAYS[way].open(sources[size], cache)
        read, reads = readers[size], 0
        if not seconds:
            digest = hashlib.blake2b(digest_size=16)
            for number in range(0, count, max(1, count // CHECKED)):
                digest.update(read(number))
            connection.send(digest.hexdigest())
            continue
        start = time.perf_counter()
        end = start + seconds
        while time.perf_counter() < end:
            read(draw.randrange(count))
            reads += 1
        connection.send((reads, time.perf_counter() - start))


def reads(
    way: str,
    workers: int,
    passes: Sequence[Tuple[str, int]],
    seconds: float,
    sources: Dict[str, str],
    cache: str,
    count: int,
) -> Iterator[Reply]:
    """A rank with ``workers`` workers, forked before anything is opened, as those of a DataLoader are.

    ``passes`` are pairs of a size and how many workers read then. The replies: the workers, and digests of what they
    read of each size; reads per second of each pass; the workers again.
    """
    gc.collect()
    gc.freeze()  # as little as can be is copied because the garbage collector has looked at it
    pipes, pids = [], []
    for seed in range(workers):
        pipe, pid = _start(way, sources, cache, count, seed)
        pipes.append(pipe)
        pids.append(pid)
    yield {'workers': pids}
    yield {'digests': {size: _asked(pipes, (size, 0)) for size in sources}}
    for size, readers in passes:
        told = _asked(pipes[:readers], (size, seconds))
        yield {'rate': sum(reads / taken for reads, taken in told)}
    yield {'workers': pids}


def _start(*arguments: Any) -> Tuple[Any, int]:
    """A worker, and the pipe to ask it by."""
    context = multiprocessing.get_context('fork')
    here, there = context.Pipe()
    process = context.Process(target=_worker, args=(there, *arguments), daemon=True)
    process.start()
    there.close()  # so that the end of the worker is seen
    return here, process.pid


def _asked(pipes: List[Any], question: Any) -> List[Any]:
    """Ask all at once."""
    for pipe in pipes:
        pipe.send(question)
    return [pipe.recv() for pipe in pipes]


# ---- an archive of very many, opened by one process
def opening(way: str, source: str, cache: str, count: int, reads: int) -> Iterator[Reply]:
    """A worker that opens an archive: before that; its first entry read, after so many seconds; ``reads`` more read.

    Raises:
        RuntimeError: an entry is not what it should be.
    """

    def check(number: int) -> None:
        if read(number) != number.to_bytes(TINY_BYTES, 'little'):
            raise RuntimeError(f'{source}: entry {number} as read by {WAYS[way].title} is not what was written')

    gc.collect()
    yield {}
    start = time.perf_counter()
    read = WAYS[way].open(source, cache)
    check(count // 2)
    yield {'seconds': time.perf_counter() - start}
    draw = random.Random(0)
    start = time.perf_counter()
    for _ in range(reads):
        check(draw.randrange(count))
    yield {'us': (time.perf_counter() - start) / reads * 1e6}


def opening_index(source: str, cache: str) -> Iterator[Reply]:
    """A process that opens an archive's index and nothing else: before that; opened, after so many seconds."""
    from mmshared.fileio.indexing import open_index

    gc.collect()
    yield {}
    start = time.perf_counter()
    index = open_index([source], cache)
    yield {'seconds': time.perf_counter() - start, 'entries': len(index)}
