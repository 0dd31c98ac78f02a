"""The benchmark of the hand-off runs as a user runs it, measures what it says, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')
OURS = 'packed_collate'
TINY = ('--workers', 1, '--batch-size', 2, '--instances', 3, '--size', 24, 16, '--repeats', 2, '--seconds', 0.05)
LOADING = {'workers': 1, 'strategy': 'file_descriptor', 'start_method': 'fork'}
CASE = {'batch_size': 2, 'instances': 3, 'size': (24, 16), 'masks': None, 'folder': None}
SHARED = Path('/dev/shm')


@pytest.fixture
def temporary():
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix='mms-') as folder:
        yield Path(folder)


@pytest.fixture
def start(repo, temporary):
    """Start the benchmark; its temporary files go to ``temporary``."""

    def run(*args):
        return subprocess.Popen(
            [sys.executable, repo.joinpath(*FOLDER, 'bench_handoff.py'), *map(str, args)],
            text=True,
            env={**os.environ, 'TMPDIR': str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


@pytest.fixture
def load(repo, monkeypatch):
    """Import a module beside the benchmark; what its tasks set in this process is undone."""
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))
    import cv2

    strategy, threads = torch.multiprocessing.get_sharing_strategy(), (torch.get_num_threads(), cv2.getNumThreads())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield importlib.import_module
    torch.multiprocessing.set_sharing_strategy(strategy)
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_everything_is_measured(start, tmp_path, temporary):
    with start('--only', 'jpeg', *TINY, '--collate', OURS, '--json', tmp_path / 'all.json') as process:
        shown, said = process.communicate()
    assert process.returncode == 0, said
    assert not list(temporary.iterdir())
    everything = json.loads((tmp_path / 'all.json').read_text())
    assert set(everything) == {'machine', 'load_before', 'load_after', 'options', 'device', 'results', 'worse'}
    title = 'jpeg: B=2, 3 instances, 24x16, file_descriptor'
    assert list(everything['results']) == [title]
    assert shown.count(f'| {title} |') == 3 + everything['device']
    assert ('there is no CUDA device' in shown) is not everything['device']
    assert shown.count('% of the processor time.') == 2

    time, memory = (everything['results'][title][part] for part in ('time', 'memory'))
    assert {kind: set(share) for kind, share in time['share'].items()} == dict.fromkeys(
        ('stock', 'ours'), {'ms', 'cpu_ms'}
    )
    for values in (time['ratio'], *(time[kind]['ms'] for kind in ('stock', 'ours', 'none'))):
        assert len(values['runs']) == 2
        assert 0 < values['min'] <= values['q1'] <= values['median'] <= values['q3'] <= values['max']
    for kind in ('stock', 'ours'):
        assert 0 < memory[kind]['added_mb'] < memory[kind]['all_mb']
        assert 0 < memory[kind]['pss_mb'] <= memory[kind]['all_mb']
    assert memory['stock']['descriptors'] == 6


@pytest.mark.parametrize(('start_method', 'strategy'), [('fork', 'file_system'), ('spawn', 'file_descriptor')])
def test_nothing_is_left_when_it_is_stopped(start, temporary, start_method, strategy):
    ways = ('--start-method', start_method, '--strategy', strategy)
    with start('--only', 'jpeg', *TINY, '--repeats', 50, '--collate', OURS, *ways) as process:
        assert any('jpeg: ' in line for line in iter(process.stderr.readline, ''))
        used = set()
        while not used:  # the first batches are on their way
            assert process.poll() is None
            mine = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            used = {name for pid in mine for name in shared_files(pid)}
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(temporary.iterdir())
    commands = [' '.join(p.info['cmdline'] or []) for p in psutil.process_iter(['cmdline'])]
    assert not [command for command in commands if str(temporary) in command]
    assert not [name for name in used if Path(name).exists()]
    assert not [pid for pid in mine for _ in SHARED.glob(f'torch_{pid}_*')]


def shared_files(pid):
    """Files in /dev/shm that a process has mapped, those that have a name."""
    with contextlib.suppress(OSError):
        parts = [line.split(maxsplit=5) for line in Path(f'/proc/{pid}/maps').read_text().splitlines()]
        return {part[-1] for part in parts if part[-1].startswith(f'{SHARED}/') and not part[-1].endswith('(deleted)')}
    return set()


@pytest.mark.parametrize(
    ('masks', 'start_method'), [(None, 'fork'), ('bitmap', 'fork'), ('tensor', 'fork'), ('bitmap', 'spawn')]
)
def test_passes_of_each_case(load, masks, start_method):
    loading = {**LOADING, 'start_method': start_method}
    replies = load('handoff_cases').passes({**CASE, 'masks': masks}, OURS, loading, 1, 0.01)
    assert next(replies) == {}
    found = next(replies)
    assert set(found) == {'stock', 'ours', 'none'}
    assert all(values['ms'] > 0 and values['batches'] >= 3 for values in found.values())


@pytest.mark.parametrize(('masks', 'tensors'), [(None, 3), ('bitmap', 3), ('tensor', 4)])
def test_objects_of_a_batch_are_counted(load, masks, tensors):
    found = {}
    for kind in ('stock', 'ours'):
        *_, found[kind] = load('handoff_cases').held({**CASE, 'masks': masks}, OURS, kind, LOADING, 0.01)
    each = CASE['batch_size'] * tensors  # the empty ones are not sent
    assert found['stock'] == {'descriptors': each, 'mappings': each}
    if OURS != 'pseudo_collate':
        assert max(found['ours'].values()) <= 1


def test_samples_have_not_been_sent_before(load):
    cases = load('handoff_cases')
    samples = cases.Samples(1, (8, 8), 2, 'tensor')
    first = samples[0]
    boxes = first['data_samples'].gt_instances.bboxes.tensor
    for tensor in (first['inputs'], boxes):
        tensor.share_memory_()
    again = samples[1]
    cases.check_equal(first, again)
    assert not again['inputs'].is_shared()
    assert not again['data_samples'].gt_instances.bboxes.tensor.is_shared()


def test_masks_are_within_their_boxes(load):
    found = load('handoff_cases').Samples(1, (300, 400), 30, 'bitmap')[0]['data_samples'].gt_instances
    for mask, (left, top, right, bottom) in zip(found.masks.masks, found.bboxes.tensor.tolist()):
        rows, columns = np.nonzero(mask)
        assert mask.any()
        assert top - 1.5 <= rows.min() <= rows.max() <= bottom + 1.5
        assert left - 1.5 <= columns.min() <= columns.max() <= right + 1.5


def change_value(batch):
    batch['data_samples'][1].gt_instances.bboxes.tensor[2, 3] += 1


def change_type(batch):
    instances = batch['data_samples'][0].gt_instances
    instances.labels = instances.labels.int()


def change_masks(batch):
    batch['data_samples'][0].gt_instances.masks.masks[0, 0, 0] ^= 1


def change_metainfo(batch):
    batch['data_samples'][0].set_metainfo({'flip': True})


def change_length(batch):
    batch['inputs'].pop()


def change_keys(batch):
    batch['more'] = 1


@pytest.mark.parametrize(
    'change', [change_value, change_type, change_masks, change_metainfo, change_length, change_keys]
)
def test_batches_that_differ_are_an_error(load, change):
    cases = load('handoff_cases')

    def batch():
        samples = cases.Samples(2, (8, 8), 3, 'bitmap')
        return cases.pseudo_collate([samples[0], samples[1]])

    other = batch()
    cases.check_equal(batch(), other)
    change(other)
    with pytest.raises(cases.NotEqualError, match='stock has'):
        cases.check_equal(batch(), other)


def test_all_that_is_in_a_batch_is_read(load, monkeypatch):
    cases = load('handoff_cases')
    sample = cases.Samples(1, (64, 64), 2, 'bitmap')[0]
    read = []
    monkeypatch.setattr(cases, '_read', read.append)
    cases.touch(cases.pseudo_collate([sample, sample]))
    assert len(read) == 2 + 2 * 2 * 3


def test_shared_memory_that_nobody_has_mapped_is_counted(load):
    unmapped, me = load('bench_handoff').unmapped, os.getpid()
    before = unmapped([me])
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(tempfile.TemporaryFile(dir=SHARED))]
        if hasattr(os, 'memfd_create'):
            made.append(stack.enter_context(os.fdopen(os.memfd_create('test'), 'w+b')))
        for number, file in enumerate(made, 1):
            file.write(bytes(3_000_000))
            file.flush()
            assert unmapped([me, me]) - before == pytest.approx(3 * number, rel=0.01)
        for number, file in zip(itertools.count(len(made) - 1, -1), made):
            stack.enter_context(mmap.mmap(file.fileno(), 0))
            assert unmapped([me]) - before == pytest.approx(3 * number, rel=0.01)
    named = SHARED / f'torch_{me}_test'
    named.write_bytes(bytes(3_000_000))
    try:
        assert unmapped([me]) - before == pytest.approx(3, rel=0.01)
    finally:
        named.unlink()


def measured(load, stock, ours):
    """What :func:`findings` gets: one case of which all times are ``stock`` and ``ours``, and 2 and 1 descriptors."""
    spreads = load('handoff_report').spreads
    runs = [{'stock': {'ms': stock}, 'ours': {'ms': ours}}]
    time = {kind: spreads([run[kind] for run in runs]) for kind in ('stock', 'ours')}
    held = {'stock': {'descriptors': 2}, 'ours': {'descriptors': 1}}
    return {'single: B=1': {'time': {**time, 'ratio': load('handoff_report').ratios(runs)}, 'memory': held}}


def test_what_is_worse_is_said(load):
    findings = load('handoff_report').findings
    assert findings(measured(load, 1.0, 0.5), 'packed') == [
        'single: B=1: 2.00x; the limit of 0.97x is reached.',
        'No figure is worse with packed than with stock.',
    ]
    limit, worse = findings(measured(load, 1.0, 1.1), 'packed')
    assert 'IS NOT REACHED' in limit
    assert worse == 'Worse with packed than with stock: single: B=1: ms a batch 1.10 instead of 1.00.'
    limit, worse = findings(measured(load, 0.98, 1.0), 'packed')
    assert 'is reached' in limit
    assert 'ms a batch 1.00 instead of 0.98' in worse


def test_ranges(load):
    spread = load('handoff_report').spread([4.0, 1.0, 2.0, 3.0, 5.0])
    assert [spread[name] for name in ('min', 'q1', 'median', 'q3', 'max')] == [1, 2, 3, 4, 5]
    assert load('handoff_report').spread([7.0])['q1'] == 7


@pytest.mark.parametrize('ours', ['pseudo_collate', OURS])
@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_moves_to_a_device(load, ours, device):
    if device == 'cuda' and not torch.cuda.is_available():
        pytest.skip('there is no CUDA device')
    name, found = load('handoff_device').moves({**CASE, 'masks': 'tensor'}, ours, LOADING, 1, 0.01, device)
    assert name['device']
    assert set(found) == {'stock', 'ours'}
    assert all(values['ms'] > 0 for values in found.values())
    if device == 'cuda':
        assert found['stock']['copies'] >= 2 * 4
        assert found['ours']['copies'] == 1 or ours != OURS
        assert all(values['peak_mb'] > 0 for values in found.values())


def test_an_unknown_function_is_an_error(load):
    with pytest.raises(LookupError, match="no collate function 'nonsense' is registered"):
        load('handoff_cases').collate_functions('nonsense')


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--workers', '0'], '--workers must be 1 to 4, not 0'),
        (['--workers', '5'], '--workers must be 1 to 4, not 5'),
        (['--batch-size', '0'], 'must be at least 1'),
        (['--size', '8', '0'], 'must be at least 1'),
        (['--repeats', '0'], 'must be at least 1'),
        (['--seconds', '0'], '--seconds must be greater than 0'),
        (['--instances', '-1'], '--instances: not less'),
        (['--only', 'nothing'], "invalid choice: 'nothing'"),
        (['--strategy', 'nothing'], "invalid choice: 'nothing'"),
        (['--json', '/nowhere/at/all.json'], 'there is no such folder'),
    ],
)
def test_nonsense_is_refused(load, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, 'argv', ['bench_handoff', *arguments])
    with pytest.raises(SystemExit) as exit_:
        load('bench_handoff').main()
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
