"""Files that cannot be used: one short error that names file, record and field, and nothing left behind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mmshared.annotations import AnnotationFileError

from .helpers import content, shared, stock, write
from .oracle import MAX_MESSAGE, attempt

GOOD = json.dumps(content()).encode()
BYTES = {
    'truncated in a record': GOOD[: len(GOOD) // 2],
    'truncated at the end': GOOD[:-1],
    'truncated in the images': GOOD[:30],
    'empty': b'',
    'blank': b' \n',
    'binary': bytes(range(256)) * 10,
    'zeros': bytes(1000),
    'gzip named json': gzip.compress(GOOD),
    'one bad utf-8 byte': GOOD.replace(b'3.jpg', b'\xff.jpg'),
    'utf-16': GOOD.decode().encode('utf-16'),
    'byte order mark': b'\xef\xbb\xbf' + GOOD,
    'two documents': GOOD + GOOD,
    'list at top level': b'[' + GOOD + b']',
    'string at top level': b'"annotations"',
    'single quotes': GOOD.replace(b'"', b"'"),
    'trailing comma': GOOD[:-1] + b',}',
    'unquoted key': GOOD.replace(b'"bbox"', b'bbox', 1),
    'raw newline in a string': GOOD.replace(b'3.jpg', b'3\n.jpg'),
}
# table, position, record's id, field, value (None: the field is removed)
FIELDS = [
    ('annotations', 17, 117, 'bbox', None),
    ('annotations', 17, 117, 'bbox', [1, 2, 3]),
    ('annotations', 17, 117, 'bbox', [1, 2, 3, 4, 5]),
    ('annotations', 17, 117, 'bbox', ['1', '2', '3', '4']),
    ('annotations', 17, 117, 'bbox', [1, 2, None, 4]),
    ('annotations', 17, 117, 'bbox', {'x': 1, 'y': 2, 'w': 3, 'h': 4}),
    ('annotations', 17, 117, 'bbox', 'x' * 100_000),
    ('annotations', 17, 117, 'area', None),
    ('annotations', 17, 117, 'area', '5'),
    ('annotations', 17, 117, 'area', [5]),
    ('annotations', 17, 117, 'image_id', None),
    ('annotations', 17, 117, 'image_id', [11]),
    ('annotations', 17, 117, 'category_id', None),
    ('annotations', 17, 117, 'category_id', {'id': 3}),
    ('annotations', 17, None, 'id', None),
    ('annotations', 17, None, 'id', [1]),
    ('images', 5, 15, 'height', None),
    ('images', 5, 15, 'height', '480'),
    ('images', 5, 15, 'width', None),
    ('images', 5, 15, 'width', [640]),
    ('images', 5, 15, 'file_name', None),
    ('images', 5, 15, 'file_name', 7),
    ('images', 5, 15, 'file_name', ['a.jpg']),
    ('images', 5, None, 'id', None),
    ('images', 5, None, 'id', {}),
    ('categories', 2, 9, 'name', None),
    ('categories', 2, None, 'id', None),
    ('categories', 2, None, 'id', []),
]


def reject(file: str) -> AnnotationFileError:
    """Return the error both classes raise, ours, after checking what every error of ours must fulfil."""
    assert isinstance(attempt(lambda: stock(file)), Exception)
    error = attempt(lambda: shared(file))
    assert isinstance(error, AnnotationFileError), repr(error)
    assert isinstance(error, ValueError)
    assert file in str(error)
    assert len(str(error)) < MAX_MESSAGE
    again = attempt(lambda: shared(file))
    assert str(again) == str(error), 'the second attempt must not find anything of the first'
    return error


def left_in_cache(file: str) -> list[str]:
    return [str(p) for p in (Path(file).parent / 'cache').rglob('*') if p.is_file()]


@pytest.mark.parametrize('name', BYTES)
def test_not_a_json_object(name, tmp_path):
    file = tmp_path / 'annotations.json'
    file.write_bytes(BYTES[name])
    reject(str(file))
    assert left_in_cache(str(file)) == []


@pytest.mark.parametrize('table, position, record_id, field, value', FIELDS)
def test_one_field_of_one_record(table, position, record_id, field, value, tmp_path):
    data = content()
    record = data[table][position]
    if value is None:
        del record[field]
    else:
        record[field] = value
    if table == 'images':  # so that stock, too, has to look at it
        data['annotations'][0]['image_id'] = 15
    error = reject(write(tmp_path / 'annotations.json', data))
    assert error.field == field
    assert field in str(error)
    assert f'{table}[{position}]' in str(error)
    if record_id is not None:
        assert str(record_id) in str(error)
    if table != 'categories' or field != 'name':  # stock's subclasses may not need names: the store can be of use
        assert left_in_cache(error.file) == []


@pytest.mark.parametrize('record', [5, None, 'x', [1], [[]]])
@pytest.mark.parametrize('table', ['images', 'annotations', 'categories'])
def test_a_record_that_is_no_object(table, record, tmp_path):
    data = content()
    data[table][2] = record
    error = reject(write(tmp_path / 'annotations.json', data))
    assert f'{table}[2]' in str(error)


def test_no_categories(tmp_path):
    data = content()
    del data['categories']
    assert 'categories' in str(reject(write(tmp_path / 'annotations.json', data)))


def test_repeated_annotation_ids_are_named_with_their_places(tmp_path):
    data = content()
    data['annotations'][20]['id'] = data['annotations'][4]['id']
    error = reject(write(tmp_path / 'annotations.json', data))
    assert '104' in str(error) and '20' in str(error) and '4' in str(error)


def test_every_id_zero(tmp_path):
    data = content(annotations=5000)
    for annotation in data['annotations']:
        annotation['id'] = 0
    reject(write(tmp_path / 'annotations.json', data))


def test_a_missing_file(tmp_path):
    file = str(tmp_path / 'none.json')
    for build in (stock, shared):
        error = attempt(lambda b=build: b(file))
        assert isinstance(error, FileNotFoundError) and file in str(error)


def test_no_image_is_left(tmp_path):
    file = write(tmp_path / 'annotations.json', content())
    for more in (
        {'indices': 0},
        {'filter_cfg': {'min_size': 10_000}},
        {'metainfo': {'classes': ('x',)}, 'filter_cfg': {'filter_empty_gt': True}},
    ):
        assert isinstance(attempt(lambda m=more: stock(file, **m)), ValueError)
        error = attempt(lambda m=more: shared(file, **m))
        assert isinstance(error, AnnotationFileError) and file in str(error) and 'no sample is left' in str(error)
        for option in more:
            assert option in str(error)
        assert len(stock(file, serialize_data=False, **more)) == len(shared(file, serialize_data=False, **more)) == 0


def test_an_image_folder_is_asked_for(tmp_path):
    file = write(tmp_path / 'annotations.json', content())
    for build in (stock, shared):
        assert isinstance(attempt(lambda b=build: b(file, data_prefix={})), KeyError)
