"""``backend='record'``: files in archives, for everything in MMEngine that takes ``backend_args``."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple, Union

from mmengine.fileio import FileClient, LocalBackend, register_backend

from mmshared.annotations.cache import StoreCache

from .archives import ArchiveArg
from .errors import ArchiveError
from .mounts import Mount, NoMount, split_at_archive

NAME = 'record'
PREFIX = f'{NAME}://'
PathLike = Union[str, Path]


@FileClient.register_backend(NAME, prefixes=NAME, force=True)
@register_backend(NAME, prefixes=NAME, force=True)
class RecordBackend(LocalBackend):
    """Reads files from a tar, zip or RecordIO archive, or from a set of them; and what is not in it, from the disk.

    ``backend_args=dict(backend='record', archive='data/coco/train2017.zip')`` in a dataset and its
    ``LoadImageFromFile`` is all a config needs: paths stay as they are. Any number of processes may read, however they
    are started, and whatever was read before; threads, too.

    Which entry a path means: see :class:`~.resolution.Resolver`. Everything else is read from the disk, as the default
    backend does: the annotation file has the same ``backend_args``, as a rule. So is everything that is written;
    archives are never changed.

    Without ``archive`` paths name it: ``record://data/coco.zip/train2017/1.jpg`` is read without any ``backend_args``.

    It pickles to its arguments. Nothing is opened before it is used.

    Args:
        archive: path of the archive; or a pattern as of the module ``glob``, or a list of paths and patterns, for a set
            of archives that make up one set of files.
        root: what to strip from paths to get the names in the archive; what does not begin with it is on the disk.
        verify_crc: whether the bytes of zip entries are compared with their CRC-32.
        cache_dir: folder of the archive's index; see :class:`~mmshared.annotations.cache.StoreCache`.

    Raises:
        TypeError: an argument is of the wrong type.
    """

    def __init__(
        self,
        archive: Optional[ArchiveArg] = None,
        root: Optional[PathLike] = None,
        verify_crc: bool = True,
        cache_dir: Optional[PathLike] = None,
    ) -> None:
        _check_type('archive', archive, (str, os.PathLike, list, tuple, type(None)))
        _check_type('root', root, (str, os.PathLike, type(None)))
        _check_type('verify_crc', verify_crc, (bool,))
        _check_type('cache_dir', cache_dir, (str, os.PathLike, type(None)))
        if archive is None and root is not None:
            raise TypeError(f'the file backend {NAME!r} takes a root only together with an archive')
        self.archive, self.verify_crc = archive, verify_crc
        self.root = None if root is None else os.fspath(root)
        self.cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        self._only: Optional[Mount] = None
        self._by_name: Dict[str, Mount] = {}

    def __reduce__(self) -> tuple:
        return type(self), (self.archive, self.root, self.verify_crc, self.cache_dir)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(archive={self.archive!r}, root={self.root!r})'

    def get(self, filepath: PathLike) -> bytes:
        """The bytes of a file.

        Raises:
            EntryNotFoundError: it is neither in the archive nor on the disk.
            AmbiguousEntryError: several entries could be meant.
            ArchiveError: the archive or the entry cannot be read.
            OSError: likewise.
        """
        mount, path = self._mount(filepath)
        row = mount.find(path)
        if row >= 0:
            return mount.read(row)
        with _on_disk(mount, path):
            return super().get(path)

    def get_text(self, filepath: PathLike, encoding: str = 'utf-8') -> str:
        """The text of a file, with ``\\n`` for any end of line, as ``open`` gives it. Raises as :meth:`get`."""
        mount, path = self._mount(filepath)
        row = mount.find(path)
        if row >= 0:
            return mount.read(row).decode(encoding).replace('\r\n', '\n').replace('\r', '\n')
        with _on_disk(mount, path):
            return super().get_text(path, encoding)

    def exists(self, filepath: PathLike) -> bool:
        """Whether there is such a file or folder, in the archive or on the disk."""
        mount, path = self._mount(filepath)
        if mount.find(path) >= 0 or mount.find_folder(path) is not None:
            return True
        return not mount.must_have(path) and super().exists(path)

    def isfile(self, filepath: PathLike) -> bool:
        """Whether there is such a file, in the archive or on the disk."""
        mount, path = self._mount(filepath)
        return mount.find(path) >= 0 or (not mount.must_have(path) and super().isfile(path))

    def isdir(self, filepath: PathLike) -> bool:
        """Whether there is such a folder, in the archive or on the disk."""
        mount, path = self._mount(filepath)
        return mount.find_folder(path) is not None or (not mount.must_have(path) and super().isdir(path))

    def is_on_disk(self, filepath: PathLike) -> bool:
        """Whether that path means no file of the archive, and so the one on the disk, be it there or not."""
        mount, path = self._mount(filepath)
        return mount.find(path) < 0 and not mount.must_have(path)

    @contextlib.contextmanager
    def get_local_path(self, filepath: PathLike) -> Iterator[str]:
        """The path of a file of the disk with that content, good within the block: a copy of what is in the archive.

        The copy lies in the cache folder. It goes after the block, or later if this process is killed.
        """
        mount, path = self._mount(filepath)
        row = mount.find(path)
        if row < 0:
            if mount.must_have(path):
                raise mount.missing(path)
            yield path
            return
        data = mount.read(row)
        with StoreCache(self.cache_dir).workplace() as folder:
            copy = folder / os.path.basename(os.path.normpath(path))
            try:
                copy.write_bytes(data)
                yield os.fspath(copy)
            finally:
                copy.unlink(missing_ok=True)

    def list_dir_or_file(
        self,
        dir_path: PathLike,
        list_dir: bool = True,
        list_file: bool = True,
        suffix: Union[str, Tuple[str, ...], None] = None,
        recursive: bool = False,
    ) -> Iterator[str]:
        """Paths of what lies in a folder, relative to it, of the archive by name; arguments as of ``LocalBackend``.

        Raises:
            TypeError: ``suffix`` is no string or tuple of strings, or given together with ``list_dir``.
        """
        mount, path = self._mount(dir_path)
        folder = mount.find_folder(path)
        if folder is None:
            if mount.must_have(path):
                raise mount.missing(path)
            return super().list_dir_or_file(path, list_dir, list_file, suffix, recursive)
        if list_dir and suffix is not None:
            raise TypeError('`suffix` should be None when `list_dir` is True')
        if suffix is not None and not isinstance(suffix, (str, tuple)):
            raise TypeError('`suffix` must be a string or tuple of strings')
        return self._listed(mount, folder, '', (list_dir, list_file, suffix, recursive))

    def _listed(self, mount: Any, folder: bytes, above: str, what: tuple) -> Iterator[str]:
        list_dir, list_file, suffix, recursive = what
        for name, is_folder in mount.children(folder):
            if is_folder:
                if list_dir:
                    yield above + name
                if recursive:
                    below = (folder + b'/' if folder else b'') + name.encode('utf-8', 'surrogateescape')
                    yield from self._listed(mount, below, f'{above}{name}/', what)
            elif list_file and not name.startswith('.') and (suffix is None or (above + name).endswith(suffix)):
                yield above + name

    def copyfile(self, src: PathLike, dst: PathLike) -> str:
        """Copies a file, of the archive or of the disk, to ``dst`` on the disk; returns where it is then."""
        self._refuse_write(dst)
        with self.get_local_path(src) as path:
            if path == self._mount(src)[1]:
                return super().copyfile(path, self._mount(dst)[1])
            target = self._mount(dst)[1]
            target = os.path.join(target, os.path.basename(path)) if os.path.isdir(target) else target
            return super().copyfile(path, target)

    def copyfile_to_local(self, src: PathLike, dst: PathLike) -> str:
        """As :meth:`copyfile`."""
        return self.copyfile(src, dst)

    def copytree(self, src: PathLike, dst: PathLike) -> str:
        """Copies a folder, of the archive or of the disk, to ``dst`` on the disk, where nothing may be yet.

        Raises:
            FileExistsError: there is something.
        """
        self._refuse_write(dst)
        mount, path = self._mount(src)
        folder, target = mount.find_folder(path), self._mount(dst)[1]
        if folder is None:
            return super().copytree(path, target)
        os.makedirs(target)
        for name, row in mount.below(folder):
            copy = os.path.join(target, name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            Path(copy).write_bytes(mount.read(row))
        return target

    def copytree_to_local(self, src: PathLike, dst: PathLike) -> str:
        """As :meth:`copytree`."""
        return self.copytree(src, dst)

    def put(self, obj: bytes, filepath: PathLike) -> None:
        """Writes a file of the disk; ArchiveError if that path means one of the archive."""
        self._refuse_write(filepath)
        super().put(obj, self._mount(filepath)[1])

    def put_text(self, obj: str, filepath: PathLike, encoding: str = 'utf-8') -> None:
        """Writes a file of the disk; ArchiveError if that path means one of the archive."""
        self._refuse_write(filepath)
        super().put_text(obj, self._mount(filepath)[1], encoding)

    def remove(self, filepath: PathLike) -> None:
        """Removes a file of the disk; ArchiveError if that path means one of the archive."""
        self._refuse_write(filepath)
        super().remove(self._mount(filepath)[1])

    def rmtree(self, dir_path: PathLike) -> None:
        """Removes a folder of the disk; ArchiveError if that path means one of the archive."""
        self._refuse_write(dir_path)
        super().rmtree(self._mount(dir_path)[1])

    def _refuse_write(self, filepath: PathLike) -> None:
        mount, path = self._mount(filepath)
        if mount.find(path) >= 0 or mount.find_folder(path) is not None or mount.must_have(path):
            archive = str(self.archive or path)
            raise ArchiveError(archive, 'is in the archive, and archives are only read. Choose another path', path)

    def _mount(self, filepath: PathLike) -> Tuple[Union[Mount, NoMount], str]:
        """Where to look for a path, and the path there."""
        path = os.fspath(filepath)
        if path.startswith(PREFIX):
            path = path[len(PREFIX) :]
        if self.archive is None:
            return self._named(path)
        if self._only is None:
            self._only = Mount(self.archive, self.root, self.verify_crc, self.cache_dir)
        return self._only, path

    def _named(self, path: str) -> Tuple[Union[Mount, NoMount], str]:
        for archive, mount in self._by_name.items():
            if path.startswith(archive) and path[len(archive) : len(archive) + 1] in ('/', ''):
                return mount, path[len(archive) :].strip('/')
        archive, rest = split_at_archive(path)
        if not archive:
            return NoMount(), path
        mount = Mount(archive, '', self.verify_crc, self.cache_dir)
        self._by_name = {**self._by_name, archive: mount}  # another thread may be going through the old one
        return mount, rest


@contextlib.contextmanager
def _on_disk(mount: Union[Mount, NoMount], path: str) -> Iterator[None]:
    """For reading a file of the disk: if there is none, the error is about the archive as well."""
    if mount.must_have(path):
        raise mount.missing(path)
    try:
        yield
    except FileNotFoundError as error:
        raise mount.missing(path) from error


def _check_type(name: str, value: Any, types: Tuple[type, ...]) -> None:
    if not isinstance(value, types):
        raise TypeError(f'{name} of the file backend {NAME!r} cannot be {value!r}')
