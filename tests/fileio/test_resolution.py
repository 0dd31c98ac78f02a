"""Which entry a path means."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.fileio.errors import AmbiguousEntryError, EntryNotFoundError
from mmshared.fileio.resolution import Resolver

from .test_index import index_of

COCO = ['train2017/000000000009.jpg', 'train2017/000000000025.jpg']
FLAT = ['000000000009.jpg', '000000000025.jpg']
WRAPPED = [f'datasets/coco/{name}' for name in COCO]
SPLITS = ['train/1.jpg', 'val/1.jpg', 'val/2.jpg']


def found(tmp_path: Path, names: Sequence[str], path: str, root: Optional[str] = None) -> Optional[str]:
    index = index_of(tmp_path / 'index', names)
    row = Resolver(index, root).find(path)
    return None if row < 0 else index[row][1].name


@pytest.mark.parametrize(
    ('names', 'root', 'path', 'name'),
    [
        (COCO, None, 'data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, None, '/data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, None, 'train2017/000000000009.jpg', COCO[0]),
        (COCO, None, './data//coco/./x/../train2017/000000000009.jpg', COCO[0]),
        (COCO, None, '../coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, None, 'data/coco/val2017/000000000009.jpg', None),
        (COCO, None, 'xtrain2017/000000000009.jpg', None),
        (COCO, None, 'data/coco/annotations/instances_train2017.json', None),
        (COCO, None, 'data/coco/train2017', None),
        (COCO, None, '', None),
        (COCO, None, '/', None),
        (FLAT, None, 'data/coco/train2017/000000000009.jpg', FLAT[0]),
        (FLAT, None, '000000000009.jpg', FLAT[0]),
        (FLAT, None, 'data/coco/000000000026.jpg', None),
        (['a/1', '1', 'b/a/1'], None, 'x/b/a/1', 'b/a/1'),
        (['a/1', '1', 'b/a/1'], None, 'x/c/a/1', 'a/1'),
        (['a/1', '1', 'b/a/1'], None, 'x/c/d/1', '1'),
        (WRAPPED, None, 'train2017/000000000009.jpg', WRAPPED[0]),
        (WRAPPED, None, 'coco/train2017/000000000009.jpg', WRAPPED[0]),
        (WRAPPED, None, 'data/train2017/000000000009.jpg', None),
        (WRAPPED, None, '/train2017/000000000009.jpg', None),
        (WRAPPED, 'data', 'data/train2017/000000000009.jpg', WRAPPED[0]),
        (COCO, 'data/coco', 'data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, 'data/coco/', 'data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, './data//coco', 'data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, 'data/coco/train2017', 'data/coco/train2017/000000000009.jpg', COCO[0]),
        (COCO, 'data/coco', 'data/coco2/train2017/000000000009.jpg', None),
        (COCO, 'data/coco', 'train2017/000000000009.jpg', None),
        (COCO, '', 'train2017/000000000009.jpg', COCO[0]),
        (COCO, '', '/train2017/000000000009.jpg', None),
        (COCO, '/', '/train2017/000000000009.jpg', COCO[0]),
        (FLAT, 'data/coco/train2017', 'data/coco/train2017/000000000009.jpg', FLAT[0]),
        (FLAT, 'data/coco/train2017', 'data/coco/val2017/000000000009.jpg', None),
        (SPLITS, None, 'data/train/1.jpg', 'train/1.jpg'),
        (SPLITS, None, 'data/val/1.jpg', 'val/1.jpg'),
        (SPLITS, None, 'data/train/2.jpg', None),
        (SPLITS, 'data/val', 'data/val/1.jpg', None),
        ([], None, 'a', None),
    ],
)
def test_paths(tmp_path: Path, names: Sequence[str], root: Optional[str], path: str, name: Optional[str]) -> None:
    assert found(tmp_path, names, path, root) == name


def test_root_and_path_may_be_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for root, path in (('data', tmp_path / 'data' / COCO[0]), (tmp_path / 'data', f'data/{COCO[0]}')):
        assert found(tmp_path, COCO, str(path), str(root)) == COCO[0]


def test_several_below_wrappers_are_ambiguous(tmp_path: Path) -> None:
    names = ['a/a/x.jpg', 'a/a/a/x.jpg']
    assert found(tmp_path, names, 'a/a/x.jpg', '') == 'a/a/x.jpg'  # its whole name
    with pytest.raises(AmbiguousEntryError, match=r'a/a/x\.jpg, a/a/a/x\.jpg'):
        found(tmp_path, names, 'a/x.jpg', '')


def _error(tmp_path: Path, names: Sequence[str], path: str, root: Optional[str] = None) -> Exception:
    return Resolver(index_of(tmp_path / 'index', names), root).explain(path, ['x.tar'])


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    error = _error(tmp_path, SPLITS, 'data/1.jpg')
    assert isinstance(error, AmbiguousEntryError) and not isinstance(error, OSError)
    assert 'train/1.jpg, val/1.jpg' in str(error) and 'root=' in str(error) and 'x.tar: data/1.jpg' in str(error)

    error = _error(tmp_path, WRAPPED, 'data/coco/train2017/000000000009.jpg')
    assert isinstance(error, EntryNotFoundError) and isinstance(error, FileNotFoundError)
    assert "set root='data'" in str(error)
    assert found(tmp_path, WRAPPED, 'data/coco/train2017/000000000009.jpg', 'data') == WRAPPED[0]

    error = _error(tmp_path, COCO, 'data/coco/val2017/000000000009.jpg')
    assert isinstance(error, EntryNotFoundError)
    assert COCO[0] in str(error) and 'right archive' in str(error)

    error = _error(tmp_path, COCO, 'data/coco/train2017/1.jpg')
    assert f'Is it the right archive? Its 2 entries begin with {COCO[0]}' in str(error)
    assert 'stripped' not in str(_error(tmp_path, COCO, 'train2017/1.jpg', ''))
    assert 'empty' in str(_error(tmp_path, [], 'a.jpg'))
    assert "root='data'" in str(_error(tmp_path, COCO, 'data/1.jpg', 'data'))


PARTS = st.sampled_from(['a', 'b', 'c'])
PATHS = st.lists(PARTS, min_size=1, max_size=4).map('/'.join)


@given(st.lists(PATHS, max_size=8), PATHS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_longest_end_counts(tmp_path_factory, names: Sequence[str], path: str, absolute: bool) -> None:
    index = index_of(tmp_path_factory.mktemp('index') / 'x', names)
    parts = path.split('/')
    ends = ['/'.join(parts[i:]) for i in range(len(parts))]
    expected = next((end for end in ends if end in names), None)
    if expected is not None:
        row = Resolver(index).find(f'/{path}' if absolute else path)
        assert index[row][1].name == expected
    folders = {'/'.join(name.split('/')[:i]) for name in names for i in range(1, name.count('/') + 1)}
    expected = next((end for end in ends if end in folders), None)
    if expected is not None:
        assert Resolver(index).find_folder(path) == expected.encode()
    with_root = Resolver(index, 'r/s').find(f'r/s/{path}')
    if path in names:
        assert index[with_root][1].name == path
    assert Resolver(index, 'r/s').find(f'r/{path}') == -1
