"""The benchmark of archives runs as a user runs it, compares what it reads, and leaves nothing behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')
TINY = ('--images', 25, '--kilobytes', 3, '--workers', 1, 2, '--repeats', 2, '--seconds', 0.01)


@pytest.fixture
def start(repo, tmp_path):
    """Start the benchmark; its temporary files go to ``tmp_path/tmp``."""
    (tmp_path / 'tmp').mkdir()

    def run(*args):
        return subprocess.Popen(
            [sys.executable, repo.joinpath(*FOLDER, 'bench_archives.py'), *map(str, args)],
            text=True,
            env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


@pytest.fixture
def load(repo, monkeypatch):
    """Import a module beside the benchmark."""
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))
    return importlib.import_module


def test_everything_is_measured(start, load, tmp_path):
    few = ('--only', 'tar', 'tarfile-dict', *TINY, '--repeats', 1, '--entries', 70_000)
    with start('--part', 'reads', 'index', *few, '--json', tmp_path / 'all.json') as process:
        shown, said = process.communicate()
    assert process.returncode == 0, said
    assert not list((tmp_path / 'tmp').iterdir())
    results = json.loads((tmp_path / 'all.json').read_text())['results']
    assert set(results['reads']) == {'folder', 'tar', 'tarfile-dict'}
    for way in results['reads'].values():
        assert set(way['rates']) == {'3 kB, 1 workers', '3 kB, 2 workers'}
        assert all(len(runs) == 1 and min(runs) > 0 for runs in way['rates'].values())
    opened = results['index']
    assert set(opened) == {'tar', 'tarfile-dict'}
    assert opened['tar']['build'] > opened['tar']['index'] > 0
    assert opened['tar']['later_uss'] < opened['tarfile-dict']['later_uss']
    ways = load('archive_jobs').WAYS
    assert all(f'| {ways[way].title} |' in shown for way in results['reads'])
    assert shown.count('reached') == 2 + 2


@pytest.mark.parametrize('kind', ['zip', 'tar', 'rec', 'lmdb'])
def test_all_ways_read_the_same(load, tmp_path, kind):
    files, jobs = load('archive_files'), load('archive_jobs')
    if kind == 'lmdb':
        pytest.importorskip('lmdb', reason='an option of the benchmark')
    files.write_folder(tmp_path / 'folder', 5, 3)
    source = tmp_path / f'a.{kind}'
    files.WRITERS[kind](tmp_path / 'folder', source)
    files.read_anew(source)
    expected = [data for _, data in files.images(5, 3)]
    ways = [way for way in jobs.WAYS.values() if way.source == kind]
    assert ways
    for way in ways:
        read = way.open(str(source), str(tmp_path / 'cache'))
        assert [read(number) for number in range(5)] == expected, way.title


def test_nothing_is_left_when_it_is_stopped(start, tmp_path):
    with start('--only', 'tar', *TINY, '--repeats', 1000) as process:
        assert any('pass 2/' in line for line in iter(process.stderr.readline, ''))
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list((tmp_path / 'tmp').iterdir())


def test_a_difference_is_seen(load):
    measurements = load('archive_measurements')
    known = {'folder': {'60': ['a', 'a']}, 'tar': {'60': ['a', 'a']}}
    measurements._compare(known)
    for workers in (['a', 'b'], ['b', 'b']):
        with pytest.raises(measurements.WaysDifferError, match='tar'):
            measurements._compare({**known, 'tar': {'60': workers}})


@pytest.mark.parametrize('entries', [1, 70_000])
def test_others_read_the_archives_of_very_many(entries, load, tmp_path):
    """Also one that needs zip64."""
    files = load('archive_files')
    files.write_many_tar(tmp_path / 'a.tar', entries)
    files.write_many_zip(tmp_path / 'a.zip', entries)
    names = [files.name_of(number) for number in range(entries)]
    numbers = range(0, entries, max(1, entries // 10))
    with tarfile.open(tmp_path / 'a.tar') as tar, zipfile.ZipFile(tmp_path / 'a.zip') as archive:
        members = {member.name: member for member in tar.getmembers()}
        assert list(members) == archive.namelist() == names
        for number in numbers:
            expected = number.to_bytes(files.TINY_BYTES, 'little')
            assert archive.read(names[number]) == tar.extractfile(members[names[number]]).read() == expected
