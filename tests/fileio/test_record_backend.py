"""RecordBackend through mmengine.fileio, as everything in MMEngine uses it; LocalBackend is the oracle."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Dict, List

import pytest
from mmengine import fileio
from mmengine.fileio import FileClient, LocalBackend
from mmengine.fileio.io import get_file_backend

from mmshared.annotations.errors import StoreError
from mmshared.fileio.descriptors import MOST_OPEN
from mmshared.fileio.errors import AmbiguousEntryError, ArchiveChangedError, ArchiveError, EntryNotFoundError
from mmshared.fileio.record_backend import RecordBackend

from .record_files import Image, write_archive

FILES: Dict[str, bytes] = {
    'train/1.jpg': b'one',
    'train/2.jpg': b'two' * 50_000,
    'train/deep/er/3.png': b'',
    'train/.hidden': b'h',
    'val/1.jpg': b'another one',
    'val/.cache/x': b'x',
    'é 日本.jpg': b'name',
    'text.txt': 'Zeile é\r\nzwei\rdrei\n'.encode(),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files on the disk, below data/set."""
    root = tmp_path / 'data' / 'set'
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def pack(archive: Path, files: Dict[str, bytes]) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == '.tar':
        with tarfile.open(archive, 'w') as tar:
            for name, data in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    elif archive.suffix == '.rec':
        write_archive(archive, [Image(i, data, name=name) for i, (name, data) in enumerate(files.items())])
    else:
        with zipfile.ZipFile(archive, 'w') as out:
            for name, data in files.items():
                out.writestr(name, data, zipfile.ZIP_DEFLATED if name.endswith('.txt') else zipfile.ZIP_STORED)
    return archive


@pytest.fixture(params=['tar', 'zip', 'rec'])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return pack(tmp_path / f'all.{request.param}', FILES)


def args_of(archive: object, **more: object) -> dict:
    return dict(backend='record', archive=str(archive) if isinstance(archive, Path) else archive, **more)


def outcome(function, *args, **kwargs):
    try:
        result = function(*args, **kwargs)
        return sorted(result) if hasattr(result, '__next__') else result
    except Exception as error:
        return type(error)


def test_as_the_disk(folder: Path, archive: Path) -> None:
    """Everything that reads gives what LocalBackend gives, by the same paths."""
    args = args_of(archive, root=str(folder))
    paths = [folder / name for name in FILES] + [folder, folder / 'train', folder / 'train/deep', folder / 'val/.cache']
    for path in [*map(str, paths), *paths]:
        for function in (fileio.exists, fileio.isfile, fileio.isdir):
            assert function(path, backend_args=args) == function(path), (function, path)
        if os.path.isfile(path):
            assert fileio.get(path, backend_args=args) == fileio.get(path)
            with fileio.get_local_path(path, backend_args=args) as copy:
                assert Path(copy).read_bytes() == Path(path).read_bytes()
                assert os.path.basename(copy) == os.path.basename(path)
            assert os.path.lexists(copy) == (str(copy) == str(path))
    assert fileio.get_text(folder / 'text.txt', backend_args=args) == fileio.get_text(folder / 'text.txt')
    assert fileio.get_text(str(folder / 'text.txt'), 'latin-1', args) == fileio.get_text(folder / 'text.txt', 'latin-1')
    assert fileio.join_path('a', 'b', 'c', backend_args=args) == fileio.join_path('a', 'b', 'c')
    missing = str(folder / 'train/9.jpg')
    for function in (fileio.exists, fileio.isfile, fileio.isdir):
        assert function(missing, backend_args=args) is False
    with pytest.raises(FileNotFoundError, match=r'9\.jpg'):
        fileio.get(missing, backend_args=args)


def test_listing_as_the_disk(folder: Path, archive: Path) -> None:
    args = args_of(archive, root=str(folder))
    for where in ('', 'train', 'train/deep', 'val', 'train/deep/er'):
        for list_dir in (True, False):
            for list_file in (True, False):
                for suffix in (None, '.jpg', ('.jpg', '.png'), 3):
                    for recursive in (True, False):
                        how = (list_dir, list_file, suffix, recursive)
                        stock = outcome(fileio.list_dir_or_file, str(folder / where), *how)
                        ours = outcome(fileio.list_dir_or_file, str(folder / where), *how, backend_args=args)
                        assert ours == stock, (where, how)
    assert outcome(fileio.list_dir_or_file, str(folder / 'none'), backend_args=args) is EntryNotFoundError


def test_without_root(folder: Path, archive: Path) -> None:
    args = args_of(archive)
    for name, data in FILES.items():
        assert fileio.get(f'somewhere/else/{name}', backend_args=args) == data
    assert fileio.isdir('somewhere/train', backend_args=args)
    assert not fileio.isdir('somewhere/else', backend_args=args)
    assert sorted(fileio.list_dir_or_file('x/val', list_dir=False, backend_args=args)) == ['1.jpg']


def test_what_is_not_in_the_archive_is_on_the_disk(tmp_path: Path, archive: Path) -> None:
    other = tmp_path / 'annotations' / 'instances.json'
    other.parent.mkdir()
    other.write_text('{}')
    for args in (args_of(archive), args_of(archive, root=str(tmp_path / 'data'))):
        assert fileio.get(other, backend_args=args) == b'{}'
        assert fileio.load(other, backend_args=args) == {}
        assert fileio.exists(other, backend_args=args) and fileio.isfile(other, backend_args=args)
        with fileio.get_local_path(other, backend_args=args) as path:
            assert str(path) == str(other)
        assert list(fileio.list_dir_or_file(str(other.parent), backend_args=args)) == ['instances.json']
        fileio.put(b'new', str(other), backend_args=args)
        assert other.read_bytes() == b'new'
        fileio.put_text('{}', str(other), backend_args=args)
        assert other.read_text() == '{}'


def test_nothing_is_written_into_archives(tmp_path: Path, archive: Path) -> None:
    before = archive.read_bytes()
    args = args_of(archive, root='data')
    for write in (
        lambda: fileio.put(b'', 'data/train/1.jpg', backend_args=args),
        lambda: fileio.put(b'', 'data/new.jpg', backend_args=args),
        lambda: fileio.put_text('', 'data/train/1.jpg', backend_args=args),
        lambda: fileio.remove('data/train/1.jpg', backend_args=args),
        lambda: fileio.rmtree('data/train', backend_args=args),
        lambda: fileio.copyfile('data/train/1.jpg', 'data/train/7.jpg', backend_args=args),
    ):
        with pytest.raises(ArchiveError, match='only read'):
            write()
    assert archive.read_bytes() == before
    target = tmp_path / 'copy.jpg'
    assert fileio.copyfile('data/train/1.jpg', str(target), backend_args=args) == str(target)
    assert target.read_bytes() == b'one'
    (tmp_path / 'to').mkdir()
    assert fileio.copyfile_to_local('data/train/1.jpg', str(tmp_path / 'to'), backend_args=args)
    assert (tmp_path / 'to' / '1.jpg').read_bytes() == b'one'


def test_folders_are_copied_as_from_the_disk(folder: Path, archive: Path, tmp_path: Path) -> None:
    args = args_of(archive, root=str(folder))

    def tree(root: Path) -> Dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob('*') if path.is_file()}

    for i, where in enumerate(('', 'train', 'train/deep')):
        for j, copy in enumerate((fileio.copytree, fileio.copytree_to_local)):
            targets = [tmp_path / f'{kind}-{i}-{j}' / 'to' for kind in ('ours', 'stock')]
            told = [
                copy(str(folder / where), str(target), backend_args=backend_args)
                for target, backend_args in zip(targets, (args, None))
            ]
            assert tree(targets[0]) == tree(targets[1]) != {}
            assert [None if one is None else os.path.relpath(one, target) for one, target in zip(told, targets)] in (
                [None, None],
                ['.', '.'],
            )
    with pytest.raises(FileExistsError):
        fileio.copytree(str(folder), str(targets[0]), backend_args=args)
    assert fileio.copytree(str(tmp_path / 'ours-0-0'), str(tmp_path / 'plain'), backend_args=args)
    assert tree(tmp_path / 'plain' / 'to') == FILES


def test_the_current_folder_is_on_the_disk(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'work').mkdir()
    (tmp_path / 'work' / 'x.txt').write_text('x')
    monkeypatch.chdir(tmp_path / 'work')
    assert list(fileio.list_dir_or_file('.', backend_args=args_of(archive))) == ['x.txt']
    assert fileio.isdir('/', backend_args=args_of(archive))


def test_an_empty_archive(tmp_path: Path) -> None:
    for name in ('none.tar', 'none.zip'):
        archive = pack(tmp_path / name, {})
        assert fileio.isdir('data', backend_args=args_of(archive, root='data'))
        assert list(fileio.list_dir_or_file('data', backend_args=args_of(archive, root='data'))) == []
        with pytest.raises(EntryNotFoundError, match='empty'):
            fileio.get('data/1.jpg', backend_args=args_of(archive, root='data'))


def test_addresses(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for where in (f'record://{archive}', f'record://{archive.name}'):
        assert fileio.get(f'{where}/train/1.jpg') == b'one'
        assert fileio.get(fileio.join_path(where, 'val/', '1.jpg')) == b'another one'
        assert fileio.isdir(where) and fileio.isdir(f'{where}/train') and not fileio.isfile(where)
        assert sorted(fileio.list_dir_or_file(where, list_dir=False, suffix='.txt')) == ['text.txt']
        assert not fileio.exists(f'{where}/train/9.jpg')
        with pytest.raises(FileNotFoundError, match=r'9\.jpg'):
            fileio.get(f'{where}/train/9.jpg')
        with pytest.raises(ArchiveError):
            fileio.get(f'{where}/1.jpg')  # not by its last part alone
    with pytest.raises(FileNotFoundError, match='no part of its path is an archive'):
        fileio.get('record://none.tar/1.jpg')
    (tmp_path / 'plain.txt').write_text('plain')
    assert fileio.get('plain.txt', backend_args=dict(backend='record')) == b'plain'


def test_old_file_clients(archive: Path) -> None:
    client = FileClient('record', archive=str(archive))
    assert client.get('x/train/1.jpg') == b'one'
    assert FileClient.infer_client(uri=f'record://{archive}/x').get(f'record://{archive}/train/1.jpg') == b'one'


def test_a_set_of_archives(tmp_path: Path) -> None:
    files = [{f'{i:02}/{j}.jpg': b'%d %d' % (i, j) for j in range(3)} for i in range(5)]
    for i, part in enumerate(files):
        pack(tmp_path / f'part-{i}.{"tar" if i % 2 else "zip"}', part)
    (tmp_path / 'part-x').mkdir()
    for archive in (
        f'{tmp_path}/part-*',
        [f'{tmp_path}/part-*.tar', f'{tmp_path}/part-?.zip'],
        [f'{tmp_path}/part-{i}.{"tar" if i % 2 else "zip"}' for i in (4, 2, 0, 1, 3, 3)],
    ):
        args = args_of(archive)
        for part in files:
            for name, data in part.items():
                assert fileio.get(f'data/{name}', backend_args=args) == data
        assert len(list(fileio.list_dir_or_file('data/03', backend_args=args))) == 3


def test_a_pattern_means_archives_and_not_their_lists(tmp_path: Path) -> None:
    for i in range(3):
        pack(tmp_path / f'part-{i}.rec', {f'{i}.jpg': b'%d' % i})
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ['.idx'] * 3 + ['.lst'] * 3 + ['.rec'] * 3
    args = args_of(f'{tmp_path}/part-*')
    assert [fileio.get(f'{i}.jpg', backend_args=args) for i in range(3)] == [b'0', b'1', b'2']


def test_more_archives_than_a_process_keeps_open(tmp_path: Path) -> None:
    count = MOST_OPEN * 2 + 3
    for i in range(count):
        pack(tmp_path / f'{i:03}.tar', {f'{i}.jpg': b'%d' % i})
    args = args_of(f'{tmp_path}/*.tar')
    before = len(os.listdir('/proc/self/fd'))
    wrong: List[int] = []

    def read(seed: int) -> None:
        for k in range(2 * count):
            i = k * seed % count
            if fileio.get(f'{i}.jpg', backend_args=args) != b'%d' % i:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(os.listdir('/proc/self/fd')) <= before + MOST_OPEN + 2 * 5


def test_one_name_in_several_archives(tmp_path: Path) -> None:
    pack(tmp_path / 'a.tar', {'1.jpg': b'a', '2.jpg': b'2'})
    pack(tmp_path / 'b.tar', {'1.jpg': b'b'})
    args = args_of(f'{tmp_path}/?.tar')
    assert fileio.get('2.jpg', backend_args=args) == b'2'
    with pytest.raises(AmbiguousEntryError, match=r'a\.tar: 1\.jpg.*b\.tar'):
        fileio.get('1.jpg', backend_args=args)


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    for archive in (tmp_path / 'none.tar', f'{tmp_path}/*.none'):
        with pytest.raises(FileNotFoundError, match='none'):
            fileio.get('a.jpg', backend_args=args_of(archive))
    with pytest.raises(FileNotFoundError, match='empty list'):
        fileio.get('a.jpg', backend_args=args_of([]))


@pytest.mark.parametrize(
    'arguments',
    [
        dict(archive=3),
        dict(archive='x', root=3),
        dict(archive='x', verify_crc='no'),
        dict(root='x'),
        dict(archives='x'),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict) -> None:
    with pytest.raises(TypeError):
        get_file_backend(backend_args=dict(backend='record', **arguments))


def test_it_pickles_and_is_cheap_to_make(archive: Path) -> None:
    backend = RecordBackend(str(archive), root='data')
    assert backend.get('data/train/1.jpg') == b'one'
    again = pickle.loads(pickle.dumps(backend))
    assert again.get('data/train/1.jpg') == b'one' and len(pickle.dumps(backend)) < 300
    assert RecordBackend('/none.tar').join_path('a', 'b') == 'a/b'  # opens nothing
    assert isinstance(backend, LocalBackend)


def test_mmengine_keeps_one_instance(archive: Path) -> None:
    args = args_of(archive)
    assert json.dumps(args)
    first = get_file_backend('a', backend_args=args, enable_singleton=True)
    assert get_file_backend('b', backend_args=dict(args), enable_singleton=True) is first


def _rewrite(archive: Path, data: bytes) -> None:
    with open(archive, 'r+b') as file:
        file.truncate(0)
        file.write(data)


def test_a_changed_archive(archive: Path) -> None:
    args, good = args_of(archive), archive.read_bytes()
    assert fileio.get('train/1.jpg', backend_args=args) == b'one'
    times = archive.stat()
    at = good.index(b'one')
    _rewrite(archive, good[:at] + b'ONE' + good[at + 3 :])
    for _ in range(2):
        with pytest.raises(ArchiveError, match=r'train/1\.jpg'):
            fileio.get('train/1.jpg', backend_args=args)
    with pytest.raises(ArchiveChangedError, match='changed or replaced'):
        fileio.get('val/1.jpg', backend_args=args)
    _rewrite(archive, good[:1000])
    with pytest.raises(ArchiveChangedError, match=r'train/2\.jpg'):
        fileio.get('train/2.jpg', backend_args=args)
    _rewrite(archive, good)
    os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fileio.get('val/1.jpg', backend_args=args) == b'another one'


def test_a_replaced_archive(archive: Path, tmp_path: Path) -> None:
    """Whoever has it open reads on; who opens it anew gets what is there now."""
    args = args_of(archive)
    assert fileio.get('train/1.jpg', backend_args=args) == b'one'
    backend = get_file_backend(backend_args=args)
    assert backend.exists('train/1.jpg')  # has the index of before, and no descriptor yet
    other = pack(tmp_path / 'new' / archive.name, {'train/1.jpg': b'ONE', **{f'{i}.jpg': b'x' for i in range(500)}})
    for file in other.parent.iterdir():  # .idx and .lst, too
        os.replace(file, archive.parent / file.name)
    assert fileio.get('train/2.jpg', backend_args=args) == FILES['train/2.jpg']
    with pytest.raises(ArchiveChangedError):
        backend.get('train/1.jpg')
    assert get_file_backend(backend_args=args).get('train/1.jpg') == b'ONE'


def test_another_archive_of_the_same_size_and_time(archive: Path, tmp_path: Path) -> None:
    backend = RecordBackend(str(archive))
    assert backend.exists('train/1.jpg')
    times = archive.stat()
    other = pack(tmp_path / 'new' / archive.name, {**FILES, 'train/1.jpg': b'ONE'})
    for file in other.parent.iterdir():
        os.replace(file, archive.parent / file.name)
    os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert archive.stat().st_size == times.st_size
    with pytest.raises(ArchiveChangedError, match=r'train/1\.jpg'):
        backend.get('train/1.jpg')
    copy = tmp_path / 'copy'
    copy.write_bytes(archive.read_bytes())
    backend = RecordBackend(str(archive))
    assert backend.exists('train/1.jpg')
    times = archive.stat()
    os.replace(copy, archive)  # the same bytes, as on file systems without lasting inodes
    os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert backend.get('train/1.jpg') == b'ONE'


def test_the_index_is_built_once_and_is_superseded(archive: Path, cache: Path, tmp_path: Path) -> None:
    def index_files() -> List[str]:
        return sorted(path.name for path in cache.iterdir() if path.suffix == '.mmstore')

    RecordBackend(str(archive)).get('train/1.jpg')
    first = index_files()
    assert len(first) == 1
    written = os.stat(cache / first[0]).st_mtime_ns
    RecordBackend(str(archive)).get('train/2.jpg')
    assert index_files() == first and os.stat(cache / first[0]).st_mtime_ns == written
    pack(archive, {'9.jpg': b'nine'})
    assert RecordBackend(str(archive)).get('9.jpg') == b'nine'
    assert len(index_files()) == 1 and index_files() != first


def test_a_damaged_index_gives_errors(archive: Path, cache: Path) -> None:
    """Bytes of the mapped file that are not looked at when it is opened: an error, or what is right, and no crash."""
    assert RecordBackend(str(archive)).get('train/1.jpg') == b'one'
    (path,) = (path for path in cache.iterdir() if path.suffix == '.mmstore')
    good, seen = path.read_bytes(), set()
    for at in range(64, len(good), 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        for name in ('train/1.jpg', 'val/1.jpg'):
            try:
                assert RecordBackend(str(archive), verify_crc=False).get(name) == FILES[name]
                seen.add('right')
            except (EntryNotFoundError, AmbiguousEntryError, StoreError) as error:
                seen.add(type(error))
    assert {'right', StoreError} <= seen
