"""The index of archives, made of entries directly, against a dict."""

from __future__ import annotations

import copy
import pickle
import zlib
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmshared.annotations.errors import StoreError
from mmshared.fileio.entry import Entry, Kind, entry_name
from mmshared.fileio.index import Index, encoded
from mmshared.fileio.index_writer import IndexWriter

PARTS = st.sampled_from(['a', 'b', 'ab', 'a-b', 'a.b', 'a0', 'é', '\udcff', '日本', '.hidden', ' '])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map('/'.join)


def make_index(path: Path, archives: Sequence[Sequence[Entry]]) -> Index:
    writer = IndexWriter()
    for number, entries in enumerate(archives):
        for entry in entries:
            writer.add(number, entry, f'{number}.tar')
    with open(path, 'wb') as out:
        writer.write(out, {'source': 's', 'archives': [[f'{i}.tar', 0, 0, 0, '', 'tar'] for i in range(len(archives))]})
    return Index(path)


def index_of(path: Path, names: Sequence[str]) -> Index:
    return make_index(path, [[Entry(name, 512 * i, i, i) for i, name in enumerate(names)]])


@given(st.lists(st.lists(NAMES, max_size=12), min_size=1, max_size=3), NAMES)
@settings(max_examples=150, deadline=None)
def test_as_a_dict(tmp_path_factory, archives: List[List[str]], other: str) -> None:
    expected: Dict[str, List[Tuple[int, Entry]]] = {}
    made, offset = [], 0
    for number, names in enumerate(archives):
        made.append([])
        of_this: Dict[str, Entry] = {}
        for name in names:
            offset += 512
            entry = Entry(
                name, offset, offset % 7, offset % 11, Kind.STORED, zlib.crc32(name.encode('utf-8', 'replace'))
            )
            of_this[name] = entry
            made[-1].append(entry)
        for name, entry in of_this.items():
            expected.setdefault(name, []).append((number, entry))
    index = make_index(tmp_path_factory.mktemp('index') / 'x', made)
    assert len(index) == sum(map(len, expected.values()))
    for name, found in expected.items():
        number, entry = index[index.find(encoded(name))]
        assert index.archives_of(encoded(name)) == [number for number, _ in found]
        if len(found) == 1:
            assert (number, entry) == found[0]
        else:
            assert entry.kind == Kind.REPEATED
    assert (index.find(encoded(other)) >= 0) == (other in expected)
    _check_folders(index, set(expected))
    assert index.depth == max((name.count('/') + 1 for name in expected), default=1)


def _check_folders(index: Index, names: set) -> None:
    folders = {'/'.join(name.split('/')[:i]) for name in names for i in range(name.count('/') + 1)}
    for folder in folders | {'a', 'zz', 'a/'}:
        assert index.is_folder(encoded(folder)) == (folder in folders), folder
    for folder in folders:
        prefix = f'{folder}/' if folder else ''
        below = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        expected = {(encoded(rest.split('/')[0]), '/' in rest) for rest in below}
        found = list(index.children(encoded(folder)))
        assert set(found) == expected and len(found) == len(expected)


def test_names_with_one_crc(tmp_path: Path) -> None:
    # Two words of one CRC-32, well known.
    assert zlib.crc32(b'plumless') == zlib.crc32(b'buckeroo')
    index = index_of(tmp_path / 'x', ['plumless', 'buckeroo'])
    assert [index[index.find(name)][1].name for name in (b'plumless', b'buckeroo')] == ['plumless', 'buckeroo']


def test_the_last_of_an_archive_counts(tmp_path: Path) -> None:
    index = index_of(tmp_path / 'x', ['a', 'b', 'a', 'c', 'a'])
    assert len(index) == 3 and index[index.find(b'a')][1].size == 4


def test_common_folder(tmp_path: Path) -> None:
    for i, (names, common) in enumerate(
        [
            (['a/b/1', 'a/b/2', 'a/b/c/1'], b'a/b'),
            (['a/b/1', 'a/c/1'], b'a'),
            (['ab/1', 'ac/1'], b''),
            (['a/1', '2'], b''),
            (['a'], b''),
            (['a/b'], b'a'),
            ([], b''),
        ]
    ):
        assert index_of(tmp_path / str(i), names).common == common


def test_it_pickles_to_its_path(tmp_path: Path) -> None:
    index = index_of(tmp_path / 'x', [f'{i:06}.jpg' for i in range(50_000)])
    data = pickle.dumps(index)
    assert len(data) < 300
    assert pickle.loads(data).find(b'000007.jpg') == index.find(b'000007.jpg') == 7
    assert copy.copy(index) is index and copy.deepcopy([index])[0] is index


def test_names_are_searched_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(tmp_path / 'x', [f'folder{i % 3}/{i:03}.jpg' for i in range(300)] + ['folder0/aa', 'folder1/aa'])
    expected = index.ending_in(b'017.jpg'), index.ending_in(b'aa'), index.ending_in(b'a')
    assert expected == ([b'folder2/017.jpg'], [b'folder0/aa', b'folder1/aa'], [])
    for block in (1, 2, 7, 64, 1000):
        monkeypatch.setattr('mmshared.fileio.index._BLOCK', block)
        assert (index.ending_in(b'017.jpg'), index.ending_in(b'aa'), index.ending_in(b'a')) == expected
    assert index.ending_in(b'aa', most=1) == [b'folder0/aa']


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    good = index_of(tmp_path / 'x', ['a', 'b/c', 'b/d'])
    data = (tmp_path / 'x').read_bytes()
    del good
    for cut in range(len(data)):
        (tmp_path / 'y').write_bytes(data[:cut])
        with pytest.raises(StoreError):
            Index(tmp_path / 'y')
    other = tmp_path / 'z'
    from mmshared.annotations.container import ContainerWriter

    with open(other, 'wb') as out:
        ContainerWriter(out).close({'entries': 0})
    with pytest.raises(StoreError, match='no index'):
        Index(other)


@pytest.mark.parametrize(
    ('path', 'name'),
    [
        ('./a//b', 'a/b'),
        ('/a/b', 'a/b'),
        ('a/./b/', 'a/b'),
        ('../a', ''),
        ('a/../b', ''),
        ('..a/b..', '..a/b..'),
        ('.', ''),
    ],
)
def test_names_of_entries(path: str, name: str) -> None:
    assert entry_name(path) == name
