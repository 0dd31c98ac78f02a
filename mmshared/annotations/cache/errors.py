"""What can go wrong with the cache, as exceptions whose text says what to do, and how they travel between processes.

One process builds for all on its node. When the build fails, those who waited must fail in the same way instead of
parsing the same bad file once more each, so the builder leaves its exception as plain JSON (never a pickle) in the
lock file, and they rebuild it from there.
"""

from __future__ import annotations

import builtins
import errno
import os
import shutil
import sys
from typing import Any, Dict, Optional

MAX_TEXT = 4000  # characters of an exception's text that are passed on
SPACE_ERRNOS = frozenset(getattr(errno, name) for name in ('ENOSPC', 'EDQUOT', 'EFBIG') if hasattr(errno, name))
HOW_TO_MOVE = "set the environment variable MMSHARED_CACHE, or cache_dir in the dataset's config, to a folder"


class CacheError(RuntimeError):
    """The cache of annotation stores cannot do what was asked. The base of the errors below."""


class CacheSpaceError(CacheError):
    """The disk or the quota is full. Names the folder, what is free, what is needed, and what to set."""


class CacheAccessError(CacheError):
    """No folder can be written, or the one in use stopped being writable. Names each folder and its reason."""


class SourceChangedError(CacheError):
    """The file kept changing while it was being read."""


class BuildFailedError(CacheError):
    """The build failed in another process of this node, with an exception that cannot be rebuilt in this one."""


def size_text(size: float) -> str:
    """``size`` bytes for people: '293 MB' (1 MB is 10**6 bytes)."""
    for unit in ('bytes', 'kB', 'MB'):
        if size < 1000:
            return f'{size:.0f} {unit}' if size >= 10 or unit == 'bytes' else f'{size:.1f} {unit}'
        size /= 1000
    return f'{size:.1f} GB'


def free_bytes(folder: os.PathLike) -> Optional[int]:
    """Bytes that this user may still write in ``folder`` (quotas aside), or None where that cannot be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def explain(error: OSError, folder: os.PathLike, source: str, need: Optional[int] = None) -> CacheError:
    """Turn the ``error`` of a write in the cache into one that says what to do.

    Args:
        error: What the system said.
        folder: The cache folder that was being written.
        source: The annotation file the store is for.
        need: Bytes that a store for it may take at most, if known.

    Returns:
        CacheSpaceError for a full disk or quota, else CacheAccessError. The caller raises it ``from error``.
    """
    reason = error.strerror or str(error)
    if error.errno in SPACE_ERRNOS:
        free = free_bytes(folder)
        have = '' if free is None else f', {size_text(free)} free'
        wants = '' if need is None else f' It needs at most about {size_text(need)}, the size of that file.'
        return CacheSpaceError(
            f'No space in the cache folder {folder} ({reason}{have}) for the store of {source}.{wants} '
            f'Make room there, or {HOW_TO_MOVE} with more space.'
        )
    return CacheAccessError(
        f'Cannot write the store of {source} in the cache folder {folder}: {reason}. '
        f'Make it writable, or {HOW_TO_MOVE} that is.'
    )


def to_note(error: BaseException) -> Dict[str, Any]:
    """``error`` as a small JSON-able dict: the names of its class, its text (bounded), its arguments if plain."""
    note: Dict[str, Any] = {
        'module': type(error).__module__,
        'class': type(error).__qualname__,
        'text': str(error)[:MAX_TEXT],
    }
    plain = all(isinstance(arg, (str, int, type(None))) for arg in error.args)
    if plain and error.args != (note['text'],) and len(repr(error.args)) <= MAX_TEXT:
        note['args'] = list(error.args)
    return note


def from_note(note: Dict[str, Any]) -> Exception:
    """The exception that :func:`to_note` described: of the same text, and class if this process knows it.

    Where the class has a peculiar constructor, the nearest base that takes a text stands in (ValueError for
    JSONDecodeError), or BuildFailedError. Nothing is imported for it, and nothing but exceptions is built.
    """
    text = str(note.get('text', ''))
    found: Any = sys.modules.get(str(note.get('module')), builtins)
    for part in str(note.get('class')).split('.'):
        found = getattr(found, part, None)
    bases = found.__mro__ if isinstance(found, type) and issubclass(found, Exception) else ()
    for base in bases[: bases.index(Exception)] if bases else ():
        for args in (note.get('args'), [text]):
            try:
                error = base(*args)  # type: ignore[misc]
            except Exception:  # a constructor of its own, or no args
                continue
            if isinstance(error, Exception) and str(error)[:MAX_TEXT] == text:
                return error
    return BuildFailedError(f'{note.get("class")}: {text}')
