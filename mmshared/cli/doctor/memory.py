"""Shared memory for DataLoader workers, and what the container allows."""

from __future__ import annotations

import os
import posixpath
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from mmshared.annotations.cache.errors import size_text

from .finding import Finding, ok, problem, warning
from .system import System

SHM_FEW, SHM_TIGHT = 128 << 20, 1 << 30
_SHM_ADVICE = (
    'docker run --shm-size=8g (or --ipc=host); Kubernetes: mount an emptyDir with medium: Memory on /dev/shm; as root: '
    'mount -o remount,size=8g /dev/shm'
)
_UNLIMITED = 1 << 60


def check_shm(system: System) -> Iterator[Finding]:
    """``/dev/shm``, through which workers hand batches to the main process."""
    path = system.path('/dev/shm')
    space = system.space(path) if path.is_dir() else None
    if space is None:
        yield warning('/dev/shm', 'is not there: workers cannot hand batches over in shared memory', _SHM_ADVICE)
        return
    text = f'{size_text(space.free)} free of {size_text(space.total)}'
    if not os.access(path, os.W_OK):
        yield problem('/dev/shm', f'{text}, but you may not write there', 'as root: chmod 1777 /dev/shm')
    elif space.total < SHM_FEW:
        fails = 'a job with workers fails ("Bus error", "No space left on device")'
        yield problem('/dev/shm', f'{text}, too small: {fails}', _SHM_ADVICE)
    elif space.free < SHM_FEW:
        yield problem('/dev/shm', f'{text}, too little', 'remove what killed jobs left there (ls -l /dev/shm)')
    elif space.free < SHM_TIGHT:
        yield warning('/dev/shm', f'{text}: enough for small batches and few workers', _SHM_ADVICE)
    else:
        yield ok('/dev/shm', text)


class Usage(NamedTuple):
    """A container's memory in bytes: its limit, what is in use, and the parts that cannot and can be evicted."""

    limit: int
    used: Optional[int]
    anonymous: int
    file: int


def check_memory(system: System) -> Iterator[Finding]:
    """The machine's memory, and the limit of the control group this process is in."""
    machine = _fields(system.read('/proc/meminfo') or '', 1024)
    total, available = machine.get('MemTotal'), machine.get('MemAvailable')
    if total and available is not None:
        text = f'{size_text(available)} available of {size_text(total)}'
        if available < total / 20:
            yield warning('memory', text, 'see what else runs here; fewer workers or ranks take less')
        else:
            yield ok('memory', text)
    usage = container_usage(system)
    if usage is None:
        yield ok('memory limit', 'none is set for this container')
        return
    parts = (
        f'{size_text(usage.anonymous)} anonymous, {size_text(usage.file)} of files, which the system evicts when needed'
    )
    used = '' if usage.used is None else f'{size_text(usage.used)} in use: '
    text = f'{size_text(usage.limit)} for this container; {used}{parts}'
    if usage.anonymous > 0.8 * usage.limit:
        advice = 'raise the limit, or use fewer workers or ranks: beyond it the kernel kills the job'
        yield warning('memory limit', text, advice)
    else:
        yield ok('memory limit', text)


def container_usage(system: System) -> Optional[Usage]:
    """Limit and use of the control group (v2 or v1) with the tightest limit that holds this process; None without."""
    groups = [(folder, *_v2(system, folder)) for folder in _folders(system, 'cgroup2', None)]
    groups += [(folder, *_v1(system, folder)) for folder in _folders(system, 'cgroup', 'memory')]
    found = [usage for _, limit, usage in groups if limit is not None and usage is not None]
    machine = _fields(system.read('/proc/meminfo') or '', 1024).get('MemTotal', _UNLIMITED)
    found = [usage for usage in found if usage.limit < min(machine, _UNLIMITED)]
    return min(found, key=lambda usage: usage.limit, default=None)


def _v2(system: System, folder: str) -> Tuple[Optional[int], Optional[Usage]]:
    limit = _number(system.read(f'{folder}/memory.max'))  # 'max' is no number
    stat = _fields(system.read(f'{folder}/memory.stat') or '')
    if limit is None:
        return None, None
    used = _number(system.read(f'{folder}/memory.current'))
    shared = stat.get('shmem', 0)  # counted with files, though it goes to swap at best
    return limit, Usage(limit, used, stat.get('anon', 0) + shared, stat.get('file', 0) - shared)


def _v1(system: System, folder: str) -> Tuple[Optional[int], Optional[Usage]]:
    limit = _number(system.read(f'{folder}/memory.limit_in_bytes'))
    stat = _fields(system.read(f'{folder}/memory.stat') or '')
    if limit is None:
        return None, None
    limit = min(limit, stat.get('hierarchical_memory_limit', limit))
    used = _number(system.read(f'{folder}/memory.usage_in_bytes'))
    anonymous, cache, shared = (stat.get(f'total_{name}', stat.get(name, 0)) for name in ('rss', 'cache', 'shmem'))
    return limit, Usage(limit, used, anonymous + shared, cache - shared)


def _folders(system: System, kind: str, controller: Optional[str]) -> List[str]:
    """This process's control group in each hierarchy of ``kind``, and the groups above it, as paths."""
    group = _group(system, controller)
    found: List[str] = []
    for mount, root, options in _mounts(system, kind):
        if controller is not None and controller not in options.split(','):
            continue
        inside = '' if group is None or group.startswith('/..') else posixpath.relpath(group, root)
        if inside.startswith('..') or inside == '.':  # seen from within its namespace, it is the mount itself
            inside = ''
        parts = [part for part in inside.split('/') if part]
        found += [posixpath.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def _group(system: System, controller: Optional[str]) -> Optional[str]:
    """The path of this process's control group: of the v1 ``controller``, None: of v2."""
    for line in (system.read('/proc/self/cgroup') or '').splitlines():
        _, controllers, path = (line.split(':', 2) + ['', ''])[:3]
        if controllers == '' if controller is None else controller in controllers.split(','):
            return path or None
    return None


def _mounts(system: System, kind: str) -> Iterator[Tuple[str, str, str]]:
    """Where file systems of ``kind`` are mounted, which part of them, and their options."""
    for line in (system.read('/proc/self/mountinfo') or '').splitlines():
        fields, _, rest = line.partition(' - ')
        left, right = fields.split(), rest.split()
        if len(left) >= 5 and len(right) >= 3 and right[0] == kind:
            yield left[4], left[3], right[2]


def _fields(text: str, unit: int = 1) -> Dict[str, int]:
    """The numbers of lines such as ``anon 4096`` or ``MemTotal:  16 kB``, by name."""
    return {name: int(value) * unit for name, value in re.findall(r'^(\w+)(?:\(\w+\))?:?\s+(\d+)', text, re.MULTILINE)}


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.strip().isdigit() else None
