"""Stores of JSON texts, and what pycocotools makes of the same text."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any, Iterator

import pytest
from pycocotools.coco import COCO

from mmshared.annotations import AnnotationStore
from mmshared.annotations.errors import Violations
from mmshared.annotations.parsing.builder import build_store

NAME = 'some/annotations.json'


def build(text: bytes, path: Path) -> Violations:
    """Writes the store of ``text`` to ``path``; returns what mmdet would choke on."""
    with open(path, 'wb') as out:
        return build_store(io.BytesIO(text), NAME, out, tempfile.TemporaryFile)


@contextlib.contextmanager
def store_of(text: Any) -> Iterator[AnnotationStore]:
    """The store of a JSON text, or of an object."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'store')
        build(text if isinstance(text, bytes) else json.dumps(text).encode(), path)
        yield AnnotationStore(path)


def stock(text: bytes) -> COCO:
    """pycocotools' index of ``text``, as ``COCO(file)`` builds it."""
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = json.loads(text.decode('utf-8'))
        assert type(coco.dataset) is dict
        coco.createIndex()
    return coco


def pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Makes the reader go through files ``size`` bytes at a time."""
    monkeypatch.setattr('mmshared.annotations.parsing.stream.PIECE', size)


def exact(value: Any) -> Any:
    """``value`` such that ``==`` tells types and the bits of floats apart (the order of keys aside)."""
    if isinstance(value, float):
        return 'float', struct.pack('<d', value)
    if isinstance(value, dict):
        return {key: exact(v) for key, v in value.items()}
    if isinstance(value, list):
        return [exact(v) for v in value]
    return type(value), value


def small() -> dict:
    """A valid file with a bit of everything."""
    polygon = [1.5, 2.25, 10.0, 2, 10.125, 9]
    rest = {'area': 50.5, 'category_id': 3}
    return {
        'info': {'year': 2024, 'text': 'a}, {b'},
        'images': [
            {'id': 7, 'file_name': 'é.jpg', 'height': 20, 'width': 30},
            {'id': 'x', 'file_name': 'b.jpg', 'height': 20, 'width': 30, 'url': None},
            {'id': 9, 'file_name': 'c.jpg', 'height': 20.5, 'width': 30},
        ],
        'annotations': [
            {'id': 1, 'image_id': 7, 'bbox': [1, 2.5, 10, 7.25], 'iscrowd': 0, 'segmentation': [polygon], **rest},
            {
                'id': 2,
                'image_id': 'x',
                'bbox': [1, 2, 3, 4],
                'iscrowd': 1,
                'segmentation': {'counts': [1, 2], 'size': [20, 30]},
                **rest,
            },
            {'id': 3, 'image_id': 7, 'bbox': [0.1, 0.2, 1e5, 4.5], 'segmentation': [polygon, polygon], **rest},
            {'id': 4, 'image_id': 9, 'bbox': [0.1, 1e-3, 5.5, 4.5], 'segmentation': None, 'more': [{}, {}], **rest},
            {'id': 5, 'image_id': 7, 'bbox': [True, 0, 5, 4], 'segmentation': [], **rest},
            {'id': 6, 'image_id': 77, 'bbox': [1.0, 2.0, 3.0, 4.0], 'segmentation': [[1 / 3] * 6], **rest},
        ],
        'categories': [{'id': 3, 'name': 'cat'}, {'id': 4, 'name': 'dog'}],
    }
