"""Odd uses that once went wrong: threads with many archives, odd addresses and paths, an index with other bytes."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from mmengine import fileio

from mmshared.annotations.errors import StoreError
from mmshared.fileio.descriptors import MOST_OPEN, Descriptors
from mmshared.fileio.errors import EntryNotFoundError
from mmshared.fileio.formats import base
from mmshared.fileio.record_backend import RecordBackend

from .test_record_backend import args_of, outcome, pack

FILES = {'train/1.jpg': b'one', 'val/1.jpg': b'another one', 'train/a': b'A'}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


def test_threads_that_open_more_files_than_are_kept_open(tmp_path: Path) -> None:
    """After any instruction of one thread another one may have closed the oldest file, to open one."""
    paths = [tmp_path / f'{i}' for i in range(2 * MOST_OPEN)]
    for i, path in enumerate(paths):
        path.write_text(str(i))
    files, order = Descriptors([str(path) for path in paths]), itertools.cycle(range(len(paths)))
    left = 0

    def between(frame: Any, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code is not Descriptors.__getitem__.__code__:
            return None
        frame.f_trace_opcodes = True
        left -= event == 'opcode'
        if event == 'opcode' and left == 0:
            opened = files._open[1]
            opened.pop(next(iter(opened)))
        return between

    before, instructions = sys.gettrace(), 200
    for _ in range(MOST_OPEN):
        files[next(order)]
    for after in range(1, instructions):
        files[next(order)]  # full again
        i, left = next(order), after
        sys.settrace(between)
        try:
            file = files[i]
        finally:
            sys.settrace(before)
        assert os.pread(file.number, 10, 0) == str(i).encode()
    assert left > 0  # there was one after each of them


def test_addresses_with_several_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the archive is known from the read before."""
    monkeypatch.chdir(tmp_path)
    pack(tmp_path / 'x.tar', FILES)
    for address in ('record://x.tar//train/1.jpg', f'record:///{tmp_path}//x.tar//train/1.jpg'):
        assert [fileio.get(address) for _ in range(2)] == [b'one'] * 2


@pytest.mark.parametrize('name', ['train/1.jpg', 'train/1.jpg/', 'train/1.jpg/.', 'x/../train/1.jpg'])
def test_names_of_local_copies(tmp_path: Path, name: str, cache: Path) -> None:
    args = args_of(pack(tmp_path / 'x.tar', FILES))
    with fileio.get_local_path(name, backend_args=args) as copy:
        assert Path(copy).read_bytes() == b'one' and os.path.basename(copy) == '1.jpg'
    assert [path.suffix for path in cache.iterdir()] == ['.mmstore']


def test_suffixes_are_those_of_paths(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / 'set' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'set' / name).write_bytes(data)
    args = args_of(pack(tmp_path / 'x.tar', FILES), root=str(tmp_path / 'set'))
    what = dict(list_dir=False, suffix='n/1.jpg', recursive=True)
    on_disk = list(fileio.list_dir_or_file(tmp_path / 'set', **what))
    assert list(fileio.list_dir_or_file(tmp_path / 'set', **what, backend_args=args)) == on_disk == ['train/1.jpg']


@pytest.mark.parametrize('form', ['tar', 'zip', 'rec'])
def test_an_index_with_any_other_byte(tmp_path: Path, cache: Path, form: str) -> None:
    """In a tar nothing else shows that an offset or a size is not what it was."""
    files = {f'train/{i}.jpg': bytes([i]) * (600 + i) for i in range(4)}
    archive = str(pack(tmp_path / f'x.{form}', files))
    RecordBackend(archive).get('train/1.jpg')
    (index,) = cache.glob('*.mmstore')
    good, found = index.read_bytes(), set()
    for at in range(64, len(good), 3):
        index.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        backend = RecordBackend(archive)
        for name, data in files.items():
            result = outcome(backend.get, name)
            assert result in (data, StoreError, EntryNotFoundError), at
            found.add(type(result))
    assert found == {bytes, type}


@pytest.mark.parametrize('form', ['tar', 'zip'])
def test_large_entries_take_their_size_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(base, '_AT_ONCE', 1 << 20)
    data = os.urandom((16 << 20) + 5)
    backend = RecordBackend(str(pack(tmp_path / f'x.{form}', {'a': data})))
    assert backend.isfile('a')
    tracemalloc.start()
    try:
        assert backend.get('a') == data
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(data)
    finally:
        tracemalloc.stop()


def test_brackets_in_names_of_folders(tmp_path: Path) -> None:
    pack(tmp_path / 'set[1]' / 'x-0.tar', FILES)
    assert RecordBackend(str(tmp_path / 'set[1]' / 'x-0.tar')).get('train/a') == b'A'
    with pytest.raises(FileNotFoundError, match=r'nothing matches it .* write \[\[\] for'):
        RecordBackend(str(tmp_path / 'set[1]' / 'x-*.tar')).get('train/a')
    assert RecordBackend(str(tmp_path / 'set[[]1]' / 'x-*.tar')).get('train/a') == b'A'


def test_sets_that_begin_and_end_alike_keep_their_indexes(tmp_path: Path, cache: Path) -> None:
    """An index replaces those of the same archives only; else two jobs would make theirs in turn."""
    sets = []
    for between in 'bc':
        names = ['a', f'{between}/m', 'z']
        sets.append([str(pack(tmp_path / f'{name}.tar', {f'{name}/1.jpg': name.encode()})) for name in names])
    for archives in sets:
        assert RecordBackend(archives).get('z/1.jpg') == b'z'
    gc.collect()
    RecordBackend(sets[0]).get('a/1.jpg')
    assert len(list(cache.glob('*.mmstore'))) == 2


def test_a_path_that_no_file_can_have_is_no_folder(tmp_path: Path) -> None:
    args = args_of(pack(tmp_path / 'x.tar', FILES))
    for path in ('\ud800', ''):
        for function in (fileio.exists, fileio.isdir, fileio.isfile):
            assert function(path, backend_args=args) is function(path) is False
