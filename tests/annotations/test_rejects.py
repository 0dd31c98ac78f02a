"""What Python's ``json`` and pycocotools' index reject, we reject; what they accept, we accept, unchanged."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationFileError, AnnotationStore

from .helpers import build, exact, pieces, small, stock
from .json_text import TextWriter

PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = b' \t\n\r"\\{}[]:,0123456789.-+eEtrufalsn/\x00\x01\x7f\x80\xc3\xed\xff\xef#\''
WORDS = [
    b'NaN',
    b'-Infinity',
    b'1e400',
    b'}, {',
    b',',
    b'null',
    b'\xed\xa0\x80',
    b'\\ud800',
    b'\\u12',
    b'//',
    b'/**/',
    b'"id":1,',
    b'[]',
    b'{}',
    b'\xef\xbb\xbf',
    b'1' * 30,
]


def ours(text: bytes, path: Path) -> Optional[dict]:
    """The content by way of a store, None if the file is rejected."""
    try:
        build(text, path)
        store = AnnotationStore(path)
        if 'categories' in store.top:
            assert store.categories is not None  # looked at when asked for
    except AnnotationFileError as error:
        assert len(str(error)) <= 1500
        if error.field != 'name':  # CocoDataset needs it, the index does not
            return None
    return store.to_dict()


def assert_same_verdict(text: bytes) -> None:
    try:
        expected = exact(stock(text).dataset)
    except Exception:
        expected = None
    with tempfile.TemporaryDirectory() as folder:
        found = ours(text, Path(folder, 'store'))
    assert (None if found is None else exact(found)) == expected, text


def mutated(text: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(text) + 1)
        word = rng.choice(WORDS) if rng.random() < 0.3 else bytes([rng.choice(BYTES)])
        head, tail = text[:at], text[at:]
        text = rng.choice(
            [head + tail[1:], head + word + tail, head + word + tail[1:], head, head + tail[rng.randrange(20) :]]
        )
    return text


@pytest.mark.parametrize('size', [16, 200, 1 << 19])
@settings(PROPERTY, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_mutations(monkeypatch: pytest.MonkeyPatch, size: int, seed: int) -> None:
    pieces(monkeypatch, size)
    rng = random.Random(seed)
    text = json.dumps(small(), ensure_ascii=False).encode() if rng.random() < 0.6 else TextWriter(seed).file()
    assert_same_verdict(mutated(text, rng))


PLACES = {
    'box': '{"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "area": 1, "bbox": [1, %s, 3, 4]}]}',
    'area': '{"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "area": %s, "bbox": [1, 2, 3, 4]}]}',
    'polygon': '{"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "area": 1, "bbox": [1, 2, 3, 4], '
    '"segmentation": [[1.5, %s, 3]]}]}',
    'segmentation': '{"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "area": 1, "bbox": [1, 2, 3, 4], '
    '"segmentation": %s}]}',
    'flag': '{"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "area": 1, "bbox": [1, 2, 3, 4], '
    '"iscrowd": %s}]}',
    'image id': '{"images": [{"id": %s, "file_name": "x", "height": 1, "width": 1}]}',
    'height': '{"images": [{"id": 1, "file_name": "x", "height": %s, "width": 1}]}',
    'file name': '{"images": [{"id": 1, "file_name": %s, "height": 1, "width": 1}]}',
    'category id': '{"annotations": [{"id": 1, "image_id": 1, "category_id": %s, "area": 1, "bbox": [1, 2, 3, 4]}], '
    '"categories": []}',
    'extra': '{"images": [{"id": 1, "file_name": "x", "height": 1, "width": 1, "x": [%s]}]}',
    'record': '{"images": [%s]}',
    'records': '{"annotations": %s}',
    'top': '{"info": %s}',
    'element': '{"x": [1, %s]}',
    'whole': '%s',
}
VALUES = [
    '0',
    '-0',
    '-0.0',
    '01',
    '1.',
    '+1',
    '.5',
    '1e',
    '1E+',
    '--1',
    '-',
    '1e5',
    '1E400',
    '-1e400',
    '1e-400',
    '-1e-400',
    '0x1',
    'NaN',
    '-NaN',
    'Infinity',
    '-Infinity',
    'nan',
    str(10**30),
    str(2**53 + 1),
    str(2**51 + 1),
    str(2**63),
    str(-(2**63)),
    str(-(2**63) - 1),
    '1' * 4300,
    '1' * 4301,
    '0.' + '1' * 9000,
    'true',
    'True',
    'null',
    '"a"',
    "'a'",
    '"a',
    '"\x01"',
    '"\t"',
    '"\x7f"',
    '"\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\x"',
    '"\\u12G4"',
    '"\\/"',
    '[]',
    '[1,]',
    '[1 2]',
    '[,]',
    '[1]]',
    '[[[]]]',
    '{}',
    '{"a": 1,}',
    '{a: 1}',
    '{"a" 1}',
    '{"a": }',
    '{1: 2}',
    '{"a": 1, "a": [2]}',
    '{"size": [1, 2], "counts": "}, {"}',
    '{"size": [1, 2], "counts": [1], "x": 1}',
    '1 // c',
    '/* */ 1',
    '[' * 300 + ']' * 300,
    '[' * 5000 + ']' * 5000,
    '[' * 5000,
    '{"a":' * 5000 + '1' + '}' * 5000,
    '"\ufeff"',
    '\ufeff1',
    '\u00a01',
    '\x0c1',
    '""',
    '',
    ' ',
    '[1.5, 2.5]',
    '[[1, 2], "x"]',
    '[true]',
    '[[null]]',
]


@pytest.mark.parametrize('place', PLACES)
def test_values(place: str) -> None:
    for value in VALUES:
        assert_same_verdict(PLACES[place].replace('%s', value).encode())


@pytest.mark.parametrize('bad', [b'\xff', b'\x80', b'\xc3', b'\xed\xa0\x80', b'\xf4\x90\x80\x80', b'\xc0\x80'])
def test_bad_utf8_anywhere(monkeypatch: pytest.MonkeyPatch, bad: bytes) -> None:
    pieces(monkeypatch, 200)
    text = json.dumps(small()).encode()
    for at in range(0, len(text) + 1, 41):
        assert_same_verdict(text[:at] + bad + text[at:])


def test_truncation_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces(monkeypatch, 200)
    text = json.dumps(small(), ensure_ascii=False).encode()
    for at in range(0, len(text), 11):
        assert_same_verdict(text[:at])


@pytest.mark.parametrize(
    'text',
    [
        '',
        ' ',
        '[]',
        '7',
        '"x"',
        'null',
        '{}',
        '{} ',
        '{}}',
        '{} {}',
        '{"images": [] "a": 1}',
        '{,}',
        '{"a": 1,}',
        '{"images": 5}',
        '{"images": null}',
        '{"images": {}}',
        '{"images": ""}',
        '{"images": "x"}',
        '{"images": {"a": 1}}',
        '{"images": [], "images": null}',
        '{"images": null, "images": []}',
        '{"annotations": [7], "annotations": []}',
        '{"annotations": [{"id": 1}], "annotations": [], "x": }',
        '{"images": [[1]]}',
        '{"images": [{}]}',
        '{"images": [{"id": []}]}',
        '{"annotations": [{"id": 1, "image_id": 2}]}',
        '{"images": [{"id": 1}]',
        '{"annotations": [{"id": 1, "image_id": 2}], "categories": []}',
        '{"annotations": [{"id": 1, "image_id": {}}]}',
        '{"annotations": [{"id": 1, "image_id": 2, "category_id": []}], "categories": []}',
        '{"annotations": [{"id": 1, "image_id": 2, "category_id": []}]}',
        '\ufeff{}',
        '{"images": [{"id": 1},]}',
        '{"images": [,{"id": 1}]}',
        '{"images": [{"id": 1},,{"id": 2}]}',
        '{"images": [{"id": 1} {"id": 2}]}',
    ],
)
def test_structures(text: str) -> None:
    for newline in ('', '\n', '\r\n'):
        assert_same_verdict(newline.join(text).encode() if newline and '"' not in text else text.encode())
