"""A sample on its way through a pipeline whose instances are not made until somebody reads them.

What is lazy here is the *results*, a dict whose ``instances`` turn into a list when they are looked up, and not the
list. A subclass of list that fills itself would be simpler to hand on, but it cannot be right: C code that was handed
a list may read the storage of a subclass past its methods. ``msgspec.json.encode`` writes ``[]`` for one that is not
filled yet, silently, and ``type(x) is list`` is False. An own sequence class is no list to ``isinstance`` and ``json``.
With this dict, whoever reads ``results['instances']`` holds a plain list, and from then on the results hold that one.

A subclass of dict has C code around it too. ``dict(x)``, ``{**x}``, ``f(**x)``, ``d.update(x)`` and ``d | x`` copy the
storage of a subclass only if it does not define ``__iter__``, else they look up each key. ``==`` and ``repr`` ask the
placeholder, which answers for its list. Code that walks the storage itself (``PyDict_Next``, as in ``msgspec``) meets
an object of an unknown class and says so.

The price: ``items()``, ``values()`` and copies into plain dicts (``Albu``, ``KeyMapper``) make the instances, as a
plain dict has them anyway; ``type(results) is dict`` is False.
"""

from __future__ import annotations

import contextlib
import copy
import os
from functools import lru_cache
from typing import Any, List, Optional, Tuple

import numpy as np

from mmshared.annotations import AnnotationFileError, AnnotationStore, ArrayView
from mmshared.annotations.arrays import InstanceArrays


class DeferredInstances:
    """The instances of one image: a reference to the store until somebody asks for the list.

    It stands in the storage of a :class:`LazyResults`, nobody else gets to see it. Copying and pickling it cost the
    same for every image, but for a byte an instance once ignore flags were set. Unpickled in another process it opens
    the store there, once for all that follow.

    Args:
        view: the annotations.
        row: the image.
        ignored: where ``ignore_flag`` is 1, bool, shape (N,); None: as in the store. Not changed.

    Attributes:
        arrays: the instances as arrays, ``ignored`` aside; None for an image with odd records.
    """

    __slots__ = ('_ignored', '_list', '_row', '_view', 'arrays')

    def __init__(self, view: ArrayView, row: int, ignored: Optional[np.ndarray] = None) -> None:
        self._view, self._row, self._ignored = view, row, ignored
        self._list: Optional[List[dict]] = None
        self.arrays: Optional[InstanceArrays] = view.arrays(row)

    def list(self) -> List[dict]:
        """The instances as ``get_data_info`` has them; the same list each time."""
        if self._list is None:
            self._list = self._made()
        return self._list

    def _made(self) -> List[dict]:
        instances = self._view.instances(self._row)
        for i in () if self._ignored is None else np.flatnonzero(self._ignored).tolist():
            instances[i]['ignore_flag'] = 1
        return instances

    def ignore_flags(self) -> np.ndarray:
        """Where ``ignore_flag`` is 1: bool, shape (N,), of the caller's own. Only if there are :attr:`arrays`."""
        return self.arrays.ignore_flags() if self._ignored is None else self._ignored.copy()

    def set_ignore_flags(self, flags: np.ndarray) -> None:
        """Have ``ignore_flag`` be 1 where ``flags`` (bool, shape (N,)) are; those that are 1 stay so."""
        self._ignored = flags.copy()

    def without_mask(self, instance: int) -> AnnotationFileError:
        """The error for an instance that has no mask."""
        return AnnotationFileError(
            self._view.store.source,
            'is missing or empty, but with_mask=True needs a mask for each instance. Add one, mark the annotation as '
            '"ignore": 1, or load without masks',
            self._view.record_name(self._row, instance),
            'segmentation',
        )

    def __eq__(self, other: object) -> bool:
        return self.list() == (other.list() if isinstance(other, DeferredInstances) else other)

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._made() if self._list is None else self._list)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict) -> Any:
        if self._list is not None:
            return copy.deepcopy(self._list, memo)
        return DeferredInstances(self._view, self._row, self._ignored)

    def __reduce__(self) -> tuple:
        if self._list is not None:
            return _itself, (self._list,)
        return _deferred, (self._view.store.path, tuple(self._view.cat_ids), self._row, self._ignored)


class LazyResults(dict):
    """The results of a pipeline: a dict in which a value may be a :class:`DeferredInstances`.

    Whoever looks such a value up gets its list, which then stands in its place.
    """

    __slots__ = ()

    def _settled(self, key: Any, value: Any) -> Any:
        if type(value) is DeferredInstances:
            value = self[key] = value.list()
        return value

    def _settle(self) -> None:
        for key, value in list(super().items()):
            self._settled(key, value)

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        return value if type(value) is not DeferredInstances else self._settled(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        """As for a dict."""
        return self._settled(key, super().get(key, default))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As for a dict."""
        return self._settled(key, super().setdefault(key, default))

    def pop(self, *args: Any) -> Any:
        """As for a dict."""
        value = super().pop(*args)
        return value.list() if type(value) is DeferredInstances else value

    def popitem(self) -> Tuple[Any, Any]:
        """As for a dict."""
        key, value = super().popitem()
        return key, value.list() if type(value) is DeferredInstances else value

    def values(self) -> Any:
        """As for a dict."""
        self._settle()
        return super().values()

    def items(self) -> Any:
        """As for a dict."""
        self._settle()
        return super().items()

    def __iter__(self) -> Any:  # so that C code does not copy the storage: see the module
        return super().__iter__()

    def copy(self) -> LazyResults:
        """A shallow copy; what is deferred stays so, and is the same list in both once somebody reads it."""
        return type(self)(super().items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict) -> LazyResults:
        copied = memo[id(self)] = type(self)()
        for key, value in super().items():
            copied[copy.deepcopy(key, memo)] = copy.deepcopy(value, memo)
        return copied

    def __reduce__(self) -> tuple:
        return type(self), (), None, None, iter(super().items())


def unread(results: dict) -> Optional[DeferredInstances]:
    """The instances of ``results``, of any pipeline, if nobody has had the list yet, else None."""
    value = dict.get(results, 'instances') if type(results) is LazyResults else None
    return value if type(value) is DeferredInstances and value._list is None else None


def _itself(value: Any) -> Any:
    return value


@lru_cache(maxsize=4)
def _view(path: str, cat_ids: tuple, identity: tuple) -> ArrayView:
    return ArrayView(AnnotationStore(path), cat_ids)


def _deferred(path: str, cat_ids: tuple, row: int, ignored: Optional[np.ndarray]) -> DeferredInstances:
    identity: tuple = ()
    with contextlib.suppress(OSError):  # removed; who has it mapped can go on
        info = os.stat(path)  # one that was packed again has the old one's name
        identity = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns
    return DeferredInstances(_view(path, cat_ids, identity), row, ignored)
