"""``mmshared pack-images``, as a real command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from ..annotations.cache.cache_helpers import fill, mount, needs_root
from ..fileio.record_files import read_images
from .conftest import ROOT, on_a_terminal, on_disk, process

FORMATS = ('tar', 'zip', 'rec')
FILES = {'a/1.jpg': b'one' * 1000, '2.jpg': b'two' * 5000, 'ü.jpg': b'u' * 2000}


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / 'data' / 'train2017', FILES)


@pytest.fixture(scope='module')
def large(tmp_path_factory):
    """A folder whose packing takes a while."""
    folder = tmp_path_factory.mktemp('large') / 'val'
    return make(folder, {f'{i // 1000}/{i}.jpg': bytes(4000 + i) for i in range(5000)})


def make(folder: Path, files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def contents(path: Path) -> dict:
    if path.suffix == '.tar':
        with tarfile.open(path) as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}
    if path.suffix == '.zip':
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    return read_images(path)


def named(files=FILES) -> dict:
    return {f'train2017/{name}': data for name, data in files.items()}


@pytest.mark.parametrize('suffix', FORMATS)
def test_one_archive(folder, tmp_path, suffix):
    target = tmp_path / f'out.{suffix}'
    running = process('pack-images', folder, '-o', target, env={'LC_ALL': 'C.UTF-8'})
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and err == b''
    first, second, third = out.decode().splitlines()
    assert re.fullmatch(
        rf'{folder}: 3 files, 20 kB, packed and verified in [\d.]+ s, \d\d kB: {re.escape(str(target))}', first
    )
    assert second.startswith('in the config')
    assert eval(third.strip().replace('backend_args=', '')) == {'backend': 'record', 'archive': str(target)}
    assert contents(target) == named()


def test_the_listing_of_gnu_tar(folder, tmp_path, cli):
    if 'GNU tar' not in subprocess.run(['tar', '--version'], capture_output=True, text=True).stdout:
        pytest.skip('tar is not GNU tar')
    assert cli('pack-images', folder, '-o', tmp_path / 'out.tar').status == 0
    shown = subprocess.run(['tar', 'tvf', tmp_path / 'out.tar'], capture_output=True, text=True, check=True)
    assert shown.stderr == '' and [line.split()[:3] for line in shown.stdout.splitlines()] == [
        ['-rw-r--r--', '0/0', str(size)] for size in (15000, 3000, 2000)
    ]


def test_unzip_finds_it_whole(folder, tmp_path, cli):
    if shutil.which('unzip') is None:
        pytest.skip('unzip is not installed')
    assert cli('pack-images', folder, '-o', tmp_path / 'out.zip').status == 0
    done = subprocess.run(['unzip', '-t', tmp_path / 'out.zip'], capture_output=True, text=True)
    assert done.returncode == 0 and 'No errors detected' in done.stdout
    assert all(info.compress_type == zipfile.ZIP_STORED for info in zipfile.ZipFile(tmp_path / 'out.zip').infolist())


@pytest.mark.parametrize('suffix', FORMATS)
def test_shards_and_force(folder, tmp_path, cli, fails, suffix):
    target = tmp_path / f'out.{suffix}'
    status, out, err = cli('pack-images', folder, '-o', target, '--shard-size', '4kB')
    assert status == 0 and err == '' and f'3 shards, {tmp_path}/out-*.{suffix}' in out
    assert f"archive='{tmp_path}/out-*.{suffix}'" in out
    shards = sorted(tmp_path.glob(f'out-*.{suffix}'))
    assert [path.stem for path in shards] == ['out-00000', 'out-00001', 'out-00002']
    assert [contents(path) for path in shards] == [
        {f'train2017/{name}': FILES[name]} for name in sorted(FILES, key=os.fsencode)
    ]
    assert 'is there already' in fails('pack-images', folder, '-o', target, '--shard-size', '1GB')
    status, out, _ = cli('pack-images', folder, '-o', target, '--shard-size', '1GB', '--force', '--no-verify')
    assert status == 0 and ', packed in ' in out and f'1 shards, {tmp_path}' in out
    assert f'removed, of an earlier run: {6 if suffix == "rec" else 2} (out-00001.' in out
    assert contents(target.with_name(f'out-00000.{suffix}')) == named()
    assert len(on_disk(tmp_path)) == (4 if suffix == 'rec' else 2)


def test_what_is_left_out_is_said(folder, tmp_path, cli):
    make(folder, {'.DS_Store': b'', **{f'.{i}': b'' for i in range(4)}})
    os.mkfifo(folder / 'pipe')
    (folder / 'a' / 'loop').symlink_to(folder)
    out = cli('pack-images', folder, '-o', tmp_path / 'out.tar').out
    assert 'left out, hidden: 5 (.0, .1, .2, ...)' in out
    assert 'left out, neither a file nor a folder: 1 (pipe)' in out
    assert 'left out, links to a folder that they are in: 1 (a/loop)' in out
    assert contents(tmp_path / 'out.tar') == named()


def test_names_that_steer_the_terminal(tmp_path, cli, fails):
    folder = make(tmp_path / 'a\x1b[31m\n', {'.\x1b[2J': b'', 'x.jpg': b'', 'y\x1b\t.jpg': b''})
    status, out, err = cli('pack-images', folder, '-o', tmp_path / 'out\x1b.tar')
    assert status == 0 and all(c == '\n' or c.isprintable() for c in out + err)
    assert 'a tab' in fails('pack-images', folder, '-o', tmp_path / 'out.rec')


@pytest.mark.parametrize(
    'arguments',
    [
        ['x'],
        ['-o', 'x.tar'],
        ['x', '-o', 'x.tar', '--shard-size', '0'],
        ['x', '-o', 'x.tar', '--shard-size', '-5'],
        ['x', '-o', 'x.tar', '--shard-size', 'big'],
        ['x', '-o', 'x.tar', '--shard-size', '0.1'],
        ['x', '-o', 'x.tar', '--shard-size', '5'],
    ],
    ids=' '.join,
)
def test_wrong_arguments(cli, arguments):
    status, out, err = cli('pack-images', *arguments)
    assert status == 2 and out == '' and err.startswith('usage: mmshared')


def test_errors(folder, tmp_path, fails):
    (tmp_path / 'empty').mkdir()
    assert 'no files below it' in fails('pack-images', tmp_path / 'empty', '-o', tmp_path / 'out.tar')
    assert f'{tmp_path}/missing: No such file' in fails('pack-images', tmp_path / 'missing', '-o', tmp_path / 'out.tar')
    assert 'has to end in .tar, .zip, .rec' in fails('pack-images', folder, '-o', tmp_path / 'out')
    assert 'below the folder that is packed' in fails('pack-images', folder, '-o', folder / 'out.tar')
    assert 'Make it first' in fails('pack-images', folder, '-o', tmp_path / 'new' / 'out.tar')
    assert on_disk(tmp_path) == ['data', 'empty']


def test_a_name_that_is_not_utf8(tmp_path, cli, fails):
    folder = make(tmp_path / 'd', {'x.jpg': b''})
    (folder / os.fsdecode(b'\xe9.jpg')).write_bytes(b'odd')
    assert 'd/\\udce9.jpg: has a name that is not UTF-8' in fails('pack-images', folder, '-o', tmp_path / 'out.zip')
    for suffix in ('tar', 'rec'):
        assert cli('pack-images', folder, '-o', tmp_path / f'out.{suffix}').status == 0
        assert contents(tmp_path / f'out.{suffix}')['d/\udce9.jpg'] == b'odd'


# ---- what must leave nothing
@pytest.mark.parametrize('suffix, shards', [('tar', []), ('zip', []), ('rec', ['--shard-size', '2MB'])], ids=FORMATS)
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_interrupted(large, tmp_path, suffix, shards, number):
    running = process('pack-images', large, '-o', tmp_path / f'out.{suffix}', *shards)
    written = until_it_writes(running.pid, tmp_path)
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert written and out == b'' and b'Traceback' not in err and b'Exception' not in err
    assert on_disk(tmp_path) == []
    if number == signal.SIGINT:
        assert running.returncode == 130 and err.endswith(b'mmshared: error: interrupted\n')
    else:
        assert running.returncode == -number


def until_it_writes(process_id: int, folder: Path) -> bool:
    """Wait until a process has written to a nameless file in ``folder``; whether it did."""
    files = Path('/proc', str(process_id), 'fd')
    for _ in range(2000):
        time.sleep(0.005)
        try:
            for link in files.iterdir():
                if os.readlink(link).startswith(f'{folder}/') and os.stat(link).st_size > 500_000:
                    return True
        except OSError:  # closed meanwhile
            continue
    return False


def test_a_file_that_vanishes(large, tmp_path):
    """The last one, once the first ones have been written."""
    victim = large / '4' / '4999.jpg'
    running = process('pack-images', large, '-o', tmp_path / 'out.zip')
    assert until_it_writes(running.pid, tmp_path)
    victim.unlink()
    try:
        _, err = running.communicate(timeout=60)
    finally:
        victim.write_bytes(bytes(8999))
    assert running.returncode == 1 and on_disk(tmp_path) == []
    assert err.decode() == f'mmshared: error: {victim}: was removed while its folder was packed\n'


@pytest.fixture
def disk(tmp_path):
    """Makes small file systems at one place."""
    place = tmp_path / 'disk'

    def make_one(options: str) -> Path:
        subprocess.run(['umount', os.fspath(place)], capture_output=True)
        mount(place, options)
        return place

    yield make_one
    subprocess.run(['umount', '-l', os.fspath(place)], capture_output=True)


@needs_root
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='mounts of Linux')
@pytest.mark.parametrize('suffix', FORMATS)
def test_a_full_disk(tmp_path, disk, cli, fails, suffix, monkeypatch):
    """That there is too little space is seen before, or where it shrinks meanwhile (here: is not looked at), when."""
    folder = make(tmp_path / 'train2017', {f'{i}.jpg': bytes([i]) * 5000 for i in range(20)})
    outcomes = []
    for looked in (True, False):
        for pages in range(0, 48, 4):
            place = disk('size=240k')
            fill(place, pages)
            if not looked:
                monkeypatch.setattr('mmshared.fileio.packing.packing._check_space', lambda *_: None)
            arguments = ['pack-images', folder, '-o', place / f'out.{suffix}']
            if cli(*arguments).status == 0:
                assert len(contents(place / f'out.{suffix}')) == 20
                outcomes.append((looked, True))
            else:
                outcomes.append((looked, False))
                assert on_disk(place) == ['filler'], pages
                message = fails(*arguments)
                assert f'No space in {place}' in message and re.search(r'It needs about 1\d\d kB', message)
    for looked in (True, False):
        ends = [good for which, good in outcomes if which == looked]
        assert ends == sorted(ends) and len(set(ends)) == 2, outcomes  # from some level on, it works


# ---- how it behaves
def test_it_does_not_import_the_stack(folder, tmp_path):
    if sys.version_info < (3, 10):
        pytest.skip('Python 3.9 does not tell which module it was started with')
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-m', 'mmshared', 'pack-images', folder, '-o', tmp_path / 'out.zip'],
        env={**os.environ, 'PYTHONPATH': os.fspath(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    imported = {line.rpartition('|')[2].strip().partition('.')[0] for line in done.stderr.splitlines()}
    assert 'zipfile' in imported and not imported & {'torch', 'mmengine', 'mmcv', 'mmdet', 'cv2', 'pycocotools'}


def test_progress(tmp_path, monkeypatch):
    folder = tmp_path / 'd'
    folder.mkdir()
    with open(folder / 'large.bin', 'wb') as file:
        file.truncate(150_000_000)
    out, status = on_a_terminal('pack-images', folder, '-o', tmp_path / 'out.tar', env={'TERM': 'xterm'})
    assert status == 0 and 'out.tar [' in out and 'of 300 MB' in out and 'packed and verified' in out
    assert re.search(r'\[#*-*\] \d+ % ', out)


def test_help(cli):
    status, out, _ = cli('pack-images', '--help')
    assert status == 0 and out.startswith('usage: mmshared pack-images') and '--shard-size SIZE' in out
