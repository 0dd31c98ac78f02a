"""Load a dataset once for all processes of a job on this node, or once for later jobs, too."""

from __future__ import annotations

import io
import logging
import pickle
import re
import secrets
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, Optional, Tuple

import numpy as np
from mmengine.logging import print_log

from mmshared.annotations.cache import CacheAccessError, CacheSpaceError, DataCache

from . import random_state
from .changes import DATA, Attributes, NotSharableError
from .file import DataFile, write
from .items import PickledItems, PickledList

_COLUMN_TYPES = ('|u1', '<i8', '<f8')


@dataclass(frozen=True)
class Sharing:
    """How what was loaded is shared.

    Attributes:
        cache_dir: folder of the file; see :class:`~mmshared.annotations.cache.StoreCache`.
        version: None: for this job. Else it is kept for all jobs that give the same version.
    """

    cache_dir: Optional[str] = None
    version: Optional[str] = None


@dataclass(frozen=True)
class _Column:
    """Stands, in pickles, for a column of the file that they are in."""

    name: str


class _Pickler(pickle.Pickler):
    def __init__(self, out: BinaryIO, names: Dict[int, str]) -> None:
        super().__init__(out, protocol=5)
        self._names = names

    def persistent_id(self, value: Any) -> Any:
        if type(value) is _Column:
            return 'column', value.name
        name = self._names.get(id(value))
        return None if name is None else ('attribute', name)


class _Unpickler(pickle.Unpickler):
    def __init__(self, source: BinaryIO, file: DataFile, dataset: Any) -> None:
        super().__init__(source)
        self._file, self._dataset = file, dataset

    def persistent_load(self, pid: Tuple[str, str]) -> Any:
        kind, name = pid
        if kind == 'column':
            return self._file.array(name)
        return self._dataset.__dict__[name] if name else self._dataset


class _Loading:
    """One dataset that is to be loaded, by ``load`` or from the file of a process that did."""

    def __init__(self, dataset: Any, load: Callable[[], Any], kind: type) -> None:
        self.dataset = dataset
        self._load = load
        self._kind = kind
        self._done = False
        self._moves: random_state.Moves = {}
        name = kind.__name__
        ann_file = getattr(dataset, 'ann_file', None)
        self.label = f'{name} of {ann_file}' if isinstance(ann_file, str) and ann_file else name

    def file(self, cache: DataCache, version: Optional[str]) -> DataFile:
        """Return the file with what was loaded; load and write it if there is none."""
        self._before = Attributes(self.dataset)
        key = self._before.key(self._kind, version)
        if version is None:
            return cache.of_job(key, self.label, self.write, DataFile.open)
        name = re.sub(r'[^A-Za-z0-9_.-]+', '_', self._kind.__name__)[:48].lstrip('.')
        return cache.kept(f'{name}-{key}', self.label, self.write, DataFile.open)

    def load(self) -> None:
        """Load in this process, the first time it is called."""
        if not self._done:
            states = random_state.states()
            self._load()
            self._moves = random_state.moves(states, random_state.states())
            self._done = True

    def write(self, out: BinaryIO) -> None:
        """Load, and write what came of it."""
        self.load()
        changed = self._before.changed()
        columns, mapped = _columns(changed)
        own = {name: value for name, value in changed.items() if name not in mapped}
        pickles = [mapped, (own, self._before.removed(), self._moves)]
        write(out, columns, lambda: self._pickle(pickles, own), self.label, secrets.token_hex(8))

    def take_over(self, file: DataFile) -> None:
        """Have the dataset as loading left it, its samples mapped."""
        source = io.BytesIO(file.pickle)
        state = self.dataset.__dict__
        try:
            mapped = _Unpickler(source, file, self.dataset).load()
            own, removed, moves = ({}, [], {}) if self._done else _Unpickler(source, file, self.dataset).load()
        except Exception as error:  # whatever the classes in it do
            reason = f'{type(error).__name__}: {error}'
            raise NotSharableError(f'what another process made of it cannot be unpickled here ({reason})') from error
        if not self._done:
            for name in removed:
                state.pop(name, None)
            state.update(own)
            random_state.move(moves)
        state.update(mapped)

    def _pickle(self, pickles: Iterable[Any], own: Dict[str, Any]) -> bytes:
        names = self._before.kept()
        try:
            return b''.join(_pickled(part, names) for part in pickles)
        except Exception as error:  # whatever a class's own way to be pickled raises
            for name, value in own.items():
                try:
                    _pickled(value, names)
                except Exception as reason:
                    raise NotSharableError(
                        f'its attribute {name!r} ({type(value).__name__}), which is made while loading, cannot be '
                        f'pickled ({type(reason).__name__}: {reason})'
                    ) from error
            raise NotSharableError(f'its attributes cannot be pickled ({error})') from error


def load_once(dataset: Any, load: Callable[[], Any], sharing: Sharing, kind: Optional[type] = None) -> None:
    """Have ``dataset`` loaded as ``load()`` does it, which is run by one process for all that ask for the same.

    The others take over all attributes of the dataset that loading made or changed. What stands for the samples
    (``data_bytes`` and ``data_address``, or the items of ``data_list``) is mapped by all of them. *The same* are
    datasets of one class whose attributes before loading were equal, the pipeline aside. What loading does elsewhere
    (to class attributes, to the pipeline's inside) is not passed on.

    Where it cannot be shared each process loads for itself, and a warning says why.

    Args:
        dataset: an mmengine ``BaseDataset``, not loaded yet.
        load: loads it.
        sharing: where, and for how long.
        kind: the class whose loading it is, where that is another one than the dataset's.

    Raises:
        Exception: what ``load`` raised, in this process or in the one that loaded for all.
    """
    loading = _Loading(dataset, load, kind or type(dataset))
    try:
        loading.take_over(loading.file(DataCache(sharing.cache_dir), sharing.version))
    except (CacheSpaceError, CacheAccessError) as error:
        loading.load()
        print_log(
            f'{loading.label}: every process loads it in full and keeps it in its own memory, because {error}',
            logger='current',
            level=logging.WARNING,
        )


def _columns(changed: Dict[str, Any]) -> Tuple[Dict[str, Tuple[Any, Iterable[Any]]], Dict[str, Any]]:
    """Return the samples as columns of a file, and the attributes that hold them, made of what stands for columns."""
    columns: Dict[str, Tuple[Any, Iterable[Any]]] = {}
    mapped: Dict[str, Any] = {}
    for name in DATA:
        value = changed.get(name)
        if type(value) is np.ndarray and value.ndim == 1 and value.dtype.str in _COLUMN_TYPES:
            columns[name] = value.dtype, [np.ascontiguousarray(value)]
            mapped[name] = _Column(name)
        elif type(value) is list and value:
            ends: List[int] = []
            columns[name] = '|u1', _pickled_items(value, ends)
            columns[f'{name} ends'] = '<i8', (np.array(part, np.int64) for part in (ends,))
            mapped[name] = PickledList(PickledItems(_Column(name), _Column(f'{name} ends')))  # type: ignore[arg-type]
    return columns, mapped


def _pickled_items(items: List[Any], ends: List[int]) -> Iterable[bytes]:
    for index, item in enumerate(items):
        try:
            data = pickle.dumps(item, protocol=4)
        except Exception as error:
            raise NotSharableError(f'item {index} of its data_list cannot be pickled ({error})') from error
        ends.append(len(data) + (ends[-1] if ends else 0))
        yield data


def _pickled(value: Any, names: Dict[int, str]) -> bytes:
    out = io.BytesIO()
    _Pickler(out, names).dump(value)
    return out.getvalue()
