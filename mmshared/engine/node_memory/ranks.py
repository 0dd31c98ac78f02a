"""What the ranks of a job tell each other about their workers on one node, without talking to each other.

Each rank keeps a nameless file in memory (``memfd``). Other processes of the same user find it in ``/proc`` among the
rank's open files. Nobody waits for anybody, and nothing is left when a rank is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Dict, Iterator, List, Optional

from .process import links, parents

_NAME = 'mmshared-rank'
_LINK = f'/memfd:{_NAME} '.encode()  # followed by '(deleted)'
_LOCAL_RANKS = ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK')
_LOCAL_SIZES = ('LOCAL_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_SIZE', 'SLURM_STEP_TASKS_PER_NODE')


def local_rank() -> int:
    """The rank of this process among those of its node, as its launcher says; 0 if no launcher does."""
    values = (os.environ.get(name, '') for name in _LOCAL_RANKS)
    return next((int(value) for value in values if value.isdigit()), 0)


def local_size() -> Optional[int]:
    """How many ranks this node has, as the launcher says; None if it does not."""
    for name in _LOCAL_SIZES:
        same_on_all_nodes = re.fullmatch(r'(\d+)(?:\(x\d+\))?', os.environ.get(name, ''))
        if same_on_all_nodes:
            return int(same_on_all_nodes[1])
    return None


class Notice:
    """What this rank tells.

    Args:
        job: what the ranks of a job, and no others, have in common.

    Raises:
        OSError, AttributeError: there are no such files here.
    """

    def __init__(self, job: str) -> None:
        self._job, self._size = job, 0
        self._file = os.fdopen(os.memfd_create(_NAME), 'wb', buffering=0)
        self.post({})

    def post(self, workers: Dict[int, str]) -> None:
        """Tell the phases of this rank's workers, by process id."""
        text = json.dumps(dict(job=self._job, pid=os.getpid(), workers=list(workers.items()))).encode()
        self._size = max(self._size, len(text))
        os.pwrite(self._file.fileno(), text.ljust(self._size), 0)

    def close(self) -> None:
        """Tell nothing any more."""
        self._file.close()


class Ranks:
    """The ranks of a job on this node, seen from one of them.

    Args:
        job: as for :class:`Notice`.
        expected: how many there are; None if that is not known. They are looked for until all are found.

    Attributes:
        pids: process ids of those that were found, this process first.
    """

    def __init__(self, job: str, expected: Optional[int]) -> None:
        self._job, self._expected = job, expected
        self._paths: Dict[int, str] = {}
        self._last: Dict[int, Dict[int, str]] = {}

    @property
    def pids(self) -> List[int]:
        """See the class."""
        own = os.getpid()
        return [own, *(pid for pid in self._paths if pid != own)]

    def find(self) -> bool:
        """Look for ranks that are not found yet; returns whether all are."""
        candidates = self._candidates()
        while len(self.pids) != self._expected:
            pid = next(candidates, None)
            if pid is None:
                return False
            for path, name in links(pid):
                if name.startswith(_LINK) and self._read(pid, path) is not None:
                    self._paths[pid] = path
        return True

    def workers(self) -> Dict[int, str]:
        """The phases of the workers of all ranks, by process id, as far as they are told."""
        found = {}
        for pid, path in self._paths.items():
            told = self._read(pid, path)
            if told is not None:  # else it is being written, or the rank has ended
                self._last[pid] = told
            found.update(self._last.get(pid, {}))
        return found

    def _candidates(self) -> Iterator[int]:
        """Other processes of this user, those first that have the same parent: ranks mostly do."""
        known, own, family = {*self.pids}, os.getppid(), parents()
        for pid in sorted(family, key=lambda pid: family[pid] != own):
            with contextlib.suppress(OSError):
                if pid not in known and os.stat(f'/proc/{pid}').st_uid == os.getuid():
                    yield pid

    def _read(self, pid: int, path: str) -> Optional[Dict[int, str]]:
        """What the notice at ``path`` tells, if it is of this job and of process ``pid`` (its children have it too)."""
        try:
            with open(path, 'rb') as file:
                told = json.loads(file.read())
            if told['job'] == self._job and told['pid'] == pid:
                return dict(told['workers'])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None
