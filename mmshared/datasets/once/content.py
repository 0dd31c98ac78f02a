"""A digest of what is in a Python object: equal in all processes that made the object in the same way.

Pickles will not do for that. Two ranks pickle equal sets in different orders, as each seeds its own string hashes, and
functions that were made on the spot, or objects that hold a lock, not at all.
"""

from __future__ import annotations

import copyreg
import hashlib
import sys
import threading
import types
from typing import Any, Dict, Iterable, Iterator, Optional, Tuple, Union

import torch

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE; others, such as that of methods, are where they are by nature
_NAMED = (types.BuiltinFunctionType, types.ModuleType)
_DESCRIPTORS = (
    *(classmethod, staticmethod, property),
    *(types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType),
)
_WITHOUT_CONTENT = (type(threading.Lock()), type(threading.RLock()))  # nothing that a dataset could depend on
_MAINS = ('__main__', '__mp_main__')  # one script, in the process that was started and in those that it spawned


class Digester:
    """Gives digests (16 bytes) of objects; equal objects of equal types have equal ones.

    What an object holds is what its ``__reduce_ex__`` says. Of one that cannot be taken apart (an open file, a
    connection to a database) only the type counts, and :attr:`opaque` is its name. Classes and functions count by name
    where they can be found under it, else by their code.

    Args:
        names: objects that stand for themselves: id -> the name that is used instead of their content.
    """

    def __init__(self, names: Optional[Dict[int, str]] = None) -> None:
        self.opaque: Optional[str] = None
        self._names = names or {}
        self._known: Dict[int, Tuple[bytes, Any]] = {}  # the objects, too, so that their ids stay theirs
        self._inside: Dict[int, int] = {}

    def __call__(self, value: Any) -> bytes:
        """Return the digest of ``value``."""
        if type(value) in _PLAIN:
            return _hash(type(value).__name__, [repr(value).encode('utf-8', 'surrogatepass')])
        key = id(value)
        if key in self._names:
            return _hash('name', [self._names[key].encode()])
        if key in self._known:
            return self._known[key][0]
        if key in self._inside:  # a cycle
            return _hash('inside', [str(self._inside[key]).encode()])
        self._inside[key] = len(self._inside)
        try:
            kind, parts = self._parts(value)
            digest = _hash(kind, parts)
        finally:
            del self._inside[key]
        self._known[key] = digest, value
        return digest

    def _parts(self, value: Any) -> Tuple[str, Iterable[bytes]]:
        if type(value) in (set, frozenset):
            return type(value).__name__, sorted(map(self, value))
        if type(value) in (list, tuple):
            return type(value).__name__, map(self, value)
        if type(value) is dict:
            return 'dict', (self(part) for item in value.items() for part in item)
        if isinstance(value, (type, types.FunctionType)):
            return 'global', self._global(value)
        if isinstance(value, types.CodeType):
            return 'code', map(self, (value.co_code, value.co_consts, value.co_names))
        if isinstance(value, _NAMED):
            owner = getattr(value, '__self__', None)
            return 'named', map(self, (value.__name__, None if isinstance(owner, types.ModuleType) else owner))
        return 'object', self._object(value)

    def _global(self, value: Any) -> Iterator[bytes]:
        module, name = value.__module__, value.__qualname__
        if module in _MAINS:
            module = getattr(sys.modules['__main__'], '__file__', None)
        yield from map(self, (module, name))
        if _find(value.__module__, name) is value:
            return
        if isinstance(value, type) and not value.__flags__ & _MADE_BY_PYTHON:
            return
        if isinstance(value, type):
            yield from map(self, value.__mro__[1:])
            skipped = ('__dict__', '__weakref__', '__doc__')
            yield self({k: v for k, v in vars(value).items() if k not in skipped})
        else:
            yield from map(self, (value.__code__, value.__defaults__, value.__kwdefaults__))
            yield from (self(cell.cell_contents) for cell in value.__closure__ or () if _filled(cell))

    def _object(self, value: Any) -> Iterator[bytes]:
        yield self(type(value))
        if isinstance(value, (torch.TypedStorage, torch.UntypedStorage)):  # their pickles hold addresses
            yield from _of_storage(value)
            return
        if isinstance(value, torch.Generator):  # its pickle holds the object
            yield from map(self, (str(value.device), value.get_state()))
            return
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception:  # whatever stands in the way of pickling it
            if isinstance(value, _DESCRIPTORS):
                parts = [getattr(value, name, None) for name in ('__func__', 'fget', 'fset', 'fdel', '__name__')]
                yield self(parts)
            elif not isinstance(value, _WITHOUT_CONTENT):
                self.opaque = type(value).__name__
            return
        if isinstance(reduced, str):
            yield self(reduced)
            return
        function, args, state, items, pairs, *_ = (*reduced, None, None, None)
        yield from map(self, (function, args, state))
        for elements in (items, pairs):
            yield from (self(element) for element in elements or ())


def _of_storage(storage: Union[torch.TypedStorage, torch.UntypedStorage]) -> Iterator[bytes]:
    untyped = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
    yield str(getattr(storage, 'dtype', '')).encode()
    yield torch.empty(0, dtype=torch.uint8).set_(untyped.cpu()).numpy().tobytes()


def _find(module: Optional[str], name: str) -> Any:
    found: Any = sys.modules.get(module or '')
    for part in name.split('.'):
        found = getattr(found, part, None)
    return found


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _hash(kind: str, parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for part in parts:
        digest.update(b'%d:' % len(part))
        digest.update(part)
    return digest.digest()
