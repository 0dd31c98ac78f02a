"""Numbers, columns, ids and grouping against naive Python."""

from __future__ import annotations

import json
from typing import List

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmshared.annotations.columns import CoordinateEncoder, compact, decode_coordinates, narrow
from mmshared.annotations.parsing.grouping import group_by_image
from mmshared.annotations.parsing.ids import CodeTable, IdTable
from mmshared.annotations.parsing.numbers import MARK, MAX_INTEGER, Lists, NotPlain, Scalars

from .json_text import NUMBERS

UNIT = settings(deadline=None, max_examples=120)
decimals = st.builds(lambda n, digits: n / 10**digits, st.integers(-(10**7), 10**7), st.integers(0, 4))
floats = st.one_of(
    decimals,
    decimals,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 0.0, 5e-324, 655.35, 655.36, 2147483647.0, -2147483648.0, 1e300, 0.1 + 0.2]),
)
number_texts = st.one_of(st.sampled_from(NUMBERS), floats.map(repr), st.integers(-(10**20), 10**20).map(str))


def bits(values: np.ndarray) -> List[int]:
    return np.ascontiguousarray(values, np.float64).view(np.int64).reshape(-1).tolist()


@UNIT
@given(st.lists(st.lists(floats, max_size=9), max_size=8))
@example([[1.5, -0.0], [], [3.0]])
@example([[0.0, 655.35], [0.0, 655.36], [1e300], [0.125, 70000.5]])
def test_coordinates_come_back_bit_by_bit(records: List[List[float]]) -> None:
    lengths = np.array([len(r) for r in records], np.int64)
    values = np.array([v for r in records for v in r], np.float64)
    encoder = CoordinateEncoder()
    for _ in range(2):  # it remembers a scale
        coded = encoder.encode(values, lengths, bool(values.size) and (values == np.rint(values)).all())
        for base in (coded.base, narrow(coded.base)):  # as it is stored
            assert bits(decode_coordinates(coded.code, base, lengths, coded.parts)) == bits(values)


@UNIT
@given(st.lists(floats, max_size=300))
@example([-0.0])
def test_compact_columns_come_back_bit_by_bit(values: List[float]) -> None:
    array = np.array(values, np.float64)
    stored, scale = compact(array)
    assert bits(stored / scale if scale else stored) == bits(array)


@UNIT
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
@example([255])
def test_narrow(values: List[int]) -> None:
    assert narrow(np.array(values, np.int64)).tolist() == values


@pytest.mark.parametrize('top, itemsize', [(255, 1), (256, 2), (65535, 2), (65536, 4), (2**31 - 1, 4), (2**31, 8)])
def test_narrow_takes_the_smallest(top: int, itemsize: int) -> None:
    assert narrow(np.array([0, top])).itemsize == itemsize


def assert_numbers(numbers: object, expected: List[object]) -> None:
    assert bits(numbers.values) == bits(np.array(expected, np.float64))
    is_int = [False] * len(expected) if numbers.is_int is None else numbers.is_int.tolist()
    assert is_int == [type(v) is int for v in expected]


def is_large(value: object) -> bool:
    return type(value) is int and abs(value) > MAX_INTEGER


@UNIT
@given(st.lists(number_texts, min_size=1, max_size=8))
def test_scalars(texts: List[str]) -> None:
    expected = [json.loads(text) for text in texts]
    try:
        assert_numbers(Scalars([text.encode() for text in texts]).parse(), expected)
    except NotPlain:
        assert any(map(is_large, expected))


@UNIT
@given(st.lists(st.lists(number_texts, max_size=5), max_size=6), st.sampled_from(['', ' ', '\n\t']))
def test_lists(lists: List[List[str]], space: str) -> None:
    texts = [f'[{space}{f"{space},{space}".join(one)}{space}]'.encode() for one in lists]
    expected = [json.loads(number) for one in lists for number in one]
    try:
        numbers, lengths = Lists(texts).parse()
    except NotPlain:
        assert any(map(is_large, expected)) or MARK in expected
    else:
        assert lengths.tolist() == [len(one) for one in lists]
        assert_numbers(numbers, expected)


@pytest.mark.parametrize('text', ['true', 'null', '"1"', '[1]', '{}', '[]', '1e999', str(10**19), '{"a": 1}'])
def test_no_scalar(text: str) -> None:
    with pytest.raises(NotPlain):
        Scalars([b'1.5', text.encode()]).parse()


@pytest.mark.parametrize('text', ['1', '[[1]]', '[null]', '["1"]', '[true]', '{}', '{"a": [1]}', '["],["]', '[{}]'])
def test_no_flat_list(text: str) -> None:
    with pytest.raises(NotPlain):
        Lists([b'[1.5]', text.encode()]).parse()


ids = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**64), 2**64),
    st.sampled_from([2**63 - 1, -(2**63), 2**63]),
    st.sampled_from(['a', '1', '', None, True, False, 1.0, -0.0, 2.5, 2.0**63, 1e300, float('inf'), float('nan')]),
)


@UNIT
@given(st.lists(ids, max_size=12), st.lists(ids, max_size=12))
@example([2**63 - 1, -(2**63), 'a'], ['a', -(2**63)])
def test_grouping_is_that_of_a_dict(images: List[object], annotations: List[object]) -> None:
    table = IdTable()
    keys = []
    for values in (images, annotations):
        key, coded = table.encode(values)
        keys += [key, np.zeros(len(values), bool) if coded is None else coded]
    groups = group_by_image(*keys)
    first, last, members = {}, {}, {}
    for position, value in enumerate(images):
        first.setdefault(value, position)
        last[value] = position
    for position, value in enumerate(annotations):
        members.setdefault(value if value in first else 'orphan \0', []).append(position)
    assert groups.first.tolist() == list(first.values()) and groups.last.tolist() == [last[value] for value in first]
    parts = [groups.order[a:b].tolist() for a, b in zip(groups.starts, groups.starts[1:])]
    assert parts == [members.get(value, []) for value in first]
    assert groups.order[groups.starts[-1] :].tolist() == members.get('orphan \0', [])
    assert groups.of_record.tolist() == [list(first).index(value) for value in images]


@UNIT
@given(st.lists(st.lists(ids, max_size=6), max_size=4))
def test_codes_are_those_of_a_dict(batches: List[List[object]]) -> None:
    table, known = CodeTable(), {}
    for batch in batches:
        expected = [known.setdefault(value, len(known)) for value in batch]
        assert table.encode(batch).tolist() == expected
    assert table.values == list(known)
