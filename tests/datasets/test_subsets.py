"""``indices``, ``get_subset`` and ``get_subset_``, alone and one after the other, against stock."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from .helpers import content, shared, stock, write
from .oracle import attempt, compare_datasets, difference

CHOICES = [5, 1, 0, -1, -5, [0], [3, 3, 1], (2, -1), range(2, 6, 3), [], [np.int64(4)], True]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / 'annotations.json', content())


@pytest.fixture(params=[True, False], ids=['serialized', 'list'])
def serialize(request):
    return request.param


def items(dataset):
    return [dataset.get_data_info(i) for i in range(len(dataset))]


@pytest.mark.parametrize('filter_cfg', [None, {'filter_empty_gt': True, 'min_size': 32}])
@pytest.mark.parametrize('indices', CHOICES, ids=str)
def test_every_way_to_choose(file, serialize, filter_cfg, indices):
    options = {'serialize_data': serialize, 'filter_cfg': filter_cfg}
    a, b = stock(file, **options), shared(file, **options)
    assert difference(items(a.get_subset(indices)), items(b.get_subset(indices))) is None
    assert compare_datasets(a, b) is None, 'the original changed'
    a.get_subset_(indices)
    b.get_subset_(indices)
    assert difference(items(a), items(b)) is None
    if len(a):
        a, b = (d(file, indices=indices, **options) for d in (stock, shared))
        assert compare_datasets(a, b) is None


def test_subsets_of_subsets(file, serialize):
    a, b = stock(file, serialize_data=serialize), shared(file, serialize_data=serialize)
    for indices in (11, -9, [7, 3, 3, -1, 0, 5], 5, -4, [1, 0], 1):
        a, b = a.get_subset(indices), b.get_subset(indices)
        assert difference(items(a), items(b)) is None
        assert difference([a.get_cat_ids(i) for i in range(len(a))], [b.get_cat_ids(i) for i in range(len(b))]) is None


@pytest.mark.parametrize(
    'indices', [1.5, '1', None, np.array([1]), {1}, [1.0], ['x'], [None], np.int64(3), [99], [-99]], ids=str
)
def test_what_is_rejected(file, serialize, indices):
    a, b = stock(file, serialize_data=serialize), shared(file, serialize_data=serialize)
    for method in ('get_subset', 'get_subset_'):
        errors = [attempt(lambda d=d, m=method: getattr(copy.deepcopy(d), m)(indices)) for d in (a, b)]
        assert all(isinstance(e, Exception) for e in errors), errors
        if isinstance(errors[0], (AssertionError, TypeError)):
            assert type(errors[0]) is type(errors[1])
    if indices is not None:
        for build in (stock, shared):
            error = attempt(lambda f=build: f(file, serialize_data=serialize, indices=indices))
            assert isinstance(error, (TypeError, IndexError)), error


def test_a_list_may_be_sliced_beyond_its_ends(file):
    for indices in (1000, -1000):
        a, b = (d(file, serialize_data=False).get_subset(indices) for d in (stock, shared))
        assert len(a) == len(b) == 12
        a, b = (d(file, indices=indices) for d in (stock, shared))
        assert len(a) == len(b) == 12


def test_other_kinds_of_index(file, serialize):
    a, b = stock(file, serialize_data=serialize), shared(file, serialize_data=serialize)
    for i in (np.int64(3), np.int32(-2)):
        assert difference(a.get_data_info(i), b.get_data_info(i)) is None
    for i in (1.0, '1', None, slice(0, 2)):
        assert isinstance(attempt(lambda i=i: a.get_data_info(i)), Exception)
        assert isinstance(attempt(lambda i=i: b.get_data_info(i)), Exception)
