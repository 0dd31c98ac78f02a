"""What NodeMemoryHook sees of real jobs: with stock's loops and ours, in one process and in two ranks."""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import subprocess
import sys

import pytest
import torch
from mmengine.runner import FlexibleRunner

from mmshared.annotations.cache.inventory import DERIVED_SUFFIX, STORE_SUFFIX
from mmshared.annotations.cache.publish import DATA_SUFFIX
from mmshared.engine.handover import may_train_early, may_validate_early
from mmshared.engine.node_memory import NodeMemoryHook, hook
from mmshared.engine.node_memory.look import look_at
from mmshared.engine.node_memory.process import STORE_SUFFIXES, memory_of
from mmshared.engine.node_memory.ranks import Notice, Ranks

from .lean_jobs import build, loader, train

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='/proc is Linux')
MB = 10**6
PARTS = ('main', 'train_workers', 'val_workers', 'other', 'annotations', 'shm', 'shared')

HOLDER = """
import mmap, sys
private = bytearray(b'x') * 40_000_000
file = open(sys.argv[1], 'rb')
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(mapped[::4096])
print('ready', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holders(path, count):
    """Processes that have 40 MB of their own each and map ``path``."""
    command = [sys.executable, '-c', HOLDER, str(path)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        assert all(process.stdout.readline() == b'ready\n' for process in started)
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.communicate()


def records(folder, name='node_memory.jsonl'):
    (path,) = folder.glob(f'*/vis_data/{name}')
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_hook(**arguments):
    return dict(custom_hooks=[dict(type='NodeMemoryHook', **arguments)])


@pytest.mark.parametrize('suffix', [STORE_SUFFIX, DERIVED_SUFFIX, DATA_SUFFIX])
def test_a_store_is_counted_once_and_is_nobodys_own(tmp_path, suffix):
    assert suffix.encode() in STORE_SUFFIXES
    store = tmp_path / f'annotations{suffix}'
    store.write_bytes(os.urandom(20 * MB))
    with holders(store, 3) as pids:
        look = look_at(pids[:1], dict(zip(pids[1:], ('train', 'test'))))
        assert look.ranks == 1 and look.trainers == look.validators == look.others == 0  # no descendants of the rank
        look = look_at(pids, {})
        store.unlink()  # a new one has taken its place
        assert look_at(pids, {}).annotations == look.annotations
    assert look.annotations == pytest.approx(20 * MB, rel=0.01)
    assert 120 * MB < look.main < 160 * MB and look.ranks == 3
    assert look.total == look.pss == pytest.approx(look.main + look.annotations + look.shared)


def test_a_file_of_another_name_is_no_store(tmp_path):
    other = tmp_path / 'annotations.mmstore.json'
    other.write_bytes(os.urandom(20 * MB))
    with holders(other, 2) as pids:
        look = look_at(pids, {})
    assert look.annotations == 0 and look.shared > 20 * MB


def test_a_process_that_has_ended_counts_nothing():
    process = subprocess.Popen(['true'])
    process.wait()
    assert memory_of(process.pid) is None
    assert look_at([process.pid], {}).total == 0


@pytest.mark.parametrize('kind', ['/dev/shm', 'memfd_create'])
def test_shared_memory_counts_once_whether_it_is_mapped_or_not(kind):
    before = look_at([os.getpid()], {})
    if kind == '/dev/shm':
        descriptor = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)
    else:
        descriptor = os.memfd_create('test')
    try:
        os.write(descriptor, b'x' * 30 * MB)
        child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, pass_fds=[descriptor])
        waiting = look_at([os.getpid()], {})
        with mmap.mmap(descriptor, 30 * MB) as mapped:
            assert sum(mapped[::4096])
            mapped_now = look_at([os.getpid()], {})
        child.communicate()
    finally:
        os.close(descriptor)
    for look in (waiting, mapped_now):
        assert look.shm - before.shm == pytest.approx(30 * MB, rel=0.01)
        assert look.others == before.others + 1
    assert mapped_now.pss - waiting.pss == pytest.approx(30 * MB, rel=0.1)
    assert mapped_now.total - waiting.total < 10 * MB


def test_files_that_are_mapped_and_files_that_are_open_add_up():
    """One process has mappings without descriptors (of batches that it looks at), and descriptors without mappings."""
    before = look_at([os.getpid()], {}).shm
    descriptors = [os.memfd_create('test') for _ in range(2)]
    for descriptor in descriptors:
        os.write(descriptor, b'x' * 10 * MB)
    mapped = torch.UntypedStorage.from_file(f'/proc/self/fd/{descriptors[0]}', shared=True, nbytes=10 * MB)
    os.close(descriptors[0])
    assert torch.tensor([], dtype=torch.uint8).set_(mapped)[::4096].sum()
    assert look_at([os.getpid()], {}).shm - before == pytest.approx(20 * MB, rel=0.01)
    os.close(descriptors[1])
    assert look_at([os.getpid()], {}).shm - before == pytest.approx(10 * MB, rel=0.01)
    del mapped
    assert look_at([os.getpid()], {}).shm <= before


@pytest.mark.parametrize('strategy', sorted(torch.multiprocessing.get_all_sharing_strategies()))
def test_tensors_are_seen_for_each_way_of_sharing(strategy):
    """With PyTorch's 'file_system' they have names in /dev/shm, and nobody keeps them open."""
    usual = torch.multiprocessing.get_sharing_strategy()
    before = look_at([os.getpid()], {}).shm
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        batch = torch.ones(5_000_000).share_memory_()
    finally:
        torch.multiprocessing.set_sharing_strategy(usual)
    assert look_at([os.getpid()], {}).shm - before == pytest.approx(20 * MB, rel=0.02)
    del batch
    assert look_at([os.getpid()], {}).shm <= before


@pytest.mark.parametrize('by_epoch', [True, False])
@pytest.mark.parametrize('lean', [None, True])
def test_workers_are_told_apart(tmp_path, lean, by_epoch):
    others = look_at([os.getpid()], {}).others  # of tests before
    job = train(tmp_path, lean, by_epoch, **with_hook())
    looks = records(tmp_path)
    assert [look['moment'] for look in looks][:: len(looks) - 1] == ['before training', 'end of training']
    assert {look['others'] for look in looks} == {others}
    assert all(look['ranks'] == 1 and look['total'] == sum(look[part] for part in PARTS) for look in looks)
    pairs = {(look['phase'], look['trainers'], look['validators']) for look in looks if look['phase']}
    if lean is None:
        assert ('val', 2, 2) in pairs and ('train', 2, 2) in pairs
        assert all(trainers == 2 for _, trainers, _ in pairs - {('train', 0, 0)})
    else:
        assert ('train', 2, 0) in pairs and not any(trainers and validators for _, trainers, validators in pairs)
        assert any(validators == 2 for _, _, validators in pairs)
        assert looks[-1]['trainers'] == looks[-1]['validators'] == 0
    assert all((look['train_workers'] > 0) == (look['trainers'] > 0) for look in looks)
    assert [look['iter'] for look in looks][-1] == len(job.steps)
    assert len(looks) == 1 + 3 * 3 + 1


def test_workers_that_nobody_keeps_are_of_the_phase_they_came_in(tmp_path):
    """As with ``persistent_workers=False``."""
    loaders = dict(train=loader(True, persistent_workers=False), val=loader(False, size=6, persistent_workers=False))
    train(tmp_path, None, train_cfg=dict(max_epochs=1), **loaders, **with_hook())
    looks = records(tmp_path)
    pairs = {(look['phase'], look['trainers'], look['validators']) for look in looks if look['phase']}
    assert {('train', 2, 0), ('val', 0, 2)} <= pairs
    assert not any(trainers and validators for _, trainers, validators in pairs)


def test_the_log_and_the_backends_have_it_and_nothing_else_changes(tmp_path):
    with_it, without = tmp_path / 'with', tmp_path / 'without'
    job = train(with_it, True, log_level='INFO', **with_hook(interval=3, max_share=1))
    plain = train(without, True, log_level='INFO')
    assert job.training == plain.training  # what is averaged for the log included
    assert may_train_early(job.runner) and may_validate_early(job.runner)
    (text,) = (path.read_text() for path in with_it.glob('*/*.log'))
    assert 'Node memory, validation: ' in text and text.count('Node memory, ') == len(records(with_it))
    (scalars,) = ([json.loads(line) for line in path.open()] for path in with_it.glob('*/vis_data/scalars.json'))
    mine = [line for line in scalars if 'node_memory/total_mb' in line]
    assert [line['node_memory/pss_mb'] for line in mine] == [
        pytest.approx(look['pss'] / MB, abs=0.001) for look in records(with_it)
    ]
    assert {line['step'] for line in mine} == {0, 1, 4, 6, 7, 10, 12, 13, 16, 18}
    (own,) = ([json.loads(line) for line in path.open()] for path in with_it.glob('*/vis_data/2*.json'))
    assert not any('node_memory/total_mb' in line for line in own)


def test_looks_at_the_interval_are_left_out_when_they_would_take_too_long(tmp_path):
    train(tmp_path, True, train_cfg=dict(max_epochs=1), **with_hook(interval=1, max_share=1e-9))
    assert [look['moment'] for look in records(tmp_path)] == [
        'before training',
        'training',
        'validation',
        'end of validation',
        'end of training',
    ]
    with pytest.raises(ValueError, match='max_share is 0,'):
        NodeMemoryHook(max_share=0)


def test_flexible_runner_and_validation_alone(tmp_path):
    train(tmp_path / 'flexible', True, train_cfg=dict(max_epochs=1), runner=FlexibleRunner, **with_hook())
    assert records(tmp_path / 'flexible')[-1]['moment'] == 'end of training'
    build(tmp_path / 'val', True, train_cfg={}, **with_hook()).val()
    assert [look['moment'] for look in records(tmp_path / 'val')] == [
        'before validation',
        'validation',
        'end of validation',
    ]


def test_a_system_that_does_not_tell_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(hook, 'memory_of', lambda pid: None)  # as on systems other than Linux
    job = train(tmp_path, True, log_level='WARNING', **with_hook())
    assert len(job.steps) == 18
    assert not list(tmp_path.glob('*/vis_data/*.jsonl'))
    (text,) = (path.read_text() for path in tmp_path.glob('*/*.log'))
    assert text.count('NodeMemoryHook does nothing') == 1


def test_a_disk_that_is_full_does_not_end_the_job(tmp_path):
    runner = build(tmp_path, True, **with_hook())
    folder = tmp_path / runner.timestamp / 'vis_data'
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'node_memory.jsonl').symlink_to('/dev/full')
    runner.train()
    (text,) = (path.read_text() for path in tmp_path.glob('*/*.log'))
    assert text.count('Node memory is not recorded any more: ') == 1


def rank_of(job, orders, answers):
    """A rank that tells what it is ordered to tell."""
    notice = Notice(job)
    for workers in iter(orders.get, None):
        notice.post(workers)
        answers.put('done')


def test_ranks_are_found_by_their_job_and_by_nothing_else():
    ranks, own = Ranks('this job', 2), Notice('this job')
    assert ranks.pids == [os.getpid()] and not ranks.find()
    fork = multiprocessing.get_context('fork')  # so that they inherit this process's notice, as workers do
    orders, answers = [fork.Queue() for _ in range(2)], fork.Queue()
    started = [
        fork.Process(target=rank_of, args=(job, queue, answers), daemon=True)
        for job, queue in zip(('this job', 'another job'), orders)
    ]
    for process, queue in zip(started, orders):
        process.start()
        queue.put({4: 'val', 5: 'train'})
        assert answers.get(timeout=60) == 'done'
    own.post({7: 'train'})
    assert ranks.find() and ranks.pids == [os.getpid(), started[0].pid]
    assert ranks.workers() == {4: 'val', 5: 'train'}  # this process's own it knows itself
    orders[0].put({4: 'val'})
    assert answers.get(timeout=60) == 'done'
    assert ranks.workers() == {4: 'val'}
    for process in started:
        process.kill()
        process.join()
    assert ranks.workers() == {4: 'val'}  # it is processes that are counted, and these are none any more
    own.close()


def test_two_ranks_are_seen_by_one(tmp_path, unused_port, repo):
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node=2', '--master_addr=127.0.0.1']
    done = subprocess.run(
        [*command, f'--master_port={unused_port}', '-m', 'tests.engine.memory_ranks', str(tmp_path)],
        cwd=repo,
        env={**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    for kind in ('stock', 'lean'):
        assert len(list((tmp_path / kind).glob('*/vis_data/*.jsonl'))) == 1
        looks = records(tmp_path / kind)
        assert {look['ranks'] for look in looks} == {2}
        seen = {(look['moment'], look['trainers'], look['validators']) for look in looks}
        assert ('training', 4, 4 if kind == 'stock' else 0) in seen
        assert any(validators >= 2 for _, _, validators in seen)  # the ranks validate each at its own pace
        assert max(trainers + validators for _, trainers, validators in seen) == (8 if kind == 'stock' else 4)
        assert any(look['others'] == 0 for look in looks)  # not always: a worker has just started, and is not known yet
