"""What lies in a cache folder, and removing what nobody needs: never a store in use."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, List, Optional

from . import holds
from .publish import DATA_SUFFIX, sweep

STORE_SUFFIX = '.mmstore'
DERIVED_SUFFIX = '.derived'
_DERIVED = re.compile(r'.+\.[0-9a-f]{16}\.derived', re.DOTALL)  # the user may keep other files there


@dataclass(frozen=True)
class Entry:
    """A store, or the data of a dataset that was loaded once for all, in the cache.

    Attributes:
        path: The file.
        source: What it was made from: as the caller's ``describe`` says, else the beginning of the store's name.
        size: Bytes, those of the small files derived from it included.
        mtime: When it was built, in seconds since the epoch.
        last_used: When it was last opened, to the hour, in seconds since the epoch.
        in_use: Whether a process holds it now.
    """

    path: Path
    source: str
    size: int
    mtime: float
    last_used: float
    in_use: bool


def entries(folder: Path, describe: Optional[Callable[[Path], Optional[str]]] = None) -> List[Entry]:
    """The stores in ``folder``, by name. A folder that is missing or unreadable has none."""
    found = []
    for path in _files(folder):
        if path.suffix not in (STORE_SUFFIX, DATA_SUFFIX):
            continue
        with contextlib.suppress(FileNotFoundError):  # removed just now
            info = path.stat()
            size = info.st_size + sum(part.stat().st_size for part in _derived_from(path))
            source = (describe(path) if describe else None) or path.stem.rpartition('-v')[0] or path.stem
            found.append(
                Entry(path, source, size, info.st_mtime, max(info.st_atime, info.st_mtime), holds.in_use(path))
            )
    return found


def prune(
    folder: Path, unused_seconds: Optional[float], max_bytes: Optional[int], dry_run: bool = False
) -> List[Entry]:
    """Remove, in ``folder``, stores not used for so long, then the longest unused ones beyond ``max_bytes`` in all.

    Leftovers of crashed processes go too. With ``dry_run`` everything stays.

    Returns:
        The stores that were removed, or would have been.
    """
    if not dry_run:
        sweep(folder)
    stores = sorted(entries(folder), key=lambda entry: entry.last_used)
    total = sum(entry.size for entry in stores)
    removed = []
    for entry in stores:
        unused = unused_seconds is not None and time.time() - entry.last_used >= unused_seconds
        beyond = max_bytes is not None and total > max_bytes
        if (unused or beyond) and (not entry.in_use if dry_run else remove(entry.path)):
            removed.append(entry)
            total -= entry.size
    if not dry_run:
        _remove_orphans(folder)
    return removed


def remove(path: Path) -> bool:
    """Remove the store at ``path`` and what was derived from it, unless it is in use; whether that was done."""
    try:
        with holds.exclusive(path) as free:
            if free is False:
                return False
            os.unlink(path)
    except OSError:  # on Windows: somebody has it open
        return False
    forget_derived(path)
    return True


def remove_superseded(store: Path, prefix: str) -> None:
    """Remove the stores of earlier contents of the same source: names with ``prefix`` in the folder of ``store``."""
    for path in _files(store.parent):
        if path.name.startswith(prefix) and path.suffix == STORE_SUFFIX and path.name != store.name:
            remove(path)


def forget_derived(store: Path) -> None:
    """Remove the files derived from ``store``; whoever has one mapped keeps it."""
    for path in _derived_from(store):
        with contextlib.suppress(OSError):
            os.unlink(path)


def _derived_from(store: Path) -> List[Path]:
    return [
        path
        for path in _files(store.parent)
        if path.suffix == DERIVED_SUFFIX and path.name.startswith(f'{store.name}.')
    ]


def _remove_orphans(folder: Path) -> None:
    """Remove derived files whose store is in this folder no more (or lies elsewhere: they are cheap to make again)."""
    files = _files(folder)
    names = {path.name for path in files}
    for path in files:
        if _DERIVED.fullmatch(path.name) and Path(path.stem).stem not in names:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _files(folder: Path) -> List[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder))
    except OSError:
        return []
