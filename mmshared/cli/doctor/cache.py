"""Where stores go, and whether that is a good place."""

from __future__ import annotations

from itertools import takewhile
from typing import Iterator, List, Optional

from mmshared.annotations import StoreCache
from mmshared.annotations.cache import locks
from mmshared.annotations.cache.errors import size_text
from mmshared.annotations.cache.location import Folder

from .finding import Finding, ok, problem, warning
from .system import Space, System

#: Below this a store of any size will hardly fit, and below that one of a large file may not.
FULL, TIGHT = 100_000_000, 5_000_000_000
_MOVE = 'set MMSHARED_CACHE, or cache_dir of the dataset, to a folder on a local disk'


def check_cache(system: System, cache_dir: Optional[str]) -> Iterator[Finding]:
    """The folder that the next store is built in, its file system, space and locks."""
    cache = StoreCache(cache_dir)
    reasons: List[str] = []
    chosen = _with_space(system, cache.where(reasons), reasons)
    if chosen is None:
        yield problem('cache', f'no folder can be written: {"; ".join(reasons)}', f'{_MOVE} that you may write')
        return
    text = '. '.join([*reasons, f'stores go to {chosen.path}'])
    if chosen.named or all(folder.network() for folder in takewhile(lambda folder: folder != chosen, cache.folders())):
        yield ok('cache', text)
    else:
        yield warning('cache', text, f'all is well if that suits you. Else {_MOVE}')
    yield _filesystem(system, chosen)
    yield _space(system, chosen)
    yield _locks(chosen)


def _with_space(system: System, folders: Iterator[Folder], reasons: List[str]) -> Optional[Folder]:
    """The folder that a job ends up in: a full one gives way to the next, unless the user named it."""
    first = None
    for folder in folders:
        space = system.space(folder.path)
        if folder.named or space is None or not _is_full(space):
            return folder
        first = first or folder
        reasons.append(f'{folder.path} is full')
    if first is not None:
        reasons.clear()  # the others are no better
    return first


def _is_full(space: Space) -> bool:
    return space.free < FULL or space.files == 0


def _filesystem(system: System, folder: Folder) -> Finding:
    network, name = system.network(folder.path), system.filesystem(folder.path) or 'unknown file system'
    if network:
        text = f'{folder.path} is on a network file system ({network}): reading annotations waits for the network'
        return warning('file system', text, _MOVE)
    return ok('file system', f'{name}, local')


def _space(system: System, folder: Folder) -> Finding:
    space = system.space(folder.path)
    if space is None:
        return ok('cache space', 'cannot be told here')
    text = f'{size_text(space.free)} free of {size_text(space.total)}'
    if space.files == 0:
        return problem('cache space', f'{text}, but no further file can be made', f'remove some files, or {_MOVE}')
    wants = 'a store and its scratch files take about 0.9 times the size of the JSON'
    if space.free < FULL:
        return problem('cache space', f'{text}: {wants}', f'make room ("mmshared cache prune"), or {_MOVE}')
    if space.free < TIGHT:
        return warning('cache space', f'{text}: {wants}', f'enough for small files. Else make room, or {_MOVE}')
    return ok('cache space', text)


def _locks(folder: Folder) -> Finding:
    try:
        trouble = locks.problem(folder.path)
    except OSError as error:
        return problem('file locks', f'cannot be tried in {folder.path}: {error.strerror}', 'make room there')
    if trouble is None:
        return ok('file locks', 'work in the cache folder: one process builds, the others wait')
    text = f'{trouble}: several processes may build the same store at once'
    return warning('file locks', text, f'{_MOVE}, or "mmshared pack" before the job')
