"""A store that is damaged, written wrong, or made to be wrong is told from a good one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationStore, StoreError
from mmshared.annotations.container import Container, ContainerWriter
from mmshared.annotations.layout import INDEX
from mmshared.annotations.verify import faults, verify

from ..datasets.coco_text import ACCEPTED, CocoText
from .helpers import build, exact, small
from .test_container import rewritten


def a_bit_of_everything(folder: Path) -> Path:
    """A store in which every column has something."""
    data = small()
    data['images'].append({'id': 7, 'file_name': 'again.jpg', 'height': 20, 'width': 30})
    build(json.dumps(data).encode(), folder / 'store')
    return folder / 'store'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return a_bit_of_everything(tmp_path)


@settings(deadline=None, max_examples=60)
@given(st.sets(st.sampled_from(ACCEPTED), max_size=4), st.integers(0, 6), st.integers(0, 30), st.integers(0, 10**6))
def test_good_stores_are_good(tmp_path_factory, features, images, annotations, seed):
    path = tmp_path_factory.getbasetemp() / 'verified'
    build(CocoText(features, images, annotations, seed).encode(), path)
    assert list(faults(AnnotationStore(path))) == []


def test_a_flipped_byte_anywhere(path):
    """It is reported, or it is one that nobody reads."""
    data, rng = bytearray(path.read_bytes()), random.Random(0)
    good = exact(AnnotationStore(path).to_dict())
    reported = 0
    for _ in range(300):
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        path.write_bytes(data)
        data[at] ^= bit
        try:
            verify(AnnotationStore(path))
        except StoreError as error:
            reported += 1
            assert str(path) in str(error)
        else:
            assert exact(AnnotationStore(path).to_dict()) == good
    assert reported > 150


def change(**places: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Set elements of a column: ``change(at=value)``, ``at`` such as ``_0`` or ``_last``."""

    def apply(array: np.ndarray) -> np.ndarray:
        array = array.astype(np.int64)
        for place, value in places.items():
            array[-1 if place == 'last' else int(place[1:])] = value
        return array

    return apply


def index(name: str, row: int, value: int) -> Callable[[np.ndarray], np.ndarray]:
    def apply(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[row, INDEX.index(name)] = value
        return array

    return apply


def as_bytes(text: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """The text of a column with its first bytes replaced, as long as it was."""

    def apply(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array[: len(text)] = np.frombuffer(text, np.uint8)
        return array

    return apply


WRONG = {
    'category beyond': ('annotation.category', change(_0=9)),
    'kind beyond': ('annotation.kind', change(_0=4)),
    'kind of another': ('annotation.kind', change(_0=3)),
    'coded beyond': ('annotation.coded', change(_0=4)),
    'coded without a table': ('annotation.coded', change(_0=1)),
    'image coded, its image not': ('annotation.coded', change(_0=2)),
    'flags beyond': ('annotation.flags', lambda a: a | 7),
    'keeps what mmdet does not': ('annotation.flags', lambda a: a ^ 64),
    'scale beyond': ('annotation.code', lambda a: a | 7),
    'width beyond': ('annotation.code', lambda a: a | 24),
    'another width': ('annotation.code', lambda a: a ^ 8),
    'position twice': ('annotation.position', change(_0=1, _1=1)),
    'position beyond': ('annotation.position', change(_0=99)),
    'position negative': ('annotation.position', change(_0=-1)),
    'image position twice': ('image.position', change(_0=1, _1=1)),
    'superseded group beyond': ('superseded.group', change(_0=99)),
    'more rows of superseded': ('superseded.group', lambda a: np.array([0, 1])),
    'orphans beyond': ('orphan.image', lambda a: np.array([1, 2, 3])),
    'coordinates fewer': ('annotation.coords', change(_0=0)),
    'coordinates negative': ('annotation.coords', change(_0=-6)),
    'polygons more': ('annotation.polygons', change(_0=2)),
    'lengths of polygons': ('text.polygons', change(_0=4, _1=8)),
    'base without a trait': ('annotation.base', lambda a: np.full(a.shape, 5) + np.arange(a.size)),
    'types without a trait': ('annotation.types', change(_0=128)),
    'bits longer': ('annotation.bits', change(_0=50)),
    'texts of extras longer': ('annotation.extra', change(_0=50)),
    'texts negative': ('annotation.raw', change(_0=-1)),
    'float lengths': ('annotation.raw', lambda a: a.astype(float)),
    'float index': ('index', lambda a: a.astype(float)),
    'text of wide numbers': ('text.extra', lambda a: a.astype(np.int32)),
    'two dimensions': ('annotation.kind', lambda a: a.reshape(-1, 1)),
    'flat boxes': ('annotation.bbox', lambda a: a[:, 0]),
    'boxes of five': ('annotation.bbox', lambda a: np.hstack([a, a[:, :1]])),
    'starts not at 0': ('index', index('annotation', 0, 1)),
    'starts fall': ('index', index('annotation', 1, 10**6)),
    'index of u16 moved': ('index', index('u16', 1, 1)),
    'index of rle moved': ('index', index('rle', 2, 1)),
    'index of names short': ('index', index('name', 3, 1)),
    'index of names falls': ('index', index('name', 1, -1)),
    'image id beyond its table': ('index', index('id', 1, 44)),
    'traits beyond': ('index', index('traits', 0, 1 << 20)),
    'traits of others': ('index', index('traits', 0, 0)),
    'a name that is said to be missing': (
        'index',
        lambda a: a | 128 * (np.arange(len(INDEX)) == INDEX.index('traits')),
    ),
    'extras of images beyond': ('index', index('image_extra', 3, 10**6)),
    'extras of images short': ('index', index('image_extra', 3, 1)),
    'name not UTF-8': ('text.image_name', as_bytes(b'\xff')),
    'raw not JSON': ('text.raw', as_bytes(b'[')),
    'raw no object': ('text.raw', lambda a: np.frombuffer(b'[]'.ljust(a.size), np.uint8)),
    'raw without an id': ('text.raw', lambda a: np.frombuffer(b'{}'.ljust(a.size), np.uint8)),
    'extra not JSON': ('text.extra', as_bytes(b'}')),
    'rle not JSON': ('text.rle', as_bytes(b'}')),
    'superseded not JSON': ('text.superseded', as_bytes(b'}')),
    'ids not JSON': ('text.image_ids', as_bytes(b'}')),
    'an id that is a list': ('text.image_ids', lambda a: np.frombuffer(b'[]'.ljust(a.size), np.uint8)),
    'top not JSON': ('top.info', as_bytes(b'}')),
}


@pytest.mark.parametrize('name', WRONG)
def test_a_store_made_wrong_with_right_checksums(path, name):
    column, values = WRONG[name]
    other = rewritten(path, column, values)
    with pytest.raises(StoreError) as caught:
        verify(AnnotationStore(other))
    assert str(other) in str(caught.value)
    assert list(faults(AnnotationStore(path))) == []


def test_columns_that_claim_to_be_huge(path):
    """One stored element stands for a column of equal ones: a few bytes may claim any size."""
    old = Container(path)
    for name in ('superseded.group', 'text.extra', 'length.image_ids', 'text.polygons'):
        other = path.with_name('other')
        with open(other, 'wb') as out:
            writer = ContainerWriter(out)
            for column, array in old.columns.items():
                if column == name:
                    writer.add_stream(column, array.dtype, [array[:1]], (1 << 55,))
                else:
                    writer.add(column, array)
            writer.close(old.attributes)
        assert list(faults(AnnotationStore(other)))


@pytest.mark.parametrize('scales', [{'bbox': 7, 'area': 1}, {'bbox': 0, 'area': 3}])
def test_wrong_scales(path, scales):
    old, other = Container(path), path.with_name('other')
    with open(other, 'wb') as out:
        writer = ContainerWriter(out)
        for column, array in old.columns.items():
            writer.add(column, array)
        writer.close({**old.attributes, 'scales': scales})
    assert any('scale' in fault for fault in faults(AnnotationStore(other)))


def test_random_values_do_no_harm(path):
    """Whatever stands in the columns, the check ends with an answer."""
    rng, names, found = np.random.default_rng(0), sorted(Container(path).columns), 0

    def values(array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1)
        if not flat.size:
            return array
        limits = np.iinfo(np.int32 if array.dtype.kind == 'f' else array.dtype)
        chosen = rng.integers(flat.size, size=rng.integers(1, 4))
        flat[chosen] = rng.integers(limits.min, limits.max, size=chosen.size, endpoint=True)
        return array

    for _ in range(300):
        other = rewritten(path, names[rng.integers(len(names))], values)
        try:
            store = AnnotationStore(other)
        except StoreError:
            found += 1
            continue
        if list(faults(store)):
            found += 1
        else:
            store.to_dict()  # a value like any other, such as another number of a box
    assert found > 100
