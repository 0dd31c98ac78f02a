"""Which job does this process belong to?

What one process has found out about the outside world (a remote file, say) holds for the others of its job, and not for
the next job. Launchers leave identifiers in the environment, but most of them come again: ``torchrun`` calls itself
'none', ports and process ids are used anew. So an identifier counts only among processes that live at the same time
(see :mod:`.notes`), on one boot of one node, in one network namespace, where no two jobs listen on one port.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

# (number of processes, what is the same in all of them and differs between jobs), innermost launcher first.
_LAUNCHERS = (
    ('WORLD_SIZE', ('TORCHELASTIC_RUN_ID', 'MASTER_ADDR', 'MASTER_PORT')),
    ('SLURM_STEP_NUM_TASKS', ('SLURM_JOB_ID', 'SLURM_STEP_ID')),
    ('OMPI_COMM_WORLD_SIZE', ('PMIX_NAMESPACE',)),
    ('WORLD_SIZE', ('MASTER_ADDR', 'MASTER_PORT')),
)


def job_key() -> str:
    """A text that is the same in all processes of this job on this node, and in no other that runs meanwhile.

    The job is what a launcher started: torchrun (its run id, master address and port), a Slurm step of several tasks,
    Open MPI, or anything that sets ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``. Else it is this process, or the
    one whose ``multiprocessing`` child this process is; then process id and start time identify it.
    """
    for size, names in _LAUNCHERS:
        values = [os.environ.get(name) for name in names]
        if None not in values and _number(os.environ.get(size)) > 1:
            return ' '.join([_node(), *map('='.join, zip(names, values))])
    parent = multiprocessing.parent_process()
    pid = os.getpid() if parent is None or parent.pid is None else parent.pid
    return f'{_node()} {_link("pid")} pid={pid} {_start(pid)}'


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _node() -> str:
    try:
        boot = Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()
    except OSError:
        boot = socket.gethostname()
    return f'{boot} {_link("net")}'


def _link(kind: str) -> str:
    """This process's namespace of that kind: containers on one node have their own; empty where there is none."""
    try:
        return os.readlink(f'/proc/self/ns/{kind}')
    except OSError:
        return ''


def _start(pid: int) -> str:
    """When the process began, in clock ticks since boot, or nothing where that cannot be told."""
    try:
        text = Path(f'/proc/{pid}/stat').read_bytes()
    except OSError:
        return ''
    return text.rpartition(b')')[2].split()[19].decode('ascii')  # field 22; field 2 may hold spaces and brackets
