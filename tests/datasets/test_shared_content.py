"""What makes two datasets the same: digests of objects, in processes whose hashes of strings differ."""

from __future__ import annotations

import collections
import functools
import logging
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import ConfigDict

from mmshared.datasets.once.changes import Attributes
from mmshared.datasets.once.content import Digester

ROOT = Path(__file__).resolve().parents[2]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.frozensets(st.text() | st.integers(), max_size=4)
    ),
    max_leaves=12,
)


def digest(value):
    return Digester()(value)


@settings(max_examples=150, deadline=None)
@given(PLAIN, PLAIN)
def test_equal_values_have_equal_digests_and_others_do_not(a, b):
    """repr tells plain values apart as far as we want it: 1, 1.0 and True are three things."""
    assert (digest(a) == digest(b)) is (_shown(a) == _shown(b))


def _shown(value):
    if isinstance(value, frozenset):
        return 'frozenset', sorted(map(repr, value))
    if isinstance(value, dict):
        return 'dict', [(_shown(k), _shown(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_shown(part) for part in value]
    return repr(value)


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def made(factor, extra=()):
    """A class and functions that have no name of their own."""

    class Local(Plain):
        METAINFO = {'classes': extra}

        def scaled(self, x):
            return x * factor

        @property
        def half(self):
            return factor

    return Local, lambda x: x + factor, functools.partial(max, factor), Local(size=factor).scaled


DIFFERENT = {
    'list and tuple': ([1], (1,)),
    'nesting': ([[1], 2], [[1, 2]]),
    'texts': (['ab', 'c'], ['a', 'bc']),
    'order of a dict': ({'a': 1, 'b': 2}, {'b': 2, 'a': 1}),
    'kind of dict': ({'a': 1}, ConfigDict(a=1)),
    'default of a dict': (collections.defaultdict(int), collections.defaultdict(list)),
    'dtype': (np.zeros(2), np.zeros(2, np.float32)),
    'shape': (np.zeros((2, 1)), np.zeros((1, 2))),
    'array': (np.arange(9), np.arange(9) * 2),
    'tensor': (torch.zeros(2), torch.ones(2)),
    'attribute': (Plain(a=1), Plain(a=2)),
    'deep': (Plain(a=[Plain(b={1})]), Plain(a=[Plain(b={2})])),
    'class': (Plain, collections.OrderedDict),
    'code': (lambda x: x + 1, lambda x: x + 2),
    'names in code': (lambda x: len(x), lambda x: sum(x)),
    'defaults': (lambda x=1: x, lambda x=2: x),
    'closure': (made(1)[1], made(2)[1]),
    'local class': (made(1)[0], made(2)[0]),
    'class attribute': (made(1, 'a')[0], made(1, 'b')[0]),
    'partial': (made(1)[2], made(2)[2]),
    'bound method': (made(1)[3], made(2)[3]),
    'path': (Path('a'), Path('b')),
    'builtin': (len, sum),
    'random state': (np.random.RandomState(0), np.random.RandomState(1)),
}


@pytest.mark.parametrize('name', DIFFERENT)
def test_what_differs_has_other_digests(name):
    a, b = DIFFERENT[name]
    assert digest(a) != digest(b)
    assert digest(a) == digest(a) and digest([a, a]) == digest([a, a])


@pytest.mark.parametrize('part', range(4), ids=['class', 'lambda', 'partial', 'method'])
def test_what_was_made_twice_in_the_same_way_is_the_same(part):
    assert digest(made(3, 'x')[part]) == digest(made(3, 'x')[part])


def test_cycles_and_what_cannot_be_looked_into():
    def ring():
        first, second = Plain(), Plain(x=1)
        first.next, second.next = second, first
        first.me = [first]
        return first

    assert digest(ring()) == digest(ring()) != digest(Plain(next=Plain(x=1)))
    digester = Digester()
    assert digester(Plain(lock=threading.Lock())) == digest(Plain(lock=threading.Lock())) and digester.opaque is None
    for opaque, name in ((sqlite3.connect(':memory:'), 'Connection'), ((i for i in [1]), 'generator')):
        digester = Digester()
        digester(Plain(x=[opaque]))
        assert digester.opaque == name
    assert digest(threading.Lock()) != digest(threading.Event())
    digester = Digester()
    digester([Plain(a={1: Path('x')}), len, made(1), np.random.default_rng(0), logging.getLogger('x'), torch.ones(2)])
    assert not digester.opaque


SCRIPT = """
import sys
import torch
from mmshared.datasets.once.changes import Attributes
from mmengine.dataset import BaseDataset
class Mine(BaseDataset):
    def __init__(self, **kwargs):
        self.names = {f'name {i}' for i in range(50)}
        self.keep = lambda info: info['kind'] in {'a', 'b', 'c', 'd'}
        self.me = self
        self.weights, self.scale = torch.arange(3.0), torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        self.part, self.sparse = torch.arange(9)[3:5], torch.eye(3).to_sparse()
        self.layer = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(self.layer.weight), torch.nn.init.zeros_(self.layer.bias)
        self.generator = torch.Generator().manual_seed(3)
        super().__init__(lazy_init=True, **kwargs)
for ann_file in ('a', 'b'):
    dataset = Mine(ann_file=ann_file, pipeline=[lambda x: x], filter_cfg=dict(kinds={'x', 'y', 'z'}))
    print(Attributes(dataset).key(Mine))
"""


def test_ranks_agree_on_the_key(tmp_path):
    """A set has another order in each process; no address may take part."""
    (tmp_path / 'script.py').write_text(SCRIPT)
    keys = []
    for seed in ('1', '2'):
        environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONHASHSEED': seed}
        command = [sys.executable, str(tmp_path / 'script.py')]
        out = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        keys.append(out.stdout.split()[-2:])
    assert keys[0] == keys[1] and keys[0][0] != keys[0][1] and len(keys[0][0]) == 32


@pytest.mark.parametrize(
    ('one', 'other'),
    [
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
        (torch.arange(9)[3:5], torch.arange(9)[4:6]),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse()),
    ],
    ids=['values', 'dtypes', 'parts', 'generators', 'sparse'],
)
def test_other_tensors_have_other_digests(one, other):
    assert digest(one) != digest(other)


def test_attributes_say_what_has_changed():
    shared = {'kept': 1}
    subject = Plain(same=shared, filled=[], inside={'a': [1]}, other=[1], gone=3, number=1, handle=None, pipeline=[1])
    before = Attributes(subject)
    subject.filled.append(1)
    subject.inside['a'].append(2)
    subject.other = [1]
    subject.number = 2
    subject.new = shared
    subject.handle = threading.Lock()
    subject.pipeline.append(2)
    del subject.gone
    assert sorted(before.changed()) == ['filled', 'handle', 'inside', 'new', 'number', 'other']
    assert before.removed() == ['gone']
    assert before.kept() == {id(subject): '', id(shared): 'same', id(subject.pipeline): 'pipeline'}
