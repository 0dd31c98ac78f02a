"""A real job: torchrun, four ranks, four workers each. One build, equal samples, one copy in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.registry import init_default_scope

from .helpers import write
from .other_datasets import list_files, open_images_files, xml_files
from .shared_pairs import build, import_other
from .shared_ranks import digest

ROOT = Path(__file__).resolve().parents[2]
RANKS, SAMPLES = 4, 200
KINDS = ('xml', 'open images', 'list')


@pytest.fixture(scope='module')
def configs(tmp_path_factory):
    """Three datasets; that of the other package has 30 MB of samples."""
    folder = tmp_path_factory.mktemp('job')
    listed = list_files(folder / 'out')
    text = 'x' * 150_000
    records = [{'name': f'{i}', 'kind': 'xyz'[i % 3], 'value': i, 'text': text} for i in range(SAMPLES)]
    write(Path(listed['ann_file']), records)
    return {
        'xml': xml_files(folder / 'xml', 40),
        'open images': open_images_files(folder / 'open', 40),
        'list': {**listed, 'log': str(folder / 'log')},
    }


@pytest.fixture(scope='module')
def job(configs):
    """What each rank saw, the cache while the job ran being empty before; and the folder."""
    folder = Path(configs['list']['log']).parent
    (folder / 'configs.json').write_text(json.dumps(configs))
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={RANKS}']
    command += [str(Path(__file__).with_name('shared_ranks.py')), str(folder / 'configs.json'), str(folder / 'out')]
    own = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'MMSHARED_CACHE': str(folder / 'cache')}
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder, [json.loads((folder / 'out' / f'{rank}.json').read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize('kind', KINDS)
def test_all_ranks_and_workers_have_the_same_samples(kind, job, configs, monkeypatch):
    """Those of stock, and for the one that shuffles, those of the rank that loaded."""
    folder, ranks = job
    results = [rank[kind] for rank in ranks]
    assert all((r['digests'], r['attributes']) == (results[0]['digests'], results[0]['attributes']) for r in results)
    init_default_scope('mmdet')
    import_other(folder / 'out', monkeypatch)
    expected = [digest({**sample, 'sample_idx': 0} if kind == 'list' else sample) for sample in build(configs[kind])]
    order = sorted if kind == 'list' else list
    assert order(expected) == order(results[0]['digests'])


def test_one_process_loads(job):
    folder, ranks = job
    (loaded,) = map(int, (folder / 'log').read_text().split()[:1])
    assert len((folder / 'log').read_text().split()) <= 2, 'the job, and stock in the test above'
    assert loaded in {rank['list']['pid'] for rank in ranks}


@pytest.mark.parametrize('kind', KINDS)
def test_all_map_one_file_and_own_nothing_of_it(kind, job):
    _, ranks = job
    looks = [look for rank in ranks for look in rank[kind]['looks']]
    assert len({look['pid'] for look in looks}) == RANKS * (1 + 4)
    assert len({inode for look in looks for inode in look['inodes']}) == 1
    assert all(len(look['inodes']) == 1 for look in looks)
    assert all(look['mapped Anonymous'] == 0 < look['mapped Rss'] for look in looks)


def test_private_memory_does_not_grow_with_the_data(job):
    """Of whoever only takes over, and of workers while they read all of it (each batch looks anew)."""
    folder, ranks = job
    loaded = int((folder / 'log').read_text().split()[0])
    size = ranks[0]['list']['size']
    assert size > 25_000
    for rank in ranks:
        seen = rank['list']
        if seen['pid'] != loaded:
            assert seen['grown'] < size / 4
        for pid in {look['pid'] for look in seen['looks'][1:]}:
            sizes = [look['Private_Dirty'] for look in seen['looks'][1:] if look['pid'] == pid]
            assert len(sizes) == SAMPLES / 5 / 4 and sizes[-1] - sizes[0] < size / 4


def test_nothing_is_left(job):
    folder, _ = job
    assert [name for name in os.listdir(folder / 'cache') if not name.endswith('.note')] == []
