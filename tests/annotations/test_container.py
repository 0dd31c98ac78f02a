"""A damaged, foreign or hostile store is refused; none crashes, hangs or asks for all memory."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from mmshared.annotations import AnnotationStore, DetectionView, StoreError
from mmshared.annotations.container import FORMAT_VERSION, Container, ContainerWriter
from mmshared.annotations.records import Records

from .helpers import build, exact, small

_HEAD = struct.Struct('<8sIIQQQ')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    build(json.dumps(small()).encode(), tmp_path / 'store')
    return tmp_path / 'store'


def header_offset(data: bytes) -> int:
    return _HEAD.unpack_from(data)[3]


def reheaded(data: bytes, change: Callable[[dict], Any]) -> bytes:
    """``data`` with another header, its checksums right."""
    offset = header_offset(data)
    header = json.loads(data[offset:])
    header = change(header) or header
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = _HEAD.pack(b'MMSHARED', FORMAT_VERSION, zlib.crc32(text), offset, len(text), offset + len(text))
    return head + struct.pack('<I', zlib.crc32(head)) + data[44:offset] + text


def test_every_damaged_byte_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    good, offset = exact(AnnotationStore(path).to_dict()), header_offset(path.read_bytes())
    places = [*range(64), *range(64, offset, 13), *range(offset, len(data), 3)]
    for at in places:
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        try:
            AnnotationStore(path).container.verify()
        except StoreError as error:
            assert str(path) in str(error)
        else:  # padding between columns
            assert at < offset and exact(AnnotationStore(path).to_dict()) == good


def test_every_truncation_is_noticed(path: Path) -> None:
    data = path.read_bytes()
    for size in [*range(70), *range(70, len(data), 17), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(StoreError):
            AnnotationStore(path)
    path.write_bytes(data + b'\0')
    with pytest.raises(StoreError):
        AnnotationStore(path)


@pytest.mark.parametrize('version', [0, FORMAT_VERSION + 1])
def test_another_version(path: Path, version: int) -> None:
    data = path.read_bytes()
    head = data[:8] + struct.pack('<I', version) + data[12:40]
    path.write_bytes(head + struct.pack('<I', zlib.crc32(head)) + data[44:])
    with pytest.raises(StoreError, match='version'):
        AnnotationStore(path)


def _entry(index: int, value: Any, name: str = 'annotation.id') -> Callable[[dict], None]:
    def change(header: dict) -> None:
        header['columns'][name][index] = value

    return change


HOSTILE = {
    'not JSON': lambda h: b'{',
    'not UTF-8': lambda h: b'"\xff"',
    'deep': lambda h: b'[' * 100000,
    'a list': lambda h: b'[]',
    'no columns': lambda h: h.pop('columns') and None,
    'columns a list': lambda h: h.update(columns=[1]),
    'attributes a list': lambda h: h.update(attributes=[1]),
    'no source': lambda h: h['attributes'].pop('source') and None,
    'images huge': lambda h: h['attributes'].update(images=10**30),
    'annotations negative': lambda h: h['attributes'].update(annotations=-1),
    'annotations other': lambda h: h['attributes'].update(annotations=5),
    'dtype object': _entry(0, '|O'),
    'dtype list': _entry(0, ['<i4']),
    'dtype big endian': _entry(0, '>i4'),
    'shape negative': _entry(1, [-6]),
    'shape two negatives': _entry(1, [-2, -3]),
    'shape huge': _entry(1, [1 << 62]),
    'shape beyond 64 bits': _entry(1, [10**30]),
    'shape that wraps': _entry(1, [1 << 32, 1 << 32]),
    'shape that wraps to 6': _entry(1, [1 << 63, 2, 6]),
    'shape text': _entry(1, 'abc'),
    'shape null': _entry(1, None),
    'shape float': _entry(1, [6.5]),
    'shape bool': _entry(1, [True]),
    'offset outside': _entry(2, 1 << 40),
    'offset negative': _entry(2, -64),
    'offset huge': _entry(2, 10**30),
    'offset text': _entry(2, '64'),
    'stored huge': _entry(3, 1 << 61),
    'stored negative': _entry(3, -6),
    'stored float': _entry(3, 6.0),
    'index constant': _entry(3, 1, 'index'),
    'index missing': lambda h: h['columns'].pop('index') and None,
    'texts missing': lambda h: h['columns'].pop('text.image_name') and None,
    'no scales': lambda h: h['attributes'].pop('scales') and None,
}


@pytest.mark.parametrize('name', HOSTILE)
def test_hostile_header(path: Path, name: str) -> None:
    path.write_bytes(reheaded(path.read_bytes(), HOSTILE[name]))
    with pytest.raises(StoreError):
        AnnotationStore(path)


def rewritten(path: Path, name: str, values: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The store at ``path`` with another column ``name``."""
    old = Container(path)
    other = path.with_name('other')
    with open(other, 'wb') as out:
        writer = ContainerWriter(out)
        for column, array in old.columns.items():
            writer.add(column, values(array.copy()) if column == name else array)
        writer.close(old.attributes)
    return other


CHANGES = {
    'zero': np.zeros_like,
    'ones': lambda a: a * 0 + np.iinfo(a.dtype).max,
    'reversed': lambda a: a[::-1].copy(),
    'wide': lambda a: a.astype('<i8') * 0 + (1 << 62),
    'negative': lambda a: a.astype('<i8') * 0 - 5,
    'one short': lambda a: a[:-1].copy(),
    'empty': lambda a: a[:0].copy(),
}


@pytest.mark.parametrize('change', CHANGES)
def test_inconsistent_columns_end_in_an_error_or_in_data(path: Path, change: str) -> None:
    for name, column in Container(path).columns.items():
        if column.dtype.kind == 'f':
            continue
        other = rewritten(path, name, CHANGES[change])
        try:
            store = AnnotationStore(other)
            view = DetectionView(store, [3, 4])
            records = Records(store.container)
        except (StoreError, ValueError, IndexError, KeyError):
            continue
        reads = [
            (partial(view.data_info, img_prefix=''), len(view)),
            (view.labels, len(view)),
            (records.image, store.num_images),
            (records.annotation, store.num_annotations),
        ]
        for read, count in reads:
            for i in range(count):  # anything but a crash, a hang or a MemoryError
                with suppress(StoreError, ValueError, IndexError, KeyError, TypeError, OverflowError):
                    read(i)


@pytest.mark.parametrize('name', ['annotation.coords', 'annotation.polygons', 'index', 'text.u16'])
def test_lengths_that_do_not_add_up_are_refused_before_memory_is_taken(path: Path, name: str) -> None:
    other = rewritten(path, name, lambda a: a.astype('<i8') * 0 + (1 << 40) if name != 'text.u16' else a[:-1].copy())
    with pytest.raises(StoreError):
        DetectionView(AnnotationStore(other), [3, 4])


def test_a_column_of_equal_values_is_stored_once(tmp_path: Path) -> None:
    with open(tmp_path / 'c', 'wb') as out:
        writer = ContainerWriter(out)
        writer.add('a', np.full(10**6, 7, '<i4'))
        writer.add('b', np.zeros((0, 4)))
        writer.add('c', np.arange(6, dtype='<i4').reshape(2, 3))
        writer.close({'x': [1]})
    container = Container(tmp_path / 'c')
    assert (tmp_path / 'c').stat().st_size < 1000
    assert container.columns['a'].shape == (10**6,) and (container.columns['a'] == 7).all()
    assert container.columns['b'].shape == (0, 4) and container.columns['c'].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert container.attributes == {'x': [1]}
    with pytest.raises(ValueError, match='read-only'):
        container.columns['c'][0] = 1
    container.verify()
