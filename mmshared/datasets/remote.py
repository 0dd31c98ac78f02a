"""The store of an annotation file wherever mmengine's file backends can read it from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Callable, Iterator, Optional, TypeVar, Union

from mmengine.fileio import LocalBackend, get_file_backend, get_local_path
from mmengine.fileio.backends import backends, prefix_to_backends

from mmshared.annotations import COCO_PATHS, AnnotationStore, Fingerprint, StoreCache, find_store, open_store
from mmshared.annotations.cache import SPACE_ERRNOS, tempfiles_in
from mmshared.annotations.panoptic import KIND as PANOPTIC
from mmshared.annotations.panoptic import PanopticStore, find_panoptic, open_panoptic
from mmshared.fileio.record_backend import RecordBackend

MAX_TEXT = 1000
"""Characters of a backend's own error that go into a message: some quote a whole page of HTML."""
_BLOCK = 1 << 20
Store = TypeVar('Store')


class FetchError(OSError):
    """A remote annotation file could not be fetched; names it, the backend, and the backend's error (its cause)."""


def open_annotations(
    ann_file: Union[str, os.PathLike],
    backend_args: Optional[dict] = None,
    cache_dir: Optional[str] = None,
    refuse: bool = True,
    path_field: str = COCO_PATHS.field,
) -> AnnotationStore:
    """Return the store of ``ann_file``, as ``open_store`` does, fetching the file first if it is a remote one.

    A remote file has two keys:

    - *When to fetch*: address, ``backend_args``, and the job on this node (``mmshared.annotations.cache.job``). One
      process fetches; the others of its job wait and map what it made, also those that come later, as long as one of
      them is alive. The next job fetches again, so it always sees what the file is like at its own start.
    - *What to parse*: address, a hash (blake2b) of all fetched bytes, and the version of the store's format. So a
      job that fetches the same bytes as an earlier one does not parse them again.

    Args:
        ann_file: path or address.
        backend_args: as for ``mmengine.fileio.get_local_path``.
        cache_dir, refuse: as for ``open_store``.
        path_field: the field of an image's record that says where the image lies.

    Raises:
        FetchError: the backend failed, in this process or in the one that fetched for all.
        TypeError: ``backend_args`` are not for the local backend, which is meant.
        AnnotationFileError, CacheError: as from ``open_store``; so are errors of a local file.
    """
    options = {'refuse': refuse, 'path_fields': (path_field,)}
    open_it, find_it = (functools.partial(function, **options) for function in (open_store, find_store))
    return _open_anywhere(ann_file, backend_args, cache_dir, open_it, find_it, purpose=path_field if refuse else '')


def open_panoptic_annotations(
    ann_file: Union[str, os.PathLike], backend_args: Optional[dict] = None, cache_dir: Optional[str] = None
) -> PanopticStore:
    """As :func:`open_annotations`, for a file in COCO's panoptic format."""
    return _open_anywhere(ann_file, backend_args, cache_dir, open_panoptic, find_panoptic, kind=PANOPTIC)


def _open_anywhere(
    ann_file: Union[str, os.PathLike],
    backend_args: Optional[dict],
    cache_dir: Optional[str],
    open_it: Callable[..., Store],
    find_it: Callable[..., Optional[Store]],
    kind: str = '',
    purpose: str = '',
) -> Store:
    address = os.fspath(ann_file)
    if is_local(address, backend_args):
        return open_it(address, cache_dir)

    def fetch(workplace: Path) -> tuple[str, Store]:
        with _fetched(address, backend_args, workplace) as path:
            digest = _digest(path)
            mark = Fingerprint(address, (('blake2b', digest),), os.path.getsize(path), kind=kind)
            return digest, open_it(mark, cache_dir, content=path)

    def find(digest: str) -> Optional[Store]:
        return find_it(Fingerprint(address, (('blake2b', digest),), kind=kind), cache_dir)

    key = json.dumps([address, backend_args, kind, purpose], sort_keys=True, default=repr)
    return StoreCache(cache_dir).once_per_job(key, address, fetch, find)


def is_local(address: str, backend_args: Optional[dict] = None) -> bool:
    """Return whether ``address`` is read where it is, and not fetched.

    Raises:
        TypeError: ``backend_args`` are not for the local backend, which is meant.
    """
    backend = _backend(address, backend_args)
    if backend is RecordBackend and '://' not in address:
        return get_file_backend(address, backend_args=backend_args, enable_singleton=True).is_on_disk(address)
    if getattr(backend, 'get_local_path', None) is not LocalBackend.get_local_path:
        return False
    get_file_backend(address, backend_args=backend_args, enable_singleton=True)  # checks the arguments, as in stock
    return True


def _backend(address: str, backend_args: Optional[dict]) -> Optional[type]:
    """Return the class mmengine would use, None if it has none; makes no instance, as that may open a connection."""
    if backend_args and 'backend' in backend_args:
        return backends.get(backend_args['backend'])
    prefix = address.partition('://')[0].rpartition(':')[2] if '://' in address else ''
    return prefix_to_backends.get(prefix)


@contextlib.contextmanager
def _fetched(address: str, backend_args: Optional[dict], workplace: Path) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            with tempfiles_in(workplace):
                path = stack.enter_context(get_local_path(address, backend_args=backend_args))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in SPACE_ERRNOS:
                raise
            named = (backend_args or {}).get('backend')
            backend = '' if named is None else f' by the file backend {named!r}'
            text = f'{type(error).__name__}: {str(error)[:MAX_TEXT]}'
            raise FetchError(f'The annotation file {address} cannot be fetched{backend}: {text}') from error
        yield os.fspath(path)


def _digest(path: str) -> str:
    digest = hashlib.blake2b(digest_size=32)
    with open(path, 'rb') as file:
        for block in iter(lambda: file.read(_BLOCK), b''):
            digest.update(block)
    return digest.hexdigest()
