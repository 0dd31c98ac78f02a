"""What processes do that read one archive at once: with one handle for all, and with ``RecordBackend``."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mmengine import fileio
from torch.utils.data import DataLoader, Dataset

import mmshared  # noqa: F401  (registers the backend)

from .known_archives import content_of, name_of

DATA_ROOT = '/no/such/place/coco/'  # what is not in the archive would be looked for there
PATIENCE = 120  # seconds, for what takes a few


# ---- readers: read(number) -> bytes. The first four are opened once, and forked
class SharedDescriptor:
    """One descriptor, and where each entry lies."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            self.places = [(member.offset_data, member.size) for member in tar.getmembers()]
        self.descriptor = os.open(archive, os.O_RDONLY)

    def seek(self, number: int) -> None:
        os.lseek(self.descriptor, self.places[number][0], os.SEEK_SET)

    def rest(self, number: int) -> bytes:
        return os.read(self.descriptor, self.places[number][1])

    def read(self, number: int) -> bytes:
        self.seek(number)
        return self.rest(number)


class SharedFile(SharedDescriptor):
    """One file object of Python's."""

    def __init__(self, archive: Path) -> None:
        super().__init__(archive)
        self.file = os.fdopen(self.descriptor, 'rb')

    def seek(self, number: int) -> None:
        self.file.seek(self.places[number][0])

    def rest(self, number: int) -> bytes:
        return self.file.read(self.places[number][1])


class SharedTar:
    """One ``TarFile``."""

    def __init__(self, archive: Path) -> None:
        self.tar = tarfile.open(archive)  # noqa: SIM115
        self.members = {member.name: member for member in self.tar.getmembers()}

    def read(self, number: int) -> bytes:
        return self.tar.extractfile(self.members[name_of(number)]).read()


class SharedZip:
    """One ``ZipFile``."""

    def __init__(self, archive: Path) -> None:
        self.zip = zipfile.ZipFile(archive)

    def read(self, number: int) -> bytes:
        return self.zip.read(name_of(number))


class Record:
    """As a dataset of mmdet reads: a path and ``backend_args``."""

    def __init__(self, backend_args: Dict[str, Any]) -> None:
        self.backend_args = backend_args

    def read(self, number: int) -> bytes:
        return fileio.get(DATA_ROOT + name_of(number), backend_args=self.backend_args)


class Brought:
    """By a backend that a dataset has made itself, and brings along."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def read(self, number: int) -> bytes:
        return self.backend.get(DATA_ROOT + name_of(number))


# ---- what is wrong with what they read
def wrong(read: Callable[[int], bytes], number: int) -> Optional[str]:
    """What is wrong with an entry as it is read; None if nothing is."""
    try:
        data = read(number)
    except Exception as error:
        return f'entry {number}: {type(error).__name__}: {error}'
    if data == content_of(number):
        return None
    return f'entry {number}: {len(data)} bytes that begin with {data[:8].hex()}, not those of the entry'


def read_many(reader: Any, entries: int, reads: int, seed: int, stop: Any) -> List[str]:
    """Read ``reads`` entries at random, or until ``stop`` is set; at the first one that is wrong, set it."""
    draw = random.Random(seed)
    for _ in range(reads):
        if stop.is_set():
            return []
        found = wrong(reader.read, draw.randrange(entries))
        if found:
            stop.set()
            return [found]
    return []


def seek_then_read(reader: Any, number: int, barrier: Any) -> List[str]:
    """Go to an entry, wait until all have done so, and read it."""
    reader.seek(number)
    barrier.wait(PATIENCE)
    return [found for found in [wrong(reader.rest, number)] if found]


# ---- processes
def _tell(connection: Any, start: Any, job: Callable[..., Any], arguments: Tuple[Any, ...]) -> None:
    start.wait(PATIENCE)
    connection.send(job(*arguments))


class Workers:
    """Processes that each do ``job`` with arguments of their own, beginning together; those left are killed at the end.

    Args:
        method: how they start: fork, spawn or forkserver.
        job: what they do.
        arguments: its arguments, of each process.
    """

    def __init__(self, method: str, job: Callable[..., Any], arguments: Sequence[Tuple[Any, ...]]) -> None:
        context = multiprocessing.get_context(method)
        start = context.Barrier(len(arguments))
        self._pipes = [context.Pipe(duplex=False) for _ in arguments]
        self._processes = [
            context.Process(target=_tell, args=(sender, start, job, given))
            for (_, sender), given in zip(self._pipes, arguments)
        ]

    def __enter__(self) -> Workers:
        for process in self._processes:
            process.start()
        return self

    def results(self) -> List[Any]:
        """What ``job`` gave in each.

        Raises:
            TimeoutError: a process has not come to an end.
            RuntimeError: it ended without a result.
        """
        end = time.monotonic() + PATIENCE
        return [self._result(receiver, process, end) for (receiver, _), process in zip(self._pipes, self._processes)]

    def _result(self, receiver: Any, process: Any, end: float) -> Any:
        while not receiver.poll(0.05):
            if time.monotonic() > end:
                raise TimeoutError(f'process {process.pid} hangs: it has not come to an end in {PATIENCE} s')
            if process.exitcode is not None and not receiver.poll():
                raise RuntimeError(f'process {process.pid} ended with code {process.exitcode} and said nothing')
        return receiver.recv()

    def __exit__(self, *error: object) -> None:
        for process, (receiver, sender) in zip(self._processes, self._pipes):
            if process.pid is not None:
                process.kill()
                process.join()
            receiver.close()
            sender.close()


def all_done(method: str, job: Callable[..., Any], arguments: Sequence[Tuple[Any, ...]]) -> List[Any]:
    """What ``job`` gives in :class:`Workers`."""
    with Workers(method, job, arguments) as workers:
        return workers.results()


class Numbers(Dataset):
    """Reads every entry by every reader; a sample is the process that read it, and what is wrong."""

    def __init__(self, readers: Sequence[Any], entries: int) -> None:
        self.readers, self.entries = list(readers), entries

    def __len__(self) -> int:
        return self.entries * len(self.readers)

    def __getitem__(self, index: int) -> Tuple[int, Optional[str]]:
        number, reader = divmod(index, len(self.readers))
        return os.getpid(), wrong(self.readers[reader].read, number)


def epochs(dataset: Numbers, workers: int, reads: int, method: str = 'fork') -> Tuple[int, int, List[str]]:
    """Read shuffled, by one set of workers, epoch after epoch.

    Returns:
        reads done, workers that did them, what was wrong with some.
    """
    loader = DataLoader(
        dataset,
        batch_size=100,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=list,
        multiprocessing_context=method,
        timeout=PATIENCE,
    )
    done, pids, found = 0, set(), []
    while done < reads:
        for batch in loader:
            done += len(batch)
            pids.update(pid for pid, _ in batch)
            found += [text for _, text in batch if text]
    loader._iterator._shutdown_workers()
    return done, len(pids), found[:10]


def rank() -> None:
    """One rank of a job: ``fork_jobs.py SETTINGS OUT``, started by torchrun."""
    settings = json.loads(sys.argv[1])
    readers = [Record(backend_args) for backend_args in settings['archives']]
    seen = epochs(Numbers(readers, settings['entries']), settings['workers'], settings['reads'])
    Path(sys.argv[2], f'{os.environ["RANK"]}.json').write_text(json.dumps(seen))


if __name__ == '__main__':
    rank()
