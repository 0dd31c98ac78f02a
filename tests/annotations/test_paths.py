"""Images that say in another field than ``file_name`` where they are, or nowhere; and datasets that leave some out."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.annotations import AnnotationFileError, ArrayView, Fingerprint, Paths, find_store, open_store
from mmshared.annotations.layout import INDEX, PATH_FIELDS, Trait
from mmshared.annotations.packing import pack_store
from mmshared.annotations.parsing import crew
from mmshared.annotations.parsing.builder import build_store
from mmshared.annotations.store import AnnotationStore
from mmshared.annotations.verify import faults

from .helpers import exact, store_of

MISSING = object()
TEXTS = ['a/b.jpg', '', 'http://x/ü%b "q".jpg', '\\', 'a\ud800b', '}, {"id": 1']
VALUES = [MISSING, MISSING, None, 7, ['x'], {'a': 1}, True]


def image(key: Any, **fields: Any) -> Dict[str, Any]:
    return {'id': key, 'height': 4, 'width': 5, **{k: v for k, v in fields.items() if v is not MISSING}}


def content(images: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {'images': images, 'annotations': [], 'categories': []}


IMAGES = st.lists(
    st.builds(
        image,
        st.sampled_from([1, 2, 3, 'x', 1.0, 2**70]),
        file_name=st.sampled_from([*VALUES, *TEXTS]),
        coco_url=st.sampled_from([*VALUES, *TEXTS]),
        license=st.sampled_from([MISSING, 3]),
    ),
    max_size=6,
)


def lacking(images: List[Dict[str, Any]], field: str) -> List[int]:
    """Where the records are that count, the last of each id, and have no text in ``field``."""
    last = {record['id']: i for i, record in enumerate(images)}
    return [i for i in last.values() if not isinstance(images[i].get(field), str)]


@settings(max_examples=200, deadline=None)
@given(IMAGES)
def test_every_record_is_kept_and_judged(images):
    with store_of(content(images)) as store:
        assert exact(store.to_dict()['images']) == exact(images)
        assert list(faults(store)) == []
        for field in PATH_FIELDS:
            places, error = lacking(images, field), store.violations.of((field,))
            assert (error is None) == (not places)
            if error is not None:
                assert (error.record.partition(' ')[0], error.field) == (f'images[{places[0]}]', field)
                shown = images[places[0]]
                assert error.problem.startswith(f'is {shown[field]!r}, should' if field in shown else 'is missing')
            else:
                view = ArrayView(store, [], Paths(field))
                paths = {record['id']: record.get(field) for record in images}
                assert [view.path(row) for row in range(len(view))] == list(paths.values())
        assert (store.violations.of(PATH_FIELDS) is None) == any(not lacking(images, f) for f in PATH_FIELDS)


def test_a_record_without_file_name_is_plain():
    """It has columns, so that its annotations do not take the slow way."""
    with store_of(content([image(1, coco_url='a'), image(2, coco_url='b', file_name='c')])) as store:
        traits = store.container.columns['index'][:-1, INDEX.index('traits')].tolist()
        assert traits == [Trait.NAMELESS, 0]
        assert store.container.columns['text.image_raw'].size == 0


def test_several_processes_find_the_same(tmp_path, monkeypatch):
    images = [image(i, coco_url=f'train/{i}.jpg' if i % 500 else MISSING, license=1) for i in range(1, 1800)]
    (tmp_path / 'a.json').write_text(json.dumps(content(images)))
    found = []
    for processes in (1, 3):
        monkeypatch.setenv(crew.ENV, str(processes))
        path = tmp_path / str(processes)
        with open(tmp_path / 'a.json', 'rb') as file, open(path, 'wb') as out:
            build_store(file, 'a.json', out, tempfile.TemporaryFile, None, 4000)
        store = AnnotationStore(path)
        found.append((store.to_dict(), str(store.violations.of(('coco_url',)))))
    assert found[0] == found[1] and found[0][0]['images'] == images
    assert "images[499] (id 500), field 'coco_url': is missing" in found[0][1]


# ---- opening
@pytest.fixture
def lvis(tmp_path) -> Path:
    path = tmp_path / 'lvis.json'
    path.write_text(json.dumps(content([image(1, coco_url='a/1.jpg'), image(2, coco_url='a/2.jpg')])))
    return path


def test_who_finds_images_by_another_field_opens_it(lvis, tmp_path):
    cache = str(tmp_path / 'cache')
    with pytest.raises(AnnotationFileError, match='file_name'):
        open_store(lvis, cache)
    assert find_store(Fingerprint.of_file(lvis), cache) is None  # as before: nothing is kept of what is refused
    store = open_store(lvis, cache, path_fields=('coco_url',))
    with pytest.raises(AnnotationFileError, match='file_name'):
        open_store(lvis, cache)
    with pytest.raises(AnnotationFileError, match='file_name'):
        find_store(Fingerprint.of_file(lvis), cache)
    assert find_store(Fingerprint.of_file(lvis), cache, path_fields=('coco_url',)).path == store.path
    with pytest.raises(AnnotationFileError, match='file_name'):
        open_store(store.path)


def test_it_can_be_packed(lvis, tmp_path):
    pack_store(lvis, tmp_path / 'x.mmstore')
    assert open_store(tmp_path / 'x.mmstore', path_fields=('coco_url',)).num_images == 2
    lvis.write_text(json.dumps(content([image(1, coco_url='a'), image(2, file_name='b')])))
    with pytest.raises(AnnotationFileError, match=r"images\[0\] \(id 1\), field 'file_name': is missing"):
        pack_store(lvis, tmp_path / 'y.mmstore')


# ---- leaving images out
def shorter(path: str) -> str:
    return '/'.join(path.split('/')[-2:])


def test_images_that_are_left_out():
    without = ('p1/a.jpg', 'p2/b.jpg')
    names = ['x/p1/a.jpg', 'p1/a.jpg', 'a.jpg', 'p1/a.jpgx', 'x/p2/b.jpgp1/a.jpg', 'c.jpg', 'p1/a.jpg', 'p2/b.jpg', '']
    images = [image(i, file_name=name) for i, name in enumerate(names)]
    images[6]['width'] = 1e300  # kept as text
    images[7]['id'] = 'text'
    with store_of(content(images)) as store:
        view = ArrayView(store, [], Paths(change=shorter, without=without))
        expected = [i for i, name in enumerate(names) if shorter(name) in without]
        assert view.left_out().tolist() == expected == [0, 1, 6, 7]
        assert pickle.loads(pickle.dumps(view)).left_out().tolist() == expected
        assert ArrayView(store, []).left_out().tolist() == []
        assert os.path.basename(view.path(4)) == 'a.jpg'
