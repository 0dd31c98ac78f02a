"""Copies, pickles and the three ways a worker process gets its dataset."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from .helpers import CLASSES, content, shared, stock, write
from .oracle import compare_datasets, difference

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def large(tmp_path_factory):
    """A file whose samples alone would not fit into 64 KB."""
    return write(tmp_path_factory.mktemp('large') / 'annotations.json', content(images=3000, annotations=9000))


def collate(batch):
    return batch


COPIES = {
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda d: pickle.loads(pickle.dumps(d)),
    'pickle twice': lambda d: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(copy.deepcopy(d))))),
    'subset of all': lambda d: d.get_subset(range(len(d))),
}


@pytest.mark.parametrize('how', COPIES)
@pytest.mark.parametrize(
    'more', [{}, {'serialize_data': False}, {'indices': [5, 2, 2]}, {'return_classes': True}], ids=str
)
def test_copies_are_equal_and_independent(how, more, tmp_path):
    file = write(tmp_path / 'annotations.json', content())
    a, b = (f(file, filter_cfg={'filter_empty_gt': True}, **more) for f in (stock, shared))
    b.get_cat_ids(0)
    other = COPIES[how](b)
    assert compare_datasets(a, other) is None
    other.get_subset_(2)
    if how != 'copy':
        other.cat_ids.clear()
        other._metainfo['classes'] = ()
    assert len(other) == 2 and compare_datasets(a, b) is None


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('filter_cfg', [None, {'filter_empty_gt': True, 'min_size': 32}])
def test_a_pickle_is_small_whatever_the_file(large, serialize, filter_cfg):
    dataset = shared(large, serialize_data=serialize, filter_cfg=filter_cfg)
    assert Path(large).stat().st_size > 2**20
    for d in (
        dataset,
        dataset.get_subset(-1900),
        copy.deepcopy(dataset),
        dataset.get_subset(range(1000)).get_subset(900),
    ):
        d.cat_img_map, len(d.data_list), d.get_data_info(3)
        if serialize:
            d.data_address  # noqa: B018
        assert len(pickle.dumps(d)) < 2**16
        assert len(pickle.dumps(copy.deepcopy(d))) < 2**16


@pytest.mark.parametrize('context', ['fork', 'spawn', 'forkserver'])
@pytest.mark.parametrize('lazy', [False, True])
def test_workers(context, lazy, large):
    a, b = stock(large), shared(large, lazy_init=lazy)
    a, b = a.get_subset(range(0, 3000, 100)), b if lazy else b.get_subset(range(0, 3000, 100))
    expected = [a.get_data_info(i) for i in range(30)]
    loader = DataLoader(
        torch.utils.data.Subset(b, range(0, 3000, 100)) if lazy else b,
        batch_size=4,
        num_workers=2,
        multiprocessing_context=context,
        collate_fn=collate,
    )
    for _ in range(2 if context == 'fork' else 1):
        got = [item for batch in loader for item in batch]
        if lazy:
            for i, item in enumerate(got):
                item['sample_idx'] = i
        assert difference(expected, got) is None


WORKER = """
import hashlib, json, os, pickle, sys, time
from mmshared.datasets import SharedCocoDataset
good, bad, out = sys.argv[1:4]
rank = int(os.environ.get('RANK', sys.argv[4] if len(sys.argv) > 4 else 0))
if 'WORLD_SIZE' in os.environ and 'MASTER_ADDR' in os.environ:
    import torch.distributed as dist
    dist.init_process_group('gloo')
open(os.path.join(out, f'{rank}.ready'), 'w').close()
while sum(name.endswith('.ready') for name in os.listdir(out)) < 8:
    time.sleep(0.01)
results = []
for name, file in (('good', good), ('bad', bad)):
    try:
        dataset = SharedCocoDataset(
            ann_file=file, metainfo=dict(classes=('cat', 'dog', 'bird')), data_prefix=dict(img='img'),
            cache_dir=os.path.join(out, f'cache-{name}'))
        items = [dataset.get_data_info(i) for i in range(len(dataset))]
        result = dict(digest=hashlib.sha256(pickle.dumps(items)).hexdigest(), count=len(items))
        result.update(store=str(dataset._store.path), inode=os.stat(dataset._store.path).st_ino)
    except ValueError as error:
        result = dict(error=str(error))
    results.append(result)
with open(os.path.join(out, f'{rank}.json'), 'w') as f:
    json.dump(results, f)
"""


@pytest.fixture(scope='module', params=['torchrun', 'alone'])
def together(request, large, tmp_path_factory) -> tuple[Path, list, list, str]:
    """A good and a bad file read by 8 processes at once: their folder, what each made of either, what they logged."""
    out = tmp_path_factory.mktemp('together')
    data = content()
    del data['annotations'][17]['area']
    arguments = [str(out / 'worker.py'), large, write(out / 'annotations.json', data), str(out)]
    (out / 'worker.py').write_text(WORKER, encoding='utf-8')
    environment = {'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'PATH': '/usr/bin:/bin', 'HOME': str(out)}
    if request.param == 'torchrun':
        starts = [[sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=8', *arguments]]
    else:
        starts = [[sys.executable, *arguments, str(rank)] for rank in range(8)]
    processes = [
        subprocess.Popen(s, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for s in starts
    ]
    try:
        logs = ''.join(p.communicate(timeout=180)[0] for p in processes)
    finally:
        for process in processes:
            process.kill()
    results = [json.loads((out / f'{rank}.json').read_text()) for rank in range(8) if (out / f'{rank}.json').exists()]
    assert len(results) == 8, logs
    return out, *zip(*results), logs


def test_eight_processes_get_equal_datasets_from_one_parse(together, large):
    out, results, _, logs = together
    assert all(r == results[0] for r in results), logs
    assert results[0]['count'] == 3000
    stores = [p for p in (out / 'cache-good').rglob('*') if p.is_file()]
    assert str(results[0]['store']) in map(str, stores)
    inode = results[0]['inode']
    again = shared_at(large, out / 'cache-good')
    assert Path(again._store.path).stat().st_ino == inode, 'the second run parsed again'
    a = stock(large)
    assert len(a) == 3000 and difference(a.get_data_info(7), again.get_data_info(7)) is None


def test_eight_processes_reject_a_bad_file_alike(together):
    out, _, results, logs = together
    errors = {r.get('error') for r in results}
    assert len(errors) == 1 and None not in errors, logs
    message = errors.pop()
    assert 'annotations[17]' in message and "'area'" in message and '117' in message
    assert [p for p in (out / 'cache-bad').rglob('*') if p.is_file()] == []


def shared_at(file, cache):
    from mmshared.datasets import SharedCocoDataset

    return SharedCocoDataset(
        ann_file=file,
        metainfo={'classes': CLASSES},
        data_prefix={'img': 'img'},
        cache_dir=str(cache),
    )
