"""Dicts whose values are made when they are looked up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import ItemsView, KeysView, ValuesView
from itertools import islice
from typing import Any, Dict, Iterable, Iterator, List, Protocol, Tuple

_MISSING = object()
#: Values that are made together when all are asked for.
_TOGETHER = 4096


class _Unmade:
    """The key that stands in a dict's storage for what is not made yet: not empty, and nothing that JSON knows."""

    def __repr__(self) -> str:
        return '<values that are not made yet>'

    def __reduce__(self) -> str:
        return '_UNMADE'


_UNMADE = _Unmade()


class Source(Protocol):
    """What a lazy dict can be asked for. Keys that ``==`` and ``hash`` take for the same are one key."""

    def __len__(self) -> int: ...

    def entries(self) -> Iterator[Tuple[Any, Any]]:
        """Key and number of every value, in order."""

    def find(self, key: Any) -> Any:
        """The number of the value of ``key``; None if there is none."""

    def make(self, number: Any) -> Any:
        """The value."""

    def prepare(self, numbers: List[Any]) -> None:
        """Told before the values of ``numbers`` are made."""


class _Lazy:
    """A ``dict`` that holds what was looked up or assigned, and makes the rest when it is asked for.

    A value that was made stays, so that looking it up again gives the same object, until :meth:`release`.
    Whatever needs all values (``values``, ``==``, ``repr``, ``copy``, ...) makes them all, and so does taking something
    out.

    The base class of C that comes second holds the entries; it finds them without a call of Python, and calls
    ``__missing__`` for others. Code in C that reads a ``dict``'s storage past its methods meets a key there that it
    does not know (``msgspec`` says so), and does not take it for empty (as ``json`` would).
    """

    _source: Source | None = None
    _complete = True

    def attach(self, source: Source) -> _Lazy:
        """Lets ``source`` give what is not there; returns the dict."""
        self._source, self._complete = source, False
        self._assigned: Dict[Any, None] = {}
        dict.__setitem__(self, _UNMADE, None)
        return self

    def pending(self, key: Any) -> bool:
        """Whether the value of ``key`` would be made if it were looked up."""
        return not self._complete and not dict.__contains__(self, key) and self._source.find(key) is not None

    def made(self, key: Any) -> bool:
        """Whether ``key`` has a value that was looked up or assigned before."""
        return dict.__contains__(self, key)

    def prepare(self, keys: Iterable[Any]) -> None:
        """Makes the values of ``keys`` together, up to the first that there is not."""
        if self._complete:
            return
        found = {}
        for key in keys:
            if not dict.__contains__(self, key):
                found[key] = self._source.find(key)
                if found[key] is None:
                    del found[key]
                    break
        self._source.prepare(list(found.values()))
        for key, number in found.items():
            dict.setdefault(self, key, self._source.make(number))

    def release(self) -> None:
        """Lets go of every value that was made; those that were assigned stay."""
        if self._source is None:
            return
        kept = [(key, dict.__getitem__(self, key)) for key in self._assigned if dict.__contains__(self, key)]
        dict.clear(self)
        dict.update(self, [(_UNMADE, None), *kept])
        self._complete = False

    def fill(self) -> None:
        """Makes all that is not made yet; from then on it is an ordinary dict, in the same order."""
        if not self._complete:
            entries = list(self._entries())
            dict.clear(self)
            dict.update(self, entries)
            self._complete = True

    def _entries(self) -> Iterator[Tuple[Any, Any]]:
        entries = self._source.entries()
        for part in iter(lambda: list(islice(entries, _TOGETHER)), []):
            self._source.prepare([number for key, number in part if not dict.__contains__(self, key)])
            for key, number in part:
                value = dict.get(self, key, _MISSING)
                yield key, dict.setdefault(self, key, self._source.make(number)) if value is _MISSING else value
        yield from [(key, dict.__getitem__(self, key)) for key in self._further()]

    def _further(self) -> list:
        return [key for key in self._assigned if self._source.find(key) is None and dict.__contains__(self, key)]

    # --- looking up
    def __missing__(self, key: Any) -> Any:
        number = None if self._complete else self._source.find(key)
        if number is None:
            return self._absent(key)
        return dict.setdefault(self, key, self._source.make(number))

    def _absent(self, key: Any) -> Any:
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        return self[key] if key in self else default  # noqa: SIM401

    def __contains__(self, key: Any) -> bool:
        return dict.__contains__(self, key) or (not self._complete and self._source.find(key) is not None)

    def __len__(self) -> int:
        return dict.__len__(self) if self._complete else len(self._source) + len(self._further())

    def __iter__(self) -> Iterator[Any]:
        if self._complete:
            return dict.__iter__(self)
        return self._keys()

    def _keys(self) -> Iterator[Any]:
        for key, _ in self._source.entries():
            yield key
        yield from self._further()

    def keys(self) -> Any:
        """As of a dict; makes nothing."""
        return dict.keys(self) if self._complete else KeysView(self)

    def values(self) -> Any:
        """As of a dict; iterating over it makes the values as it goes on."""
        return dict.values(self) if self._complete else _Values(self)

    def items(self) -> Any:
        """As of a dict; iterating over it makes the values as it goes on."""
        return dict.items(self) if self._complete else _Items(self)

    # --- assigning
    def __setitem__(self, key: Any, value: Any) -> None:
        if self._source is not None:
            self._assigned[key] = None
        dict.__setitem__(self, key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As of a dict."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> _Lazy:
        self.update(other)
        return self

    def __or__(self, other: Any) -> dict:
        return self.copy() | other

    def __ror__(self, other: Any) -> dict:
        return other | self.copy()

    # --- travelling
    def __reduce_ex__(self, protocol: int) -> tuple:
        return type(self), (), (self.__dict__, list(dict.items(self)))

    def __setstate__(self, state: tuple) -> None:
        attributes, entries = state
        self.__dict__.update(attributes)
        dict.update(self, entries)


class _Values(ValuesView):
    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._entries())


class _Items(ItemsView):
    def __contains__(self, item: Any) -> bool:
        if not isinstance(item, tuple) or len(item) != 2 or item[0] not in self._mapping:
            return False
        value = self._mapping[item[0]]
        return value is item[1] or value == item[1]

    def __iter__(self) -> Iterator[Any]:
        return self._mapping._entries()


def _filled(name: str) -> Any:
    """The method ``name`` of the C base, once all values are there."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.fill()
        return getattr(super(_Lazy, self), name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, 'As of a dict; makes all values.'
    return method


_WHOLE = ('__delitem__', '__eq__', '__ne__', '__repr__', '__reversed__', 'clear', 'pop', 'popitem')
for _name in _WHOLE:
    setattr(_Lazy, _name, _filled(_name))
_Lazy.__hash__ = None


class LazyDict(_Lazy, dict):
    """A ``dict`` over a :class:`Source`."""

    def copy(self) -> dict:
        """An ordinary dict with all values."""
        return dict(self.items())

    __copy__ = copy


class LazyLists(_Lazy, defaultdict):
    """A ``defaultdict(list)`` over a :class:`Source`."""

    def __init__(self) -> None:
        super().__init__(list)

    def _absent(self, key: Any) -> list:
        self[key] = value = []
        return value

    def copy(self) -> defaultdict:
        """An ordinary defaultdict with all values."""
        return defaultdict(list, self.items())

    __copy__ = copy
