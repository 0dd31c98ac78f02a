"""How processes are started, and what each is allowed."""

from __future__ import annotations

from typing import Iterator

from mmshared.annotations.cache.errors import size_text

from .finding import Finding, ok, problem, warning
from .system import System

FILES_FEW, FILES_TIGHT = 512, 4096


def check_start_method(system: System) -> Iterator[Finding]:
    """``fork`` is what MMEngine's configs ask for (``env_cfg``), and what costs least."""
    method = system.start_method()
    if method == 'fork':
        yield ok('start method', 'fork')
    else:
        text = f'{method}: each worker imports everything anew, and gets a copy of what the dataset holds'
        yield warning('start method', text, "env_cfg=dict(mp_cfg=dict(mp_start_method='fork')) in the config")


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
