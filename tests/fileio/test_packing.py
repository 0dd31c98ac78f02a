"""pack_images, read by other people's programs."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import stat
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from mmshared.annotations.cache.errors import CacheSpaceError
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.detection import format_of
from mmshared.fileio.packing import pack_images, packing
from mmshared.fileio.packing.folder import File
from mmshared.fileio.packing.source import FileChangedError
from mmshared.fileio.packing.targets import WRITERS, plan

from ..annotations.cache.cache_helpers import run_child
from .record_files import MAGIC_BYTES, read_images

LONG = 'long-' + 'x' * 150 + '.jpg'
FILES = {
    '000000000009.jpg': b'\xff\xd8nine' * 300,
    'b.jpg': b'',
    'a/z.jpg': b'z' * 512,
    'a-b/c.png': b'\x89PNG' + bytes(range(256)) * 5,
    'ä 鸟.jpg': MAGIC_BYTES * 7 + b'x' + MAGIC_BYTES,
    f'deep/{"d" * 90}/{LONG}': b'deep',
}
FORMATS = ('tar', 'zip', 'rec')


def make(folder: Path, files: Dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1_600_000_000, 1_600_000_001))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / 'data' / 'train2017', FILES)


def named(folder: Path, files: Dict[str, bytes] = FILES) -> Dict[str, bytes]:
    return {f'{folder.name}/{name}': data for name, data in files.items()}


def by_others(path: Path) -> Dict[str, bytes]:
    """What an archive holds, in its order, as read by programs that are not ours."""
    if path.suffix == '.tar':
        with tarfile.open(path, encoding='utf-8', errors='surrogateescape') as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}
    if path.suffix == '.zip':
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name) for name in archive.namelist()}
    return read_images(path)


def by_us(path: Path) -> Dict[str, bytes]:
    found = format_of(os.fspath(path))
    with open(path, 'rb') as file:
        return {
            entry.name: found.read(file.fileno(), entry, os.fspath(path))
            for entry in found.entries(os.fspath(path), lambda done, total: None)
        }


def listed(folder: Path) -> List[str]:
    return sorted(os.listdir(folder))


def archive_files(stem: str, suffix: str) -> List[str]:
    return [f'{stem}.idx', f'{stem}.lst', f'{stem}.rec'] if suffix == 'rec' else [f'{stem}.{suffix}']


@pytest.mark.parametrize('suffix', FORMATS)
def test_others_read_what_was_packed(folder, tmp_path, suffix):
    output = tmp_path / f'out.{suffix}'
    packed = pack_images(folder, output)
    found = by_others(output)
    assert found == named(folder) == by_us(output)
    assert list(found) == sorted(found, key=os.fsencode)
    assert packed.archives == [output] and len(packed.contents.files) == len(FILES) and not packed.removed
    assert packed.size == sum((tmp_path / name).stat().st_size for name in archive_files('out', suffix))
    assert listed(tmp_path) == sorted(['data', *archive_files('out', suffix)])


@pytest.mark.parametrize('program', ['tar', 'unzip'])
def test_programs_unpack_it(folder, tmp_path, program):
    if shutil.which(program) is None:
        pytest.skip(f'{program} is not installed')
    output, place = tmp_path / ('out.tar' if program == 'tar' else 'out.zip'), tmp_path / 'unpacked'
    pack_images(folder, output)
    place.mkdir()
    command = ['tar', '-xpf', output, '-C', place] if program == 'tar' else ['unzip', '-q', output, '-d', place]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, 'LC_ALL': 'C.UTF-8'})
    assert done.returncode == 0 and done.stderr == '', done.stderr
    assert {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob('*') if path.is_file()} == (
        named(folder)
    )
    if program == 'tar':
        shown = subprocess.run(['tar', '-tvf', output], capture_output=True, text=True, check=True).stdout
        assert {tuple(line.split()[:2]) for line in shown.splitlines()} == {('-rw-r--r--', '0/0')}
        assert {path.stat().st_mtime for path in place.rglob('*') if path.is_file()} == {1_600_000_001}


@pytest.mark.parametrize('suffix', FORMATS)
def test_the_same_files_give_the_same_bytes(folder, tmp_path, suffix, monkeypatch):
    found = []
    for number, zone in enumerate(('UTC', 'Asia/Tokyo', 'America/New_York')):
        monkeypatch.setenv('TZ', zone)
        place, copied = tmp_path / f'{number}', tmp_path / f'copy{number}' / folder.name
        place.mkdir()
        make(copied, dict(sorted(FILES.items(), reverse=number % 2 == 1)))
        os.chmod(copied / 'b.jpg', 0o600 + number)
        pack_images(copied, place / f'out.{suffix}')
        found.append([(name, (place / name).read_bytes()) for name in listed(place)])
    assert found[0] == found[1] == found[2] and len(found[0]) == len(archive_files('', suffix))


@pytest.mark.parametrize('mtime', [0, -5, 2**33, 1_600_000_000.75], ids=str)
def test_times_that_a_format_does_not_have(tmp_path, mtime):
    folder = make(tmp_path / 'd', {'a.jpg': b'a'})
    os.utime(folder / 'a.jpg', (mtime, mtime))
    for suffix in FORMATS:
        pack_images(folder, tmp_path / f'out.{suffix}')
        assert by_others(tmp_path / f'out.{suffix}') == {'d/a.jpg': b'a'} == by_us(tmp_path / f'out.{suffix}')


# ---- what goes in
def test_links_are_followed(folder, tmp_path):
    make(tmp_path / 'elsewhere', {'one.jpg': b'one', 'sub/two.jpg': b'two'})
    (folder / 'link.jpg').symlink_to(tmp_path / 'elsewhere' / 'one.jpg')
    (folder / 'linked').symlink_to(tmp_path / 'elsewhere')
    (folder / 'again').symlink_to(tmp_path / 'elsewhere')  # no loop
    more = {
        f'{name}/{inner}': data
        for name in ('linked', 'again')
        for inner, data in (('one.jpg', b'one'), ('sub/two.jpg', b'two'))
    }
    for suffix in FORMATS:
        pack_images(folder, tmp_path / f'out.{suffix}')
        assert by_others(tmp_path / f'out.{suffix}') == named(folder, {**FILES, **more, 'link.jpg': b'one'})


def test_loops_hidden_and_special_ones_are_left_out(folder, tmp_path):
    make(folder, {'.DS_Store': b'x', '.git/config': b'x', 'a/.hidden.jpg': b'x'})
    (folder / 'a' / 'up').symlink_to('..')
    (folder / 'self').symlink_to('.')
    os.mkfifo(folder / 'pipe')
    (folder / 'null').symlink_to('/dev/null')
    packed = pack_images(folder, tmp_path / 'out.tar')
    assert by_others(tmp_path / 'out.tar') == named(folder)
    assert [os.path.relpath(path, folder) for path in packed.contents.hidden] == ['.DS_Store', '.git', 'a/.hidden.jpg']
    assert [os.path.relpath(path, folder) for path in packed.contents.special] == ['null', 'pipe']
    assert [os.path.relpath(path, folder) for path in packed.contents.loops] == ['a/up', 'self']


def test_a_link_that_leads_nowhere(folder, tmp_path):
    (folder / 'x.jpg').symlink_to('missing.jpg')
    with pytest.raises(ValueError, match=r'x\.jpg: is a link that leads nowhere: No such file'):
        pack_images(folder, tmp_path / 'out.tar')
    (folder / 'x.jpg').unlink()
    (folder / 'x.jpg').symlink_to('x.jpg')
    with pytest.raises(ValueError, match=r'x\.jpg: is a link that leads nowhere: Too many'):
        pack_images(folder, tmp_path / 'out.tar')
    assert listed(tmp_path) == ['data']


@pytest.mark.parametrize('given', ['data/train2017/', './data/train2017', 'data/train2017/a/..', 'link', '.'])
def test_the_folders_own_name(folder, tmp_path, monkeypatch, given):
    (tmp_path / 'link').symlink_to(folder)
    monkeypatch.chdir(folder if given == '.' else tmp_path)
    pack_images(given, tmp_path / 'out.tar')
    name = 'link' if given == 'link' else 'train2017'
    assert by_others(tmp_path / 'out.tar') == {f'{name}/{file}': data for file, data in FILES.items()}


def test_nothing_to_pack(tmp_path):
    for files, message in (({}, 'no files below it$'), ({'.hidden': b''}, 'only hidden ones')):
        make(tmp_path / 'empty', {'.keep/x': b''} if files else {}).mkdir(exist_ok=True)
        with pytest.raises(ValueError, match=message):
            pack_images(tmp_path / 'empty', tmp_path / 'out.tar')
    with pytest.raises(NotADirectoryError):
        pack_images(make(tmp_path, {'file': b''}) / 'file', tmp_path / 'out.tar')
    with pytest.raises(FileNotFoundError):
        pack_images(tmp_path / 'missing', tmp_path / 'out.tar')
    assert listed(tmp_path) == ['empty', 'file']


def test_a_deep_folder(tmp_path):
    deep = '/'.join('d' for _ in range(1100))
    folder = tmp_path / 'top'
    folder.mkdir()
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(1100):
            os.mkdir('d')
            os.chdir('d')
        Path('x.jpg').write_bytes(b'deep')
        os.chdir(here)
        for suffix in FORMATS:
            pack_images(folder, tmp_path / f'out.{suffix}')
            assert by_others(tmp_path / f'out.{suffix}') == {f'top/{deep}/x.jpg': b'deep'}
    finally:
        os.chdir(here)
        subprocess.run(['rm', '-r', folder], check=True)  # too deep for Python's rmtree


ODD = {
    'not utf-8': ('\udce9.jpg', ('tar', 'rec'), 'zip', 'not UTF-8'),
    'backslash': ('a\\b.jpg', ('tar', 'rec'), 'zip', 'backslash'),
    'tab': ('a\tb.jpg', ('tar', 'zip'), 'rec', 'a tab'),
    'line end': ('a\nb.jpg', ('tar', 'zip'), 'rec', 'line end'),
    'carriage return': ('a\rb.jpg', ('tar', 'zip'), 'rec', 'line end'),
    'blank at its end': ('a.jpg ', ('tar', 'zip'), 'rec', 'outer blanks'),
}


@pytest.mark.parametrize('kind', ODD)
def test_names_that_a_format_cannot_hold(folder, tmp_path, kind):
    name, good, bad, message = ODD[kind]
    make(folder, {name: b'odd'})
    with pytest.raises(ValueError, match=message) as caught:
        pack_images(folder, tmp_path / f'out.{bad}')
    assert str(caught.value).startswith(f'{folder / name}: ') and listed(tmp_path) == ['data']
    for suffix in good:
        pack_images(folder, tmp_path / f'out.{suffix}')
        assert by_others(tmp_path / f'out.{suffix}')[f'train2017/{name}'] == b'odd'
        assert by_us(tmp_path / f'out.{suffix}')[f'train2017/{name}'] == b'odd'


def test_a_file_that_no_record_holds(folder, tmp_path):
    with open(folder / 'large.jpg', 'wb') as file:
        file.truncate(2**29 - 24)
    with pytest.raises(ValueError, match='large.jpg: has 536870888 bytes, and a record holds 536870887 at most'):
        pack_images(folder, tmp_path / 'out.rec')


# ---- files that others change
def meddle(monkeypatch, action: Callable[[], object]) -> None:
    """Have ``action()`` done when the folder was looked through, before its files are read."""
    write = packing._write

    def meddled(*arguments):
        action()
        return write(*arguments)

    monkeypatch.setattr(packing, '_write', meddled)


@pytest.mark.parametrize('suffix', FORMATS)
@pytest.mark.parametrize('change', ['removed', 'longer', 'shorter', 'a pipe', 'a folder'])
def test_files_that_change_meanwhile(folder, tmp_path, suffix, change, monkeypatch):
    victim = folder / 'a' / 'z.jpg'

    def act():
        if change == 'longer':
            victim.write_bytes(b'z' * 513)
        elif change == 'shorter':
            victim.write_bytes(b'z' * 511)
        else:
            victim.unlink()
        if change == 'a pipe':
            os.mkfifo(victim)
        elif change == 'a folder':
            victim.mkdir()

    meddle(monkeypatch, act)
    message = 'was removed while' if change == 'removed' else 'was changed while'
    with pytest.raises(FileChangedError, match=f'z.jpg: {message}'):
        pack_images(folder, tmp_path / f'out.{suffix}')
    assert listed(tmp_path) == ['data']


@pytest.mark.parametrize('suffix', FORMATS)
def test_a_file_that_is_written_while_it_is_read(tmp_path, suffix, monkeypatch):
    folder = make(tmp_path / 'd', {'large.jpg': bytes(32 << 20)})
    stop = threading.Event()

    def write():
        with open(folder / 'large.jpg', 'r+b') as file:
            while not stop.is_set():
                file.seek(0)
                file.write(os.urandom(8))
                file.flush()

    writer = threading.Thread(target=write)
    meddle(monkeypatch, writer.start)
    try:
        with pytest.raises(FileChangedError, match='was changed while'):
            pack_images(folder, tmp_path / f'out.{suffix}')
    finally:
        stop.set()
        writer.join()
    assert listed(tmp_path) == ['d']


@pytest.mark.parametrize('suffix', FORMATS)
def test_what_does_not_read_back_is_not_published(folder, tmp_path, suffix, monkeypatch):
    """A disk that loses a bit of the first file."""
    real = os.fsync

    def lossy(descriptor):
        real(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            at = os.pread(descriptor, 4000, 0).find(b'nine')
            if at >= 0:
                os.pwrite(descriptor, b'N', at)

    monkeypatch.setattr(os, 'fsync', lossy)
    with pytest.raises(ArchiveError, match=r'train2017/000000000009.jpg: .*The disk') as caught:
        pack_images(folder, tmp_path / f'out.{suffix}')
    assert caught.value.archive == os.fspath(tmp_path / f'out.{suffix}') and listed(tmp_path) == ['data']
    pack_images(folder, tmp_path / f'out.{suffix}', verify=False)  # who does not want to know
    assert tmp_path.joinpath(f'out.{suffix}').exists()


# ---- shards
@pytest.mark.parametrize('suffix', FORMATS)
def test_shards(tmp_path, suffix):
    files = {f'{i:03d}.jpg': bytes([i]) * (100 * i) for i in range(60)}
    files['030.jpg'] = bytes(60_000)  # larger than a shard
    folder = make(tmp_path / 'd', files)
    packed = pack_images(folder, tmp_path / f'out.{suffix}', shard_size=40_000)
    names = [path.name for path in packed.archives]
    assert names == [f'out-{i:05d}.{suffix}' for i in range(len(names))] and len(names) >= 5
    assert listed(tmp_path) == sorted(['d', *(file for name in names for file in archive_files(name[:-4], suffix))])
    found = [by_others(path) for path in packed.archives]
    assert [name for part in found for name in part] == sorted(named(folder, files))
    assert {name: data for part in found for name, data in part.items()} == named(folder, files)
    sizes = [
        sum((tmp_path / name).stat().st_size for name in archive_files(path.stem, suffix)) for path in packed.archives
    ]
    large = [size for size in sizes if size > 40_000]
    assert len(large) == 1 and [list(part) for part in found][sizes.index(large[0])] == ['d/030.jpg']
    assert packed.size == sum(sizes)


def test_numbers_of_shards_are_wide_enough():
    files = [File(f'd/{i:06d}', f'd/{i:06d}', 10) for i in range(100_001)]
    shards = plan(Path('/x/out.tar'), files, WRITERS['.tar'], 1)
    assert [shards[0].target.name, shards[-1].target.name] == ['out-000000.tar', 'out-100000.tar']
    assert [file for shard in shards for file in shard.files] == files


def test_more_shards_than_files_may_be_open(folder, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def action():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 110))
        with pytest.raises(ValueError, match='18 files would be written at once, .* 110 open .*larger --shard-size'):
            pack_images(folder, tmp_path / 'out.rec', shard_size=1)
        return len(pack_images(folder, tmp_path / 'out.tar', shard_size=1).archives)

    assert run_child(action) == len(FILES) == len(list(tmp_path.glob('out-*.tar')))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_cost_is_no_less_than_what_is_written(folder, tmp_path):
    for suffix in FORMATS:
        packed = pack_images(folder, tmp_path / f'out.{suffix}')
        writer = WRITERS[f'.{suffix}']
        estimate = writer.end + sum(writer.cost(file.name, file.size) for file in packed.contents.files)
        assert packed.size <= estimate + 100 and estimate < packed.size + 12_000


# ---- what is there already
@pytest.mark.parametrize('suffix', FORMATS)
def test_nothing_is_replaced_unless_it_is_forced(folder, tmp_path, suffix):
    for name in archive_files('out', suffix):
        (tmp_path / name).write_text('precious')
        with pytest.raises(FileExistsError, match=f'{name}: is there already.*--force'):
            pack_images(folder, tmp_path / f'out.{suffix}')
        assert (tmp_path / name).read_text() == 'precious' and listed(tmp_path) == ['data', name]
        pack_images(folder, tmp_path / f'out.{suffix}', force=True)
        assert by_others(tmp_path / f'out.{suffix}') == named(folder)
        for written in archive_files('out', suffix):
            (tmp_path / written).unlink()


@pytest.mark.parametrize('kind', ['folder', 'link', 'broken link', 'pipe'])
def test_only_regular_files_are_replaced(folder, tmp_path, kind):
    target = tmp_path / 'out.lst'
    if kind == 'folder':
        target.mkdir()
    elif kind == 'pipe':
        os.mkfifo(target)
    else:
        target.symlink_to(folder / 'b.jpg' if kind == 'link' else 'nowhere')
    with pytest.raises(FileExistsError, match=r'out\.lst: is not a regular file'):
        pack_images(folder, tmp_path / 'out.rec', force=True)
    assert listed(tmp_path) == ['data', 'out.lst'] and (folder / 'b.jpg').read_bytes() == b''


@pytest.mark.parametrize('suffix', FORMATS)
def test_shards_of_an_earlier_run(folder, tmp_path, suffix):
    """They would be found by the same pattern."""
    output = tmp_path / f'out.{suffix}'
    pack_images(folder, output, shard_size=1)
    (tmp_path / 'out-1.txt').write_text('other')
    (tmp_path / 'outside-00000.tar').write_text('other')
    before = {name: (tmp_path / name).read_bytes() for name in listed(tmp_path) if name != 'data'}
    (folder / 'b.jpg').write_bytes(b'new')
    for size in (10**6, 1):
        with pytest.raises(FileExistsError, match='--force'):
            pack_images(folder, output, shard_size=size)
    assert {name: (tmp_path / name).read_bytes() for name in listed(tmp_path) if name != 'data'} == before
    packed = pack_images(folder, output, shard_size=10**6, force=True)
    removed = {name for i in range(1, len(FILES)) for name in archive_files(f'out-{i:05d}', suffix)}
    assert {path.name for path in packed.removed} == removed
    assert listed(tmp_path) == sorted(['data', 'out-1.txt', 'outside-00000.tar', *archive_files('out-00000', suffix)])
    assert by_others(packed.archives[0])['train2017/b.jpg'] == b'new'


def test_something_else_that_the_pattern_would_find(folder, tmp_path):
    (tmp_path / 'out-val.tar').write_text('other')
    for force in (False, True):
        with pytest.raises(
            FileExistsError, match=r'out-val\.tar: is no shard of out\.tar, but .*out-\*\.tar would find'
        ):
            pack_images(folder, tmp_path / 'out.tar', shard_size=1, force=force)
    pack_images(folder, tmp_path / 'out.tar')  # not in the way of a single archive
    (tmp_path / 'out-val.tar').unlink()
    (tmp_path / 'out-00099.tar').mkdir()
    with pytest.raises(FileExistsError, match='not a regular file'):
        pack_images(folder, tmp_path / 'out.tar', shard_size=1, force=True)


@pytest.mark.parametrize('name', ['out', 'out.tgz', 'out.TAR', '.tar', 'out.tar.gz'])
def test_names_that_say_no_format(folder, tmp_path, name):
    with pytest.raises(ValueError, match='has to end in .tar, .zip, .rec'):
        pack_images(folder, tmp_path / name)


def test_places_where_nothing_can_go(folder, tmp_path):
    for place in (folder, folder / 'a'):
        with pytest.raises(ValueError, match='below the folder that is packed'):
            pack_images(folder, place / 'out.tar')
    (tmp_path / 'link').symlink_to(folder / 'a')
    with pytest.raises(ValueError, match='below the folder that is packed'):
        pack_images(folder, tmp_path / 'link' / 'out.tar')
    with pytest.raises(FileNotFoundError, match='missing: is no folder'):
        pack_images(folder, tmp_path / 'missing' / 'out.tar')


# ---- failing
@pytest.mark.parametrize('suffix', FORMATS)
def test_a_limit_on_file_size(tmp_path, suffix):
    folder = make(tmp_path / 'd', {f'{i}.jpg': bytes(30_000) for i in range(4)})

    def action():
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        pack_images(folder, tmp_path / f'out.{suffix}')

    result = run_child(action)
    assert result['error'] == 'CacheSpaceError' and 'File too large' in result['text']
    assert re.search(rf'for the archive of {folder}\. It needs about 1[23]\d kB', result['text'])
    assert listed(tmp_path) == ['d']


@pytest.mark.parametrize('failing', range(1, 7))
def test_publishing_fails_in_the_middle(tmp_path, failing, monkeypatch):
    """All or nothing: what already had its name loses it."""
    folder = make(tmp_path / 'd', {'a.jpg': b'a', 'b.jpg': b'b'})
    real, calls = os.link, []

    def link(*arguments, **options):
        calls.append(arguments)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, 'No space left on device')
        return real(*arguments, **options)

    monkeypatch.setattr(os, 'link', link)
    with pytest.raises(CacheSpaceError):
        pack_images(folder, tmp_path / 'out.rec', shard_size=1)
    assert listed(tmp_path) == ['d'] and len(calls) == failing


def test_the_archives_name_appears_after_its_index(tmp_path, monkeypatch):
    folder = make(tmp_path / 'd', {'a.jpg': b'a'})
    real, seen = os.link, []

    def link(*arguments, **options):
        real(*arguments, **options)
        seen.append(listed(tmp_path))

    monkeypatch.setattr(os, 'link', link)
    pack_images(folder, tmp_path / 'out.rec')
    assert seen == [['d', 'out.lst'], ['d', 'out.idx', 'out.lst'], ['d', 'out.idx', 'out.lst', 'out.rec']]


@pytest.mark.parametrize('suffix', FORMATS)
def test_where_files_cannot_be_nameless(folder, tmp_path, suffix, monkeypatch):
    """As on NFS."""
    from mmshared.annotations.cache import publish

    monkeypatch.setattr(publish, '_open_nameless', lambda folder: None)
    pack_images(folder, tmp_path / f'out.{suffix}')
    assert by_others(tmp_path / f'out.{suffix}') == named(folder)
    assert listed(tmp_path) == sorted(['data', *archive_files('out', suffix)])
    meddle(monkeypatch, (folder / 'b.jpg').unlink)
    with pytest.raises(FileChangedError):
        pack_images(folder, tmp_path / f'new.{suffix}')
    assert listed(tmp_path) == sorted(['data', *archive_files('out', suffix)])
