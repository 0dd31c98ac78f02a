"""The file between the process that has loaded a dataset and those that take over: columns, and one pickle."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterable, Mapping, Tuple

import numpy as np

from mmshared.annotations import StoreError
from mmshared.annotations.cache import CacheAccessError, Hold, distrust, hold, leave
from mmshared.annotations.container import Container, ContainerWriter

_PICKLE = 'pickle'
_open: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class MappedArray(np.ndarray):
    """A read-only array over a file that every process maps: copies and pickles of it refer to the file.

    What is cut out of it or computed from it is an ordinary array in that respect.
    """

    _column: Tuple[Any, ...] = ()

    @classmethod
    def of(cls, file: DataFile, name: str, array: np.ndarray) -> MappedArray:
        """Return ``array``, which is the column ``name`` of ``file``."""
        view = array.view(cls)
        view.flags.writeable = False
        view._column = file, name
        return view

    def __reduce_ex__(self, protocol: int) -> Any:
        if self._column:
            return _array, self._column
        return np.asarray(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict) -> np.ndarray:
        return self if self._column else np.asarray(self).__deepcopy__(memo)


class DataFile:
    """The mapped file at ``path``, which stays there as long as this object lives in some process.

    Pickles carry its path and token, and open it again; there is one object per file and process.

    Attributes:
        path: where it is.
        token: distinguishes it from any other file that may come under that name.
    """

    def __init__(self, path: Path, held: Hold, container: Container) -> None:
        self.path = path
        self.token = container.attributes['token']
        self._container = container
        # The last process to leave removes the data of a job; one that is killed leaves that to the next job.
        weakref.finalize(self, _leave, path, held, os.getpid())

    @classmethod
    def open(cls, path: Path) -> DataFile:
        """Map the file at ``path``.

        Raises:
            FileNotFoundError: it is gone.
            CacheAccessError: it is damaged, or somebody else may have written it.
        """
        held = hold(path)
        reason = distrust(path, held.fileno())
        if reason is not None:
            raise CacheAccessError(f'{path} holds pickles, so it is not read if others could write it: {reason}')
        try:
            container = Container(path, held.fileno())
            key = os.fspath(path), container.attributes['token']
            return _open.get(key) or _open.setdefault(key, cls(path, held, container))
        except (StoreError, KeyError) as error:
            raise CacheAccessError(f'{path} is no complete data of a dataset: {error}') from error

    def array(self, name: str) -> MappedArray:
        """Return the column ``name``."""
        return MappedArray.of(self, name, self._container.columns[name])

    @property
    def pickle(self) -> memoryview:
        """The pickle that was given to :func:`write`."""
        return memoryview(self._container.columns[_PICKLE])

    def __reduce__(self) -> tuple:
        return _again, (os.fspath(self.path), self.token)

    def __deepcopy__(self, memo: dict) -> DataFile:
        return self


def write(
    out: BinaryIO,
    columns: Mapping[str, Tuple[Any, Iterable[Any]]],
    pickled: Callable[[], bytes],
    label: str,
    token: str,
) -> None:
    """Write the file.

    Args:
        out: where to.
        columns: name -> dtype and buffers, which are written one behind the other.
        pickled: gives the pickle, after the columns were written.
        label: what was loaded, for people who look into the cache.
        token: see :class:`DataFile`.
    """
    writer = ContainerWriter(out)
    for name, (dtype, buffers) in columns.items():
        writer.add_stream(name, dtype, buffers)
    writer.add_stream(_PICKLE, '|u1', [pickled()])
    writer.close({'source': label, 'token': token})


def _array(file: DataFile, name: str) -> MappedArray:
    return file.array(name)


def _again(path: str, token: str) -> DataFile:
    try:
        file = DataFile.open(Path(path))
    except FileNotFoundError:
        file = None
    if file is None or file.token != token:
        raise CacheAccessError(
            f'The data of this dataset were in {path}, which is gone with the job that loaded them. Build the dataset '
            'from its config instead of unpickling it.'
        )
    return file


def _leave(path: Path, held: Hold, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has the lock in common with its parent
        leave(path, held)
