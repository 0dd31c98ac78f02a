"""A lazy dict is a dict: any operations, in any order, on both."""

from __future__ import annotations

import copy
import json
import pickle
from collections import defaultdict
from typing import Any, Callable, List

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.evaluation.lazy import LazyDict, LazyLists

KEYS = [3, 1, 'a', 2.5, 7]


class Source:
    """Lists under :data:`KEYS`; notes what is made."""

    def __init__(self, keys: List[Any] = KEYS) -> None:
        self.keys, self.made = keys, []

    def __len__(self) -> int:
        return len(self.keys)

    def entries(self) -> Any:
        return ((key, i) for i, key in enumerate(self.keys))

    def find(self, key: Any) -> Any:
        hash(key)
        return self.keys.index(key) if key in self.keys else None

    def make(self, number: int) -> list:
        self.made.append(number)
        return [number]

    def prepare(self, numbers: List[int]) -> None:
        """Nothing to prepare."""


def pairs(keys: List[Any] = KEYS) -> list:
    return [(key, [i]) for i, key in enumerate(keys)]


KINDS = {
    'dict': (lambda: dict(pairs()), lambda: LazyDict().attach(Source())),
    'defaultdict': (lambda: defaultdict(list, pairs()), lambda: LazyLists().attach(Source())),
}


def _set(d: Any, key: Any) -> None:
    d[key] = ['set']


def _delete(d: Any, key: Any) -> None:
    del d[key]


def _merge(d: Any, key: Any) -> Any:
    d |= {key: ['merged'], 'z': 1}
    return d


OPERATIONS: List[Callable[[Any, Any], Any]] = [
    lambda d, key: d[key],
    lambda d, key: d.get(key),
    lambda d, key: d.get(key, 5),
    lambda d, key: key in d,
    lambda d, key: len(d),
    lambda d, key: list(d),
    lambda d, key: list(reversed(d)),
    lambda d, key: list(d.keys()),
    lambda d, key: list(d.values()),
    lambda d, key: [list(item) for item in d.items()],
    lambda d, key: (key, [0]) in d.items(),
    lambda d, key: [0] in d.values(),
    lambda d, key: d.keys() & {key, 3},
    lambda d, key: bool(d),
    lambda d, key: repr(d).replace('LazyLists', 'defaultdict'),
    lambda d, key: d == dict(d),
    lambda d, key: d != {},
    lambda d, key: {**d},
    lambda d, key: dict(d),
    lambda d, key: d | {'z': 1},
    lambda d, key: {'z': 1} | d,
    lambda d, key: json.dumps({str(k): v for k, v in d.items()}),
    lambda d, key: json.dumps(d),
    lambda d, key: d.copy(),
    lambda d, key: copy.copy(d),
    lambda d, key: copy.deepcopy(d),
    lambda d, key: pickle.loads(pickle.dumps(d)),
    lambda d, key: d.setdefault(key, ['default']),
    lambda d, key: d.pop(key),
    lambda d, key: d.pop(key, 'none'),
    lambda d, key: d.update({key: ['updated']}),
    lambda d, key: d.update(z=[1]),
    lambda d, key: d.popitem(),
    lambda d, key: d.clear(),
    lambda d, key: d[key].append(key),
    _set,
    _delete,
    _merge,
]


def plain(value: Any) -> Any:
    """With the order of keys, whatever kind of dict it is."""
    if isinstance(value, dict):
        return 'dict', [(key, plain(v)) for key, v in value.items()]
    return type(value), str(value)


def attempt(operation: Callable[[Any, Any], Any], d: Any, key: Any) -> Any:
    try:
        return plain(operation(d, key))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize('kind', KINDS)
@settings(deadline=None, max_examples=300)
@given(steps=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from([*KEYS, 1.0, True, 'new', None]))))
def test_it_is_a_dict(kind: str, steps: list) -> None:
    expected, got = (make() for make in KINDS[kind])
    for operation, key in steps:
        assert attempt(operation, got, key) == attempt(operation, expected, key)
    assert plain(got) == plain(expected)


def test_values_are_made_once_when_they_are_asked_for() -> None:
    source = Source()
    lazy = LazyDict().attach(source)
    assert len(lazy) == 5 and list(lazy) == KEYS and 3 in lazy and lazy.keys() == set(KEYS)
    assert source.made == []
    one = lazy[1]
    assert lazy[1] is one is lazy.get(1) is lazy[1.0] and list(lazy.values())[1] is one
    assert sorted(source.made) == [0, 1, 2, 3, 4]
    lazy.fill()
    assert lazy[1] is one and len(source.made) == 5


@pytest.mark.parametrize('fill', [False, True])
def test_release(fill: bool) -> None:
    lazy = LazyDict().attach(Source())
    lazy['a'], lazy['new'] = 'assigned', 'assigned, too'
    lazy[1].append('changed')
    if fill:
        lazy.fill()
    lazy.release()
    assert dict(lazy) == {3: [0], 1: [1], 'a': 'assigned', 2.5: [3], 7: [4], 'new': 'assigned, too'}
    LazyDict().release()


def test_what_reads_past_its_methods_says_so() -> None:
    for keys in ([], ['a']):
        with pytest.raises(TypeError):
            msgspec.json.encode(LazyDict().attach(Source(keys)))
