"""pack_images, read by other people's programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmshared.fileio.packing import pack_images
from mmshared.fileio.packing.folder import File
from mmshared.fileio.packing.targets import WRITERS, plan

from .packed import FILES, FORMATS, archive_files, by_others, by_us, listed, make, named


@pytest.fixture
def folder(tmp_path) -> Path:
    return make(tmp_path / 'data' / 'train2017', FILES)


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
    code = f"""
import resource
from mmshared.fileio.packing import pack_images
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 110))
try:
    pack_images({str(folder)!r}, {str(tmp_path / 'out.rec')!r}, shard_size=1)
except ValueError as error:
    print(error)
print(len(pack_images({str(folder)!r}, {str(tmp_path / 'out.tar')!r}, shard_size=1).archives))
"""
    # A process of its own: the one of the tests may have many files open.
    told = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert re.search('18 files would be written at once, .* 110 open .*larger --shard-size', told[-2])
    assert int(told[-1]) == len(FILES) == len(list(tmp_path.glob('out-*.tar')))


def test_cost_is_no_less_than_what_is_written(folder, tmp_path):
    for suffix in FORMATS:
        packed = pack_images(folder, tmp_path / f'out.{suffix}')
        writer = WRITERS[f'.{suffix}']
        estimate = writer.end + sum(writer.cost(file.name, file.size) for file in packed.contents.files)
        assert packed.size <= estimate + 100 and estimate < packed.size + 12_000
