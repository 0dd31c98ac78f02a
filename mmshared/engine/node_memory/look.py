"""One look at the memory of a job's processes on this node."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from typing import Dict, Iterable, List, NamedTuple, Union

from .process import SHARED_FILES, SHM, File, Memory, links, memory_of, parents

MB = 1e6
_NAMED_BY_TORCH = re.compile(rb'torch_(\d+)_')


class Look(NamedTuple):
    """Bytes of a job on this node, each page counted once: ``total`` is the sum of all but ``pss``.

    What is swapped out, the memory of accelerators, and the launcher's own process are not counted.

    Attributes:
        main, train_workers, val_workers, other: private memory (:class:`~.process.Memory`) of main processes, of
            workers for training and for validation or test, and of their other descendants, such as workers that are
            not yet known to the one who looks.
        annotations: pages of annotation stores that are mapped by processes of this job. (What others map too counts
            by share.)
        shm: files in shared memory (``/dev/shm``, ``memfd_create``) that the job has open: batches on their way to the
            main process, and packed ones' memory that is free for the next, mapped or not.
        shared: what several processes map otherwise: libraries, and pages that workers have inherited with ``fork``
            and that neither they nor their parent have written since, the parent's annotations perhaps.
        pss: all that is mapped. Batches that wait in a queue are not mapped by anybody.
        ranks, trainers, validators, others: the numbers of processes.
    """

    main: int
    train_workers: int
    val_workers: int
    other: int
    annotations: int
    shm: int
    shared: int
    pss: int
    ranks: int
    trainers: int
    validators: int
    others: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(self[:7])

    def scalars(self) -> Dict[str, float]:
        """For visualizer backends: MB (10**6 bytes) by name."""
        sizes = {**dict(zip(self._fields[:8], self[:8])), 'total': self.total}
        return {f'node_memory/{name}_mb': round(size / MB, 3) for name, size in sizes.items()}

    def __str__(self) -> str:
        private = [(self.ranks, 'main', self.main)]
        private.append((self.trainers, 'train workers', self.train_workers))
        private.append((self.validators, 'val workers', self.val_workers))
        private += [(self.others, 'other', self.other)] if self.others else []
        parts = ', '.join(f'{count} {name} {size / MB:,.0f}' for count, name, size in private)
        rest = [('annotations', self.annotations), ('shared memory', self.shm), ('shared', self.shared)]
        others = ', '.join(f'{name} {size / MB:,.0f}' for name, size in rest)
        return f'{self.total / MB:,.0f} MB (PSS {self.pss / MB:,.0f}); private: {parts}; {others}'


def look_at(ranks: Iterable[int], workers: Dict[int, str]) -> Look:
    """Look at the processes ``ranks`` and all that descend from them.

    Args:
        ranks: process ids of main processes.
        workers: phase ('train', 'val' or 'test') by the process id of a worker, as far as they are known.
    """
    sums, counts = Counter(), Counter()
    shared = annotations = pss = 0
    mapped: Counter = Counter()  # by file
    pids = _with_descendants(ranks)
    roles = {**{pid: _ROLES.get(phase, 'other') for pid, phase in workers.items()}, **dict.fromkeys(ranks, 'main')}
    for pid in pids:
        memory = memory_of(pid)
        if memory is None:  # it has just ended
            continue
        role = roles.get(pid, 'other')
        counts[role] += 1
        sums[role] += memory.private
        annotations, pss = annotations + memory.annotations, pss + memory.pss
        mapped.update(memory.shm_files)
        shared += _rest(memory)
    # Of pages that come or go while processes are read one after the other, some have one part only.
    kinds = ('main', 'train_workers', 'val_workers', 'other')
    opened = _open_files(pids)
    shm = sum(max(opened.get(file, 0), mapped[file]) for file in {*opened, *mapped})
    return Look(*(sums[kind] for kind in kinds), annotations, shm, shared, pss, *(counts[kind] for kind in kinds))


_ROLES = {'train': 'train_workers', 'val': 'val_workers', 'test': 'val_workers'}


def _rest(memory: Memory) -> int:
    return max(0, memory.pss - memory.private - memory.annotations - memory.shm)


def _with_descendants(roots: Iterable[int]) -> List[int]:
    children: Dict[int, List[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = list(dict.fromkeys(roots))
    for pid in found:  # which grows meanwhile
        found += [child for child in children.get(pid, ()) if child not in found]
    return found


def _open_files(pids: List[int]) -> Dict[File, int]:
    """Bytes of each file in shared memory that these processes have open, or that PyTorch named after one of them.

    A batch that waits in a queue is mapped by nobody: its worker holds it by a descriptor. With the sharing strategy
    'file_system' nobody has it open, and its name tells who made it.
    """
    files: Dict[File, int] = {}
    for pid in pids:
        for path, name in links(pid):
            if name.startswith(SHARED_FILES):
                _note_size(files, path)
    with contextlib.suppress(OSError):
        for name in os.listdir(SHM):
            maker = _NAMED_BY_TORCH.match(name)
            if maker and int(maker[1]) in pids:
                _note_size(files, SHM + name)
    return files


def _note_size(files: Dict[File, int], path: Union[str, bytes]) -> None:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        files[status.st_dev, status.st_ino] = status.st_blocks * 512
