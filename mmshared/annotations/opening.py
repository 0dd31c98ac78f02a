"""From an annotation file to its store: mapped if it is there, built if it is not.

A file that is a store itself (``mmshared pack -o``) is mapped as it is, whatever its name.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO, Callable, Dict, Optional, Sequence, Union

import numpy as np

from .cache import Fingerprint, Hold, StoreCache
from .container import FORMAT_VERSION, MAGIC, Container, ContainerWriter
from .errors import StoreError, Violations
from .layout import PATH_FIELDS
from .parsing.builder import build_store
from .store import AnnotationStore

Source = Union[str, os.PathLike, Fingerprint]
_ROWS, _DERIVED = 'rows', 'derived'


def open_store(
    source: Source,
    cache_dir: Optional[str] = None,
    content: Optional[str] = None,
    refuse: bool = True,
    path_fields: Sequence[str] = PATH_FIELDS[:1],
) -> AnnotationStore:
    """The store of a COCO annotation file; the first process of a node to ask builds it, the others wait for it.

    Args:
        source: path of the file, or of a store, or a :class:`~.cache.Fingerprint` of something that is no local file.
        cache_dir: folder of the stores; see :class:`~.cache.StoreCache`.
        content: local path to read from, where ``source`` is a fingerprint.
        refuse: whether to raise for a file that mmdet's datasets would choke on. Else the result's ``violations`` say
            what that is.
        path_fields: which of :data:`~.layout.PATH_FIELDS` may say where images lie, if all have it.

    Raises:
        AnnotationFileError: the file is not COCO annotations, or mmdet's datasets would choke on it.
        StoreError: the file is a store, but a torn one, or of another version.
        FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
        CacheError: no store can be written.
    """

    def build(path: str, out: BinaryIO, progress: Callable[[int, int], None], scratch: Callable[[], BinaryIO]) -> None:
        readable = path if content is None else content
        with open(readable, 'rb') as file:
            if has_store_magic(readable):
                violations = AnnotationStore(readable).violations
                shutil.copyfileobj(file, out)
            else:
                violations = build_store(file, path, out, scratch, progress)
        if refuse:
            _refuse(violations, path_fields)

    if not isinstance(source, Fingerprint) and has_store_magic(source):
        store = AnnotationStore(os.path.abspath(source))  # it pickles to its path
    else:
        store = _map(StoreCache(cache_dir, FORMAT_VERSION).acquire(source, build, is_store))
    if refuse:
        _refuse(store.violations, path_fields)
    return store


def find_store(
    source: Fingerprint,
    cache_dir: Optional[str] = None,
    refuse: bool = True,
    path_fields: Sequence[str] = PATH_FIELDS[:1],
) -> Optional[AnnotationStore]:
    """As :func:`open_store`, but None where it would have to be built."""
    hold = StoreCache(cache_dir, FORMAT_VERSION).find(source, is_store)
    if hold is None:
        return None
    store = _map(hold)
    if refuse:
        _refuse(store.violations, path_fields)
    return store


def _map(hold: Hold) -> AnnotationStore:
    with hold:
        return AnnotationStore(hold.path)


def _refuse(violations: Violations, path_fields: Sequence[str]) -> None:
    violation = violations.of(path_fields)
    if violation is not None:
        raise violation


def has_store_magic(path: Union[str, os.PathLike]) -> bool:
    """Whether the file at ``path`` begins as a store does, be it whole or not. False for what cannot be read."""
    if not os.path.isfile(path):  # a pipe would hang
        return False
    try:
        with open(path, 'rb') as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def is_store(path: Path) -> bool:
    """Whether the file at ``path`` is a whole store of this version."""
    try:
        AnnotationStore(path)
    except (StoreError, OSError):
        return False
    return True


def source_of(path: Path) -> Optional[str]:
    """The annotation file that the store at ``path`` was made from, as it says itself; None if it is not readable.

    It does not count as a use of the store.
    """
    try:
        return _source(path, os.O_RDONLY | getattr(os, 'O_NOATIME', 0))
    except PermissionError:  # not the owner's question
        pass
    except (OSError, StoreError):
        return None
    try:
        return _source(path, os.O_RDONLY)
    except (OSError, StoreError):
        return None


def _source(path: Path, flags: int) -> Optional[str]:
    descriptor = os.open(path, flags)
    try:
        source = Container(path, descriptor).attributes.get('source')
    finally:
        os.close(descriptor)
    return source if isinstance(source, str) else None


def shared_rows(
    store: AnnotationStore, key: str, compute: Callable[[], Optional[np.ndarray]], cache_dir: Optional[str] = None
) -> Optional[np.ndarray]:
    """As :func:`shared_columns`, for one array of row numbers (shape (M,)), or None, which is kept as well."""

    def columns() -> Dict[str, np.ndarray]:
        rows = compute()
        return {} if rows is None else {_ROWS: rows.astype('<i4')}

    return shared_columns(store, key, columns, cache_dir).get(_ROWS)


def shared_columns(
    store: AnnotationStore, key: str, compute: Callable[[], Dict[str, np.ndarray]], cache_dir: Optional[str] = None
) -> Dict[str, np.ndarray]:
    """Arrays that follow from ``store`` and ``key``: computed once, mapped by every process.

    Args:
        store: the store.
        key: whatever else the arrays depend on.
        compute: gives them by name, in dtypes that a :class:`~.container.Container` takes.
        cache_dir: as for :func:`open_store`.
    """
    computed = []

    def build(out: BinaryIO) -> None:
        computed.append(compute())
        writer = ContainerWriter(out)
        for name, array in computed[0].items():
            writer.add(name, array)
        writer.close({_DERIVED: key})

    def check(path: Path) -> bool:
        try:
            return Container(path).attributes.get(_DERIVED) == key
        except (StoreError, OSError):
            return False

    path = StoreCache(cache_dir, FORMAT_VERSION).derived(store.path, key, build, check)
    if path is None:
        return computed[0] if computed else compute()
    try:
        return Container(path).columns
    except (StoreError, OSError):  # removed just now
        return compute()
