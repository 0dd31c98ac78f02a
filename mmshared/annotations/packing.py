"""A store at a place of the user's choice: to be shared, read-only, by a team or by all nodes of a cluster."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Union

from .cache import SPACE_ERRNOS, CacheSpaceError, Fingerprint, SourceChangedError
from .cache.errors import free_bytes, size_text
from .cache.inventory import STORE_SUFFIX, forget_derived
from .cache.locks import NoLock
from .cache.progress import Progress
from .cache.publish import Draft, scratch
from .errors import StoreError
from .layout import PATH_FIELDS
from .opening import has_store_magic
from .parsing.builder import build_store

PathLike = Union[str, os.PathLike]


def pack_store(source: PathLike, target: PathLike, force: bool = False) -> int:
    """Parses the annotation file ``source`` into a store at ``target``, which appears there complete or not at all.

    Use ``target`` as ``ann_file`` of a dataset, in place of the JSON. Its permissions follow the umask. Whoever has an
    earlier store of that name mapped keeps it. Nothing is put in the cache.

    Args:
        source: the COCO annotation file.
        target: the store's file; its folder must be there, and takes the scratch files as well.
        force: replace a file at ``target`` even if it is no store.

    Returns:
        Size of the store in bytes.

    Raises:
        AnnotationFileError: ``source`` is not COCO annotations, or all of mmdet's datasets would choke on it.
        StoreError: ``source`` is a store itself.
        FileExistsError: ``target`` is something else than a store.
        CacheSpaceError: the disk is full.
        SourceChangedError: ``source`` was written while it was read.
        OSError: ``source`` cannot be read, or ``target`` cannot be written.
    """
    mark, target = Fingerprint.of_file(source), Path(os.path.abspath(target))
    refuse_store(source)
    check_target(source, target, force)
    progress = Progress(mark.label, NoLock(), mark.size)
    with contextlib.closing(progress), Draft(target.parent) as draft:
        try:
            with open(mark.source, 'rb') as file:
                call = functools.partial(scratch, target.parent)
                violation = build_store(file, mark.source, draft.file, call, progress).of(PATH_FIELDS)
            if violation:
                raise violation
            if mark.again() != mark:
                raise SourceChangedError(f'{mark.source} was written while it was read: pack it when it is complete')
            size = draft.publish(target)
        except OSError as error:
            if error.errno in SPACE_ERRNOS:
                free = size_text(free_bytes(target.parent) or 0)
                raise CacheSpaceError(
                    f'No space in {target.parent} ({error.strerror}, {free} free) for the store of {mark.source}. '
                    f'It needs at most about {size_text(mark.size or 0)}, the size of that file, and as much for '
                    'scratch files'
                ) from error
            raise
        forget_derived(target)
        return size


def refuse_store(source: PathLike) -> None:
    """Raises :class:`StoreError` if the file ``source`` is a store already."""
    if has_store_magic(source):
        raise StoreError(f'{os.fspath(source)}: is a store already. Use it as ann_file as it is')


def check_target(source: PathLike, target: Path, force: bool) -> None:
    """Checks that a store may be put at ``target``, which is only allowed to be a store of before.

    Raises:
        FileExistsError: it is something else, and not ``force``d; or ``source`` itself, or no regular file.
    """
    if not os.path.lexists(target):
        return
    if os.path.exists(target) and os.path.samefile(source, target):
        raise FileExistsError(f'{target}: is the annotation file itself. Choose another name')
    if not os.path.isfile(target):
        raise FileExistsError(f'{target}: is not a regular file. Choose another name')
    if not force and not has_store_magic(target):
        raise FileExistsError(f'{target}: is there, and not a store. Choose another name, or --force to replace it')


def store_name(source: PathLike) -> str:
    """The usual name of a store of ``source``: ``instances_train.mmstore`` for ``instances_train.json``."""
    return f'{Path(source).stem}{STORE_SUFFIX}'
