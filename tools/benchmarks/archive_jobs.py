"""What the processes of the benchmark of archives do: read images by one way, or open an archive of very many."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import random
import tarfile
import time
import zipfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from archive_files import DATA_ROOT, TINY_BYTES, name_of
from mmengine import fileio

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


def _zipfile(source: str, cache: str) -> Read:
    archive = zipfile.ZipFile(source)
    entries = {info.filename: info for info in archive.infolist()}
    return lambda number: archive.read(entries[name_of(number)])


def _tarfile(source: str, cache: str) -> Read:
    archive = tarfile.open(source)  # noqa: SIM115 - as long as the worker
    entries = {member.name: member for member in archive.getmembers()}
    return lambda number: archive.extractfile(entries[name_of(number)]).read()


def _lmdb(source: str, cache: str) -> Read:
    return _get(DATA_ROOT, dict(backend='lmdb', db_path=source))


def _record(**options: Any) -> Callable[[str, str], Read]:
    return lambda source, cache: _get(DATA_ROOT, dict(backend='record', archive=source, cache_dir=cache, **options))


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
    'zipfile': Way('zip, zipfile of each worker', 'zip', _zipfile),
    'tarfile': Way('tar, tarfile of each worker', 'tar', _tarfile),
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
    context = multiprocessing.get_context('fork')
    pairs = [context.Pipe() for _ in range(workers)]
    processes = [
        context.Process(target=_worker, args=(there, way, sources, cache, count, seed), daemon=True)
        for seed, (_, there) in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    pipes = [here for here, _ in pairs]
    pids = [process.pid for process in processes]
    yield {'workers': pids}
    yield {'digests': {size: _asked(pipes, (size, 0)) for size in sources}}
    for size, readers in passes:
        told = _asked(pipes[:readers], (size, seconds))
        yield {'rate': sum(reads / taken for reads, taken in told)}
    yield {'workers': pids}


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
