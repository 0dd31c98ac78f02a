"""A store gives back the file it was made of, wherever the reader cuts it (invariant 2)."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.datasets.coco_text import CocoText, coco_files

from .helpers import exact, pieces, small, store_of
from .json_text import TextWriter

SIZES = (16, 64, 200, 4096)
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_lossless(text: bytes) -> None:
    with store_of(text) as store:
        assert exact(store.to_dict()) == exact(json.loads(text))


@pytest.mark.parametrize('size', SIZES)
@settings(PROPERTY, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_any_text(monkeypatch: pytest.MonkeyPatch, size: int, seed: int) -> None:
    pieces(monkeypatch, size)
    assert_lossless(TextWriter(seed).file())


@pytest.mark.parametrize('size', SIZES)
@settings(PROPERTY, max_examples=25)
@given(file=coco_files())
def test_any_annotation_file(monkeypatch: pytest.MonkeyPatch, size: int, file: CocoText) -> None:
    text = file.encode()
    pieces(monkeypatch, size)
    if not isinstance(json.loads(text).get('annotations', []), list):
        return
    assert_lossless(text)


@pytest.mark.parametrize('size', range(16, 120, 5))
def test_every_boundary(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    pieces(monkeypatch, size)
    assert_lossless(json.dumps(small(), ensure_ascii=False).encode())


@pytest.mark.parametrize('indent', [None, 0, 4])
@pytest.mark.parametrize('newline', ['\n', '\r\n'])
def test_indentation(monkeypatch: pytest.MonkeyPatch, indent: int, newline: str) -> None:
    pieces(monkeypatch, 64)
    assert_lossless(json.dumps(small(), indent=indent).replace('\n', newline).encode())


@pytest.mark.parametrize('numbers', ['1.5', '-1.25e+3', '0', '1e5'])
def test_numbers_are_cut_anywhere(monkeypatch: pytest.MonkeyPatch, numbers: str) -> None:
    text = ('{"scores": [' + ','.join([numbers] * 40) + '], "images": []}').encode()
    for size in range(16, 40):
        pieces(monkeypatch, size)
        assert_lossless(text)


def test_elements_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small()
    data['annotations'][0]['segmentation'] *= 900
    data['annotations'][3]['more'] = [{'a': [{}, {}]}] * 3000
    data['images'][0]['text'] = '}, {' * 9000
    data['x'] = ['y' * 40000, {'z': '}, {' * 5000}]
    for size in (200, 4096, 1 << 19):
        pieces(monkeypatch, size)
        assert_lossless(json.dumps(data).encode())


@pytest.mark.parametrize('key', ['"', '\\', '\n', '', 'extra0', 'a"b', '\u00e9', '\ud800', '\x7f', '$', ' id'])
def test_any_key(key: str) -> None:
    data = small()
    for record in (data['images'][0], data['annotations'][0], data):
        record[key] = [{'a': 1}, {}]
    assert_lossless(json.dumps(data).encode())


def test_more_keys_than_are_learnt() -> None:
    data = small()
    for i, record in enumerate(data['annotations'] * 2):
        record.update({f'key {i} {k}': k for k in range(30)})
    assert_lossless(json.dumps(data).encode())


@pytest.mark.parametrize('sections', [[], ['images'], ['annotations'], ['categories'], ['images', 'annotations']])
def test_missing_sections(sections: list) -> None:
    assert_lossless(json.dumps({k: v for k, v in small().items() if k not in sections}).encode())


@pytest.mark.parametrize('table', ['images', 'annotations'])
@pytest.mark.parametrize('text', ['[]', '[ ]', '[\n]'])
def test_empty_sections(table: str, text: str) -> None:
    data = {k: v for k, v in small().items() if k != table}
    assert_lossless(f'{json.dumps(data)[:-1]}, "{table}": {text} }}'.encode())
