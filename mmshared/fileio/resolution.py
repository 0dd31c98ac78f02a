"""Which entry a path means: a dataset's paths know nothing of the archive, nor the archive of them.

A path ``data/coco/train2017/1.jpg`` may be ``train2017/1.jpg`` in the archive (COCO's own layout), ``1.jpg`` (a flat
one), or ``coco/train2017/1.jpg``.
"""

from __future__ import annotations

import os
import posixpath
from typing import List, Optional

from .errors import AmbiguousEntryError, EntryNotFoundError
from .index import Index, encoded

_SHOWN = 3


class Resolver:
    """Finds the entry that a path means.

    With ``root``, what follows it in the path counts: as it is, or below a folder that all entries are in. A path that
    does not begin with it means no entry.

    Without, the longest end of the path that is the whole name of an entry counts; or the whole path, below a folder
    that all entries are in. Nothing is ever guessed from the last parts of a name alone: ``val/1.jpg`` is not found
    when ``train/1.jpg`` is asked for.

    Args:
        index: what is in the archives.
        root: what to strip from paths.
    """

    def __init__(self, index: Index, root: Optional[str] = None) -> None:
        self._index = index
        self._root = None if root is None else _normal(root)
        folders = index.common.split(b'/') if index.common else []
        self._wrappers = [b'/'.join(folders[: i + 1]) + b'/' for i in range(len(folders))]

    def find(self, path: str) -> int:
        """The row of the entry that ``path`` means; -1 if it means none.

        Raises:
            AmbiguousEntryError: several could be meant.
        """
        path = _normal(path)
        if self._root is not None:
            rest = self._below_root(path)
            return -1 if rest is None else self._find_below(encoded(rest), path)
        name = encoded(path).lstrip(b'/')
        start = _tail(name, self._index.depth)
        while True:
            row = self._index.find(name[start:])
            if row >= 0:
                return row
            start = name.find(b'/', start) + 1
            if start == 0:
                break
        return self._find_below(name, path) if self._wrappers and not path.startswith('/') else -1

    def find_folder(self, path: str) -> Optional[bytes]:
        """The folder of the archive that ``path`` means, b'' for all of it; None if it means none."""
        path = _normal(path)
        if path and not encoded(path):
            return None
        if self._root is not None:
            rest = self._below_root(path)
            candidates = [] if rest is None else self._below_wrappers(encoded(rest))
        else:
            name = encoded(path).lstrip(b'/')
            if not name:  # the current folder of the disk
                return None
            parts = name[_tail(name, self._index.depth) :].split(b'/')
            candidates = [b'/'.join(parts[i:]) for i in range(len(parts))]
            candidates += [] if path.startswith('/') else self._below_wrappers(name)[1:]
        return next((name for name in candidates if self._index.is_folder(name)), None)

    def must_have(self, path: str) -> bool:
        """Whether ``path`` lies below ``root``, so that no file of the disk can be meant."""
        return self._root is not None and self._below_root(_normal(path)) is not None

    def explain(self, path: str, archives: List[str]) -> EntryNotFoundError | AmbiguousEntryError:
        """The error for a ``path`` that is neither an entry nor a file."""
        where = archives[0] if len(archives) == 1 else f'{archives[0]} and {len(archives) - 1} more'
        wanted = _normal(path)
        near = self._index.ending_in(encoded(posixpath.basename(wanted)) or b'/', most=_SHOWN + 1)
        names = ', '.join(name.decode('utf-8', 'surrogateescape') for name in near[:_SHOWN])
        if not near:
            text = 'is neither in the archive nor on the disk' if self._root is None else 'is not in the archive'
            return EntryNotFoundError(where, f'{text}. Is it the right archive? {self._sample()}', path)
        if len(near) > 1:
            more = ', ...' if len(near) > _SHOWN else ''
            return AmbiguousEntryError(
                where,
                f'could be any of {names}{more}, and is none of them by its whole path. root= says what to strip from '
                'paths to get the names in the archive',
                path,
            )
        root = self._root_for(wanted, near[0])
        remedy = '' if root is None else f' If so, set root={root!r}'
        return EntryNotFoundError(
            where, f'is not in the archive, which has {names}. Is it the right archive?{remedy}', path
        )

    def _sample(self) -> str:
        if not len(self._index):
            return 'The archive is empty'
        first = self._index.name(0).decode('utf-8', 'surrogateescape')
        stripped = '' if not self._root else f'; root={self._root!r} is stripped from paths'
        return f'Its {len(self._index)} entries begin with {first}{stripped}'

    def _root_for(self, path: str, name: bytes) -> Optional[str]:
        """The ``root`` with which ``path`` would be the entry ``name``; None if there is none."""
        parts, entry = path.split('/'), name.decode('utf-8', 'surrogateescape').split('/')
        for cut in range(len(parts)):
            rest = parts[cut:]
            wrapper = encoded('/'.join(entry[: -len(rest)]))
            if entry[-len(rest) :] == rest and (not wrapper or wrapper + b'/' in self._wrappers):
                return '/'.join(parts[:cut])
        return None

    def _below_root(self, path: str) -> Optional[str]:
        root = self._root
        if root is None or posixpath.isabs(root) != posixpath.isabs(path):
            if not root:
                return None if posixpath.isabs(path) else path
            root, path = (_normal(os.path.abspath(text)) for text in (root, path))
        if not root or path == root:
            return '' if path == root else path
        return path[len(root) :].lstrip('/') if path.startswith(root.rstrip('/') + '/') else None

    def _below_wrappers(self, name: bytes) -> List[bytes]:
        """What ``name`` could be in the archive: itself, or below one of the folders that all entries are in."""
        return [name, *((wrapper + name).rstrip(b'/') for wrapper in self._wrappers)]

    def _find_below(self, name: bytes, path: str) -> int:
        exact, *others = self._below_wrappers(name)
        row = self._index.find(exact)
        if row >= 0:
            return row
        rows = [row for row in map(self._index.find, others) if row >= 0]
        if len(rows) > 1:
            names = ', '.join(self._index.name(row).decode('utf-8', 'surrogateescape') for row in rows)
            archive = self._index.archives[self._index[rows[0]][0]].path
            raise AmbiguousEntryError(archive, f'could be any of {names}. Set root= to what to strip from paths', path)
        return rows[0] if rows else -1


def _tail(name: bytes, depth: int) -> int:
    """Where the last ``depth`` parts of ``name`` begin."""
    cut = len(name)
    for _ in range(depth):
        cut = name.rfind(b'/', 0, cut)
        if cut < 0:
            return 0
    return cut + 1


def _normal(path: str) -> str:
    """``path`` with ``/`` between its parts, and without empty, ``.`` and ``..`` parts, as far as that goes."""
    if os.sep != '/':
        path = path.replace(os.sep, '/')
    if '/.' in path or '//' in path or path[:1] == '.' or path[-1:] == '/':
        path = posixpath.normpath(path) if path.rstrip('/') else path[:1]
        return '' if path == '.' else path.replace('//', '/')
    return path
