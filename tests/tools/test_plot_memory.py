"""The picture of the node memory: of what runs, which times, and what it says about files it cannot draw."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys

import pytest

PARTS = ('main', 'train_workers', 'val_workers', 'other', 'annotations', 'shm', 'shared')


@pytest.fixture
def records(repo, monkeypatch):
    """The module that reads the files."""
    monkeypatch.syspath_prepend(str(repo / 'tools' / 'analysis'))
    import memory_records

    return memory_records


def plot(repo, cwd, *args):
    command = [sys.executable, str(repo / 'tools' / 'analysis' / 'plot_memory.py'), *map(str, args)]
    environment = {**os.environ, 'MPLCONFIGDIR': str(cwd / 'matplotlib')}
    return subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True)


def look(at, phase='train', began=0, start=0, main=100, **changes):
    """A look at second ``at``, in a phase that began then; ``main`` in MB."""
    sizes = {**dict.fromkeys(PARTS, 0), 'main': main * 10**6}
    counts = dict(ranks=1, trainers=1, validators=0, others=0)
    facts = dict(time=1000 + at, began=1000 + began, phase=phase, moment='training', iter=at, start=start, epoch=0)
    return {**facts, **sizes, **counts, 'seconds': 0.05, 'total': main * 10**6, 'pss': main * 10**6, **changes}


def write(folder, *looks, session='20260101_000000', end='\n'):
    path = folder / session / 'vis_data' / 'node_memory.jsonl'
    path.parent.mkdir(parents=True)
    path.write_text('\n'.join(map(json.dumps, looks)) + end)
    return path


def epoch(offset=0, main=100):
    phases = [('train', 0), ('train', 0), ('val', 10), ('val', 10), ('train', 20), (None, 30)]
    return [look(offset + 6 * i, phase, offset + began, main=main + i) for i, (phase, began) in enumerate(phases)]


def size_of(png):
    data = png.read_bytes()
    assert data[:8] == b'\x89PNG\r\n\x1a\n'
    return struct.unpack('>II', data[16:24])


def test_runs_are_drawn_into_one_picture(repo, tmp_path):
    write(tmp_path / 'stock' / 'job', *epoch(main=200))
    path = write(tmp_path / 'lean' / 'job', *epoch())
    done = plot(repo, tmp_path, 'stock/job', path, '-o', 'out/memory.png')
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith('job: at most 205 MB (training, iteration 30); 6 looks at up to 2 processes')
    assert '50 ms each (median) (1.0 % of the time)' in lines[0]
    assert lines[1].startswith('20260101_000000: at most 105 MB')
    assert lines[-1] == os.path.join('out', 'memory.png')
    both = size_of(tmp_path / 'out' / 'memory.png')
    assert plot(repo, tmp_path, 'stock/job', '-o', 'one.png').returncode == 0
    assert size_of(tmp_path / 'one.png')[1] < both[1]  # each run has a panel of its own
    assert not (tmp_path / 'memory.png').exists()


def test_phases_are_as_they_were(records, tmp_path):
    write(tmp_path, *epoch())
    run = records.read_run(tmp_path, 'a run')
    assert run.phases() == [('train', 0.0, 10.0), ('val', 10.0, 20.0), ('train', 20.0, 30.0)]
    assert run.times == [0, 6, 12, 18, 24, 30]


def test_a_resumed_job_is_one_run_without_the_time_between(records, tmp_path):
    write(tmp_path, *epoch(), session='20260101_000000')  # begun anew, later
    write(tmp_path, *epoch(1000), session='20260102_000000')
    write(tmp_path, look(5000, began=5000, start=9), look(5020, began=5000, start=9), session='20260103_000000')
    run = records.read_run(tmp_path, 'a run')
    assert run.times == [0, 6, 12, 18, 24, 30, 30, 50]
    assert run.breaks == [30]
    assert run.phases()[-1] == ('train', 30.0, 50.0)
    assert len(records.read_run(tmp_path / '20260101_000000', 'alone').looks) == 6


def test_a_last_line_that_was_not_finished_does_not_matter(records, tmp_path):
    path = write(tmp_path, *epoch(), end='\n{"time": 1036.2, "mom')
    assert len(records.read_run(path, 'a run').looks) == 6


def test_names_tell_the_runs_apart(load_tool, tmp_path):
    names_of = load_tool('analysis/plot_memory').names_of
    paths = [tmp_path / 'a' / 'job', tmp_path / 'b' / 'job', tmp_path / 'b' / 'other']
    assert names_of(paths) == ['a/job', 'b/job', 'b/other']
    assert names_of(paths[1:]) == ['job', 'other']
    assert names_of(paths[:1] * 2) == ['job', 'job']


@pytest.mark.parametrize(
    'content, message',
    [
        (None, 'no node_memory.jsonl in there. Is NodeMemoryHook among the default_hooks'),
        ('', 'node_memory.jsonl: holds no look.'),
        ('{"time": 1}\n' + json.dumps(look(0)) + '\n', 'node_memory.jsonl, line 1: is no record of NodeMemoryHook'),
    ],
)
def test_what_cannot_be_drawn_is_named(repo, tmp_path, content, message):
    (tmp_path / 'job').mkdir()
    if content is not None:
        (tmp_path / 'job' / 'node_memory.jsonl').write_text(content)
    done = plot(repo, tmp_path, 'job')
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith('error: job') and message in done.stderr and done.stderr.count('\n') == 1


def test_wrong_arguments(repo, tmp_path):
    write(tmp_path / 'job', *epoch())
    assert 'there is no such file or folder' in plot(repo, tmp_path, 'elsewhere').stderr
    assert '1 runs and 2 names' in plot(repo, tmp_path, 'job', '--names', 'a', 'b').stderr
    assert 'memory.xyz cannot be written' in plot(repo, tmp_path, 'job', '-o', 'memory.xyz').stderr
