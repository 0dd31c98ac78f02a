"""How processes are started, and what each is allowed."""

from __future__ import annotations

import os
from typing import Iterator

from mmshared.annotations.cache.errors import size_text

from .finding import Finding, ok, problem, warning
from .system import System

FILES_FEW, FILES_TIGHT = 512, 4096
#: Bytes that the path of a Unix socket may have (unix(7): 108, and one ends it), and those that multiprocessing adds to
#: a temporary folder's: ``/pymp-xxxxxxxx/listener-xxxxxxxx``.
SOCKET_PATH, SOCKET_NAME = 107, 32


def check_start_method(system: System) -> Iterator[Finding]:
    """``fork`` is what MMEngine's configs ask for (``env_cfg``), and what costs least."""
    method = system.start_method()
    if method == 'fork':
        yield ok('start method', 'fork')
    else:
        text = f'{method}: each worker imports everything anew, and gets a copy of what the dataset holds'
        yield warning('start method', text, "env_cfg=dict(mp_cfg=dict(mp_start_method='fork')) in the config")


def check_sockets(system: System) -> Iterator[Finding]:
    """A worker hands tensors over through a socket in the folder for temporary files."""
    folder = system.temporary_folder()
    length, most = len(os.fsencode(folder)), SOCKET_PATH - SOCKET_NAME
    if length <= most:
        yield ok('TMPDIR', folder)
    else:
        text = f'{folder} has {length} bytes: workers cannot hand over tensors ("AF_UNIX path too long")'
        yield problem('TMPDIR', text, f'a path of at most {most} bytes, /tmp for example')


def check_limits(system: System) -> Iterator[Finding]:
    """Open files (workers hand batches over by them), address space (mapped files count), and size of files."""
    files = system.limit('NOFILE')
    if files is not None:
        soft, hard = files
        shown = 'unlimited' if soft < 0 else str(soft)
        more = 'unlimited' if hard < 0 else str(hard)
        advice = (
            f'ulimit -n {more} before the job (docker: --ulimit nofile=65535), or '
            "torch.multiprocessing.set_sharing_strategy('file_system')"
        )
        fails = 'workers hold one for each tensor they hand over ("Too many open files")'
        if 0 <= soft < FILES_FEW:
            yield problem('open files', f'{shown} for a process: {fails}', advice)
        elif 0 <= soft < FILES_TIGHT:
            yield warning('open files', f'{shown} for a process: {fails}', advice)
        else:
            yield ok('open files', f'{shown} for a process')
    for name, subject, flag, fails in (
        ('AS', 'address space', '-v', 'a store that is mapped counts, though it takes no memory'),
        ('FSIZE', 'size of a file', '-f', 'a store cannot be larger'),
    ):
        limit = system.limit(name)
        if limit is not None and limit[0] >= 0:
            yield warning(subject, f'limited to {size_text(limit[0])}: {fails}', f'ulimit {flag} unlimited')
