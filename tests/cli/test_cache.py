"""``mmshared cache``: what is listed, what goes, and what must not."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mmshared.annotations import open_store
from mmshared.annotations.cache import DataCache, hold, location
from mmshared.annotations.container import ContainerWriter
from mmshared.cli.cache import parse_size

from ..annotations.cache.cache_helpers import needs_root
from ..annotations.test_summary import clean
from ..datasets.helpers import write
from .conftest import ROOT, on_disk, process

DAY = 86400
HOLD = """
import sys, types
package = types.ModuleType('mmshared')
package.__path__ = [sys.argv[1] + '/mmshared']
sys.modules['mmshared'] = package
from mmshared.annotations import open_store
from mmshared.annotations.cache import DataCache, hold, location
from mmshared.annotations.container import ContainerWriter
store = open_store(sys.argv[2])
print('held', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def stores(tmp_path, cache):
    """Three stores, last used 30, 20 and 10 days ago: name of the annotation file -> path."""
    paths = {}
    for days, name in ((30, 'old'), (20, 'middle'), (10, 'new')):
        paths[name] = Path(open_store(write(tmp_path / f'{name}.json', clean())).path)
        moment = time.time() - days * DAY
        os.utime(paths[name], (moment, moment - DAY))
    return paths


@pytest.fixture
def holder(tmp_path):
    """A function that has another process use the store of an annotation file, until the test ends."""
    running = []

    def hold(file):
        command = [sys.executable, '-c', HOLD, os.fspath(ROOT), os.fspath(file)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(child)
        assert child.stdout.readline() == b'held\n'
        return child

    yield hold
    for child in running:
        child.communicate(b'', timeout=60)


def test_an_empty_cache(cli, cache):
    status, out, err = cli('cache', 'list')
    assert (status, out, err) == (0, f'no stores in {cache}\n', '')
    assert json.loads(cli('cache', 'list', '--json').out) == {'folders': [str(cache)], 'stores': []}
    for action in ('prune', 'clear'):
        status, out, _ = cli('cache', action)
        assert status == 0 and 'removed: 0 stores, 0 bytes' in out
    assert not cache.exists() or os.listdir(cache) == []


def test_list(cli, stores, cache, tmp_path):
    status, out, err = cli('cache', 'list')
    assert status == 0 and err == ''
    lines = out.splitlines()
    assert lines[0] == f'{cache}:' and lines[1].split() == [
        'SIZE',
        'LAST',
        'USED',
        'BUILT',
        'STATE',
        'STORE',
        'MADE',
        'FROM',
    ]
    for line, (name, days) in zip(lines[2:5], (('new', 10), ('middle', 20), ('old', 30))):
        assert stores[name].name in line and f'{tmp_path}/{name}.json' in line and ' free ' in line
        assert f'{days} days ago' in line and f'{days + 1} days ago' in line
    assert lines[5].startswith('3 stores, ')
    listed = json.loads(cli('cache', 'list', '--json').out)['stores']
    assert {Path(store['path']) for store in listed} == set(stores.values())
    for store in listed:
        assert store['source'].endswith('.json') and not store['in_use']
        assert store['size'] == os.path.getsize(store['path'])
    assert cli('cache', 'list').out == out, 'listing is no use'


def test_another_folder(cli, stores, tmp_path, ann):
    cli('pack', ann, '--cache-dir', tmp_path / 'other')
    assert 'ann.json' in cli('cache', 'list', '--cache-dir', tmp_path / 'other').out
    assert 'old.json' not in cli('cache', 'list', '--cache-dir', tmp_path / 'other').out
    cli('cache', 'clear', '--cache-dir', tmp_path / 'other')
    assert os.listdir(tmp_path / 'other') == [] and all(path.exists() for path in stores.values())


@pytest.mark.parametrize('dry_run', [False, True])
@pytest.mark.parametrize(
    'options, gone',
    [
        ([], []),
        (['--unused-days', '25'], ['old']),
        (['--unused-days', '10'], ['old', 'middle', 'new']),
        (['--unused-days', '100'], []),
        (['--max-size', '1T'], []),
        (['--max-size', '0'], ['old', 'middle', 'new']),
        (['--max-size', 'two'], ['old']),
        (['--max-size', 'two', '--unused-days', '15'], ['old', 'middle']),
    ],
)
def test_prune(cli, stores, options, gone, dry_run):
    two = str(2 * os.path.getsize(stores['old']) + 300)
    options = [two if option == 'two' else option for option in options] + ['--dry-run'] * dry_run
    status, out, err = cli('cache', 'prune', *options)
    assert status == 0 and err == ''
    left = [name for name, path in stores.items() if path.exists()]
    assert left == [name for name in stores if dry_run or name not in gone]
    for name in stores:
        assert (stores[name].name in out) is (name in gone)
    count = f'{len(gone)} store{"s" if len(gone) != 1 else ""}, '
    assert f'{"would be removed" if dry_run else "removed"}: {count}' in out


@pytest.mark.parametrize('as_json', [False, True])
def test_never_one_in_use(cli, stores, holder, tmp_path, as_json):
    child = holder(tmp_path / 'middle.json')
    assert cli('cache', 'list').out.count(' in use ') == 1
    for options in (['clear', '--dry-run'], ['prune', '--unused-days', '0'], ['clear']):
        out = cli('cache', *options, *(['--json'] * as_json)).out
        assert stores['middle'].exists()
        if as_json:
            report = json.loads(out)
            assert [Path(store['path']) for store in report['left'] if store['in_use']] == [stores['middle']]
            assert stores['middle'] not in [Path(store['path']) for store in report['removed']]
        else:
            assert f'in use, stays: {stores["middle"]} ({tmp_path}/middle.json)' in out
    assert [name for name, path in stores.items() if path.exists()] == ['middle']
    child.communicate(b'', timeout=60)
    assert 'removed: 1 store, ' in cli('cache', 'clear').out if not as_json else cli('cache', 'clear', '--json').out
    assert not stores['middle'].exists()


def test_what_this_version_cannot_read_is_listed_too(cli, stores, cache):
    stores['old'].write_bytes(b'torn')
    (cache / 'strange.mmstore').write_bytes(b'')
    (cache / 'notes.txt').write_text('not ours')
    out = cli('cache', 'list').out
    assert stores['old'].name in out and 'strange.mmstore' in out and 'notes.txt' not in out
    assert cli('cache', 'clear').status == 0 and on_disk(cache) == ['notes.txt']


def test_data_of_datasets(cli, cache, stores):
    """What was loaded once for all: kept for later jobs, or (killed ones leave it) of a job."""

    def write(out):
        writer = ContainerWriter(out)
        writer.add('data', np.arange(1000))
        writer.close({'source': 'XMLDataset of list.txt'})

    data, name = DataCache(cache), f'XMLDataset-{"0" * 32}'
    held = data.kept(name, 'label', write, hold)
    of_job = data.of_job('key', 'label', write, hold)
    out = cli('cache', 'list').out
    assert out.count('XMLDataset of list.txt') == out.count(' in use ') == 2 and '5 stores' in out
    assert out.count(held.path.name) == 1 and held.path.name == f'{name}.mmdata'
    assert 'removed: 3 stores' in cli('cache', 'clear').out and held.path.exists() and of_job.path.exists()
    held.close(), of_job.close()
    assert 'left: 1 store' in cli('cache', 'prune', '--unused-days', '100').out
    assert held.path.exists() and not of_job.path.exists()
    assert 'removed: 1 store' in cli('cache', 'clear').out and not held.path.exists()


@needs_root
def test_somebody_elses_folder(cli, stores, cache):
    for path in (cache, *stores.values()):
        os.chown(path, 12345, 12345)
    status, out, _ = cli('cache', 'clear')
    assert status == 0 and 'removed: 0 stores' in out and 'left: 3 stores' in out
    assert f'stays as it is: {cache} (it belongs to user id 12345, not to 0)' in out
    assert all(path.exists() for path in stores.values())


@pytest.fixture
def stand_in(tmp_path, monkeypatch) -> Path:
    """The folder on a local disk, in place of this machine's."""
    folder = tmp_path / 'local'
    monkeypatch.setattr(location, 'local_folders', lambda: [location.Folder(folder, private=True)])
    return folder


def test_stores_that_went_elsewhere(cli, ann, cache, stand_in):
    cache.mkdir()
    cache.chmod(0o777)  # others may write it, so nothing is put there
    assert cli('pack', ann).status == 0 and on_disk(cache) == []
    (name,) = on_disk(stand_in)
    assert name in cli('cache', 'list').out
    out = cli('cache', 'clear').out
    assert f'stays as it is: {stand_in}, where stores go instead' in out and 'removed: 0 stores' in out
    assert on_disk(stand_in) == [name]
    assert 'removed: 1 store,' in cli('cache', 'clear', '--cache-dir', stand_in).out and on_disk(stand_in) == []


def test_prune_says_what_it_waits_for(cli, stores):
    assert 'without --unused-days or --max-size' in cli('cache', 'prune').out
    assert 'without' not in cli('cache', 'prune', '--unused-days', '1', '--dry-run').out
    assert json.loads(cli('cache', 'prune', '--json').out)['removed'] == []
    assert all(path.exists() for path in stores.values())


def test_a_folder_that_is_none(cli, tmp_path, stand_in):
    (tmp_path / 'file').write_text('x')
    for folder in (tmp_path / 'file', tmp_path / 'missing', '/proc/nowhere'):
        for action in ('list', 'prune', 'clear'):
            status, out, err = cli('cache', action, '--cache-dir', folder)
            assert status == 0 and err == '' and ('no stores' in out or 'removed: 0' in out)


def test_two_at_a_time(stores):
    running = [process('cache', 'clear') for _ in range(3)]
    outcomes = [(*child.communicate(timeout=60), child.returncode) for child in running]
    assert all(status == 0 and err == b'' for _, err, status in outcomes), outcomes
    removed = [int(out.rpartition(b'removed: ')[2].split()[0]) for out, _, _ in outcomes]
    assert sum(removed) == 3 and not any(path.exists() for path in stores.values())


@pytest.mark.parametrize(
    'text, size',
    [
        ('0', 0),
        ('1000', 1000),
        ('10G', 10**10),
        ('10 GB', 10**10),
        ('1.5k', 1500),
        ('.5M', 500_000),
        ('1KiB', 1024),
        ('2gib', 2 << 30),
        (' 3 T ', 3 * 10**12),
        ('7b', 7),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize('text', ['', 'G', '-1', '1e3', '10X', '1,5G', 'ten', '1G2', 'nan', 'inf', '٣x', '\x1b[31m'])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match='is no size'):
        parse_size(text)


@pytest.mark.parametrize('days', ['-1', 'nan', 'inf', 'x', '', '1e400'])
def test_what_is_no_number_of_days(cli, days):
    status, _, err = cli('cache', 'prune', f'--unused-days={days}')
    assert status == 2 and 'is no number of days' in err
