"""Annotations and images by id: as a dict would find them, from arrays that one process works out."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationStore, lookup, opening
from mmshared.annotations.lookup import Lookup
from mmshared.annotations.ragged import BLOCK, Offsets, Texts, gather
from mmshared.annotations.records import Records

from .helpers import build, exact, small, store_of

ROOT = Path(__file__).resolve().parents[2]
IDS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0.0, 1.0, 2.5, -0.0, 1e300, True, False, None, '', 'a', '1', 2**63, -(2**63), 2**63 - 1, 2.0**63]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=2),
)
FOREIGN = [
    np.int64(1),
    np.int8(0),
    np.float32(1),
    np.float64(2.5),
    np.str_('a'),
    np.bool_(True),
    b'a',
    (1,),
    1j,
]


def annotation(key: Any, image: Any) -> dict:
    return {'id': key, 'image_id': image, 'category_id': 1, 'bbox': [1, 2, 3, 4], 'area': 5, 'iscrowd': 0}


def image(key: Any) -> dict:
    return {'id': key, 'file_name': 'a', 'height': 3, 'width': 4}


@settings(deadline=None, max_examples=60)
@given(st.lists(IDS, max_size=12), st.lists(IDS, max_size=6), st.lists(IDS, max_size=6), st.integers(0, 2**32))
def test_any_ids(ids: list, images: list, asked: list, seed: int) -> None:
    rng = random.Random(seed)
    of = [rng.choice([*images, *asked, 'x']) for _ in ids]
    data = {'images': list(map(image, images)), 'annotations': list(map(annotation, ids, of))}
    with store_of(data) as store:
        found = Lookup(store)
        position = store.container.columns['annotation.position']
        last = {key: i for i, key in enumerate(ids)}
        by_image: dict = {}
        for i, key in enumerate(of):
            by_image.setdefault(key, []).append(i)
        for key in [*ids, *images, *asked, *FOREIGN]:
            row = found.annotation(key)
            assert (None if row is None else position[row]) == last.get(key)
            number = found.image(key)
            rows: List[int] = [] if number is None else list(found.rows_of(number))
            assert [position[row] for row in rows] == by_image.get(key, [])
            assert (number is not None) == (key in by_image or key in set(images))
        assert [position[row] for row in found.rows] == list(range(len(ids)))
        first = {key: i for i, key in reversed(list(enumerate(ids)))}
        assert [position[row] for row in found.first_rows()] == sorted(first.values())
        assert found.num_ids == len(last) and found.num_images == len({*images, *of})
        numbers, rows = found.annotated_images()
        assert [position[row] for row in rows] == [rows[0] for rows in by_image.values()]
        assert [found.image(key) for key in by_image] == numbers.tolist()


@pytest.mark.parametrize('key', [[], {}, set(), np.zeros(1)], ids=['list', 'dict', 'set', 'array'])
def test_what_cannot_be_a_key(key: Any) -> None:
    with store_of(small()) as store:
        for find in (Lookup(store).annotation, Lookup(store).image):
            with pytest.raises(TypeError, match='unhashable'):
                find(key)


# ---- sharing
def test_one_process_works_it_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(json.dumps(small()).encode(), tmp_path / 'store')
    code = (
        'from mmshared.annotations import AnnotationStore\n'
        'from mmshared.annotations.lookup import Lookup\n'
        f'print(Lookup(AnnotationStore({str(tmp_path / "store")!r})).annotation(4))'
    )
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    children = [
        subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
        for _ in range(3)
    ]
    rows = {child.communicate(timeout=300)[0] for child in children}
    assert len(rows) == 1 and len(list(tmp_path.glob('*.derived'))) == 1
    monkeypatch.setattr(lookup, '_compute', None)
    found = Lookup(AnnotationStore(tmp_path / 'store'))
    assert {str(found.annotation(4)).encode() + b'\n'} == rows
    for other in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other.annotation(4) == found.annotation(4)
    assert len(pickle.dumps(found)) < 500


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.StoreCache, 'derived', lambda *arguments: None)
    with store_of(small()) as store:
        assert Lookup(store).annotation(6) == 5 and Lookup(store).annotation(7) is None


def test_a_derived_file_that_is_damaged_is_made_anew(tmp_path: Path) -> None:
    build(json.dumps(small()).encode(), tmp_path / 'store')
    row = Lookup(AnnotationStore(tmp_path / 'store')).annotation(4)
    (derived,) = tmp_path.glob('*.derived')
    derived.write_bytes(derived.read_bytes()[:-9])
    assert Lookup(AnnotationStore(tmp_path / 'store')).annotation(4) == row


# ---- columns of varying length
@settings(deadline=None, max_examples=40)
@given(
    lengths=st.one_of(st.lists(st.integers(0, 9), max_size=3 * BLOCK), st.just([0] * 999), st.just([3] * (2 * BLOCK))),
    seed=st.integers(0, 2**32),
)
def test_offsets(lengths: list, seed: int) -> None:
    rng = random.Random(seed)
    column = np.array(lengths, np.uint8)
    ends = np.cumsum([0, *lengths])
    offsets, data = Offsets(column.size, column.__getitem__), np.arange(ends[-1]).astype(np.uint8)
    texts = Texts(data, column)
    assert offsets.total == ends[-1] and len(texts) == column.size
    for i in range(0, len(lengths), 7):
        assert offsets[i] == (ends[i], ends[i + 1]) and texts[i] == data[ends[i] : ends[i + 1]].tobytes()
    for start in range(0, len(lengths), BLOCK):
        block = range(start, min(start + BLOCK, len(lengths)))
        rows = np.sort(np.array(rng.sample(block, rng.randrange(len(block) + 1)), np.int64))
        starts, stops = offsets.of(rows)
        assert np.array_equal(starts, ends[rows]) and np.array_equal(stops, ends[rows + 1])
        assert gather(data, starts, stops).tobytes() == b''.join(texts.at(rows)) == b''.join(texts[i] for i in rows)


def test_lengths_that_grow_beyond_their_type() -> None:
    column = np.full(5 * BLOCK, 255, np.uint8)
    assert Offsets(column.size, column.__getitem__)[5 * BLOCK - 1] == (255 * (5 * BLOCK - 1), 255 * 5 * BLOCK)


@pytest.mark.parametrize('count', [1, BLOCK, 2 * BLOCK + 3])
def test_records_in_any_order(count: int) -> None:
    data = small()
    kinds = data['annotations']
    data['annotations'] = [{**kinds[i % 6], 'id': i} for i in range(count)]
    with store_of(data) as store:
        records, rng = Records(store.container), np.random.default_rng(0)
        position = store.container.columns['annotation.position']
        for rows in (np.arange(count), rng.permutation(count), rng.integers(0, count, 9), np.zeros(0, np.int64)):
            expected = [data['annotations'][position[row]] for row in rows]
            assert exact(records.at(rows)) == exact(expected)
