"""What loading a dataset depends on, and what it has changed: the attributes before and after."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Dict, List, Optional

import numpy as np
from mmengine.dataset import BaseDataset

from mmshared.annotations.cache import CacheAccessError

from .content import Digester

DATA = ('data_list', 'data_bytes', 'data_address')
"""Attributes that hold the samples: large, and never the same before and after."""
_BEFORE_LOADING = 'pipeline'
"""Takes no part in loading: a dataset with another one shares what was loaded, and only a new object is passed on."""
_CLASS_DATA = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset)
"""Not lists and the like, in which classes count or remember what they have loaded."""
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, type)


class NotSharableError(CacheAccessError):
    """What was loaded cannot be given to other processes. Names the attribute."""


class Attributes:
    """The attributes of ``dataset`` as they are now, to be compared with what they are after loading.

    Making one, and its methods, raise NotSharableError where an attribute cannot be compared.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._before = dict(dataset.__dict__)
        self._digests = {
            name: self._digest(name, value) for name, value in self._before.items() if name != _BEFORE_LOADING
        }
        self._sizes = {name: _size(value) for name, value in self._before.items()}

    def key(self, kind: type, version: Optional[str] = None) -> str:
        """Return 32 hexadecimal digits that differ where another dataset would be loaded.

        What counts: ``kind`` and its class attributes, ``version``, the attributes, what paths are relative to, and
        what pickles depend on.
        """
        digester = Digester({id(self._dataset): 'dataset'})
        around = version, os.getcwd(), sys.version_info[:2], np.__version__.split('.')[0]
        return digester([kind, _class_data(kind), sorted(self._digests.items()), around]).hex()

    def changed(self) -> Dict[str, Any]:
        """Return the attributes that are new, other objects than before, or of other content, and :data:`DATA`."""
        return {name: value for name, value in self._dataset.__dict__.items() if self._has_changed(name, value)}

    def removed(self) -> List[str]:
        """Return the names of those that are no more."""
        return [name for name in self._before if name not in self._dataset.__dict__]

    def kept(self) -> Dict[int, str]:
        """Return id -> name of the dataset itself ('') and of all objects that are attributes as they were before."""
        names = {id(self._dataset): ''}
        for name, value in self._dataset.__dict__.items():
            if not isinstance(value, _IMMUTABLE) and not self._has_changed(name, value):
                names[id(value)] = name
        return names

    def _has_changed(self, name: str, value: Any) -> bool:
        if name in DATA or name not in self._before or self._before[name] is not value:
            return True
        if name == _BEFORE_LOADING:
            return False
        return self._sizes[name] != _size(value) or self._digests[name] != self._digest(name, value)

    def _digest(self, name: str, value: Any) -> bytes:
        digester = Digester({id(self._dataset): 'dataset'})
        try:
            digest = digester(value)
        except Exception as error:  # nested too deeply, or whatever a class's own way to be pickled does
            text = f'its attribute {name!r} cannot be compared ({type(error).__name__}: {error})'
            raise NotSharableError(text) from error
        if digester.opaque:
            raise NotSharableError(
                f'its attribute {name!r} holds a {digester.opaque}, and what is in that cannot be compared'
            )
        return digest


def _class_data(kind: type) -> List[bytes]:
    """Digests of the plain data among the attributes of a class and its bases, as far as they can be compared."""
    found = []
    for cls in kind.__mro__[: kind.__mro__.index(BaseDataset)] if BaseDataset in kind.__mro__ else ():
        for name, value in vars(cls).items():
            if isinstance(value, _CLASS_DATA) and not name.startswith('__'):
                digester = Digester()
                with contextlib.suppress(Exception):
                    digest = digester([cls.__qualname__, name, value])
                    found += [] if digester.opaque else [digest]
    return found


def _size(value: Any) -> int:
    """Return the length, to tell quickly that something large was filled."""
    return len(value) if isinstance(value, (dict, list, set)) else 0
