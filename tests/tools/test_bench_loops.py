"""The benchmarks of the lean loops run as a user runs them, and leave nothing behind."""

from __future__ import annotations

import importlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')
TINY_LOOPS = ('--pairs', 1, '--workers', 1, '--metric', 0.1, 0, '--validation', 0.1, '--sample', 0.01, '--step', 0.01)
TINY_JOB = ('--json-mb', 0.03, '--scale', 64, 64, '--switches', 1)


@pytest.fixture
def temporary():
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix='mms-') as folder:
        yield Path(folder)


@pytest.fixture
def start(repo, temporary):
    """Start a benchmark; its temporary files go to ``temporary``."""

    def run(script, *args):
        return subprocess.Popen(
            [sys.executable, repo.joinpath(*FOLDER, script), *map(str, args)],
            text=True,
            env={**os.environ, 'TMPDIR': str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


@pytest.fixture
def modules(repo, monkeypatch):
    """The modules beside the benchmarks can be imported."""
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))


def results(process, tmp_path, temporary):
    """Rows of a benchmark that has run with ``--out tmp_path / 'out'``; they are in the table too."""
    shown, said = process.communicate()
    assert process.returncode == 0, said
    rows = json.loads((tmp_path / 'out' / 'results.json').read_text())['results']
    assert shown == (tmp_path / 'out' / 'table.md').read_text()
    assert all(row['title'] in shown for row in rows.values())
    assert not list(temporary.iterdir())
    return rows


def test_time_and_memory_are_measured(start, tmp_path, temporary):
    with start('bench_loops.py', *TINY_LOOPS, *TINY_JOB, '--out', tmp_path / 'out') as process:
        rows = results(process, tmp_path, temporary)
    times = {f'{name}_{metric}_s' for name in ('switch', 'around', 'until_metric') for metric in ('0.1', '0')}
    peaks = {f'{name}_peak' for name in ('pools', 'private', 'in_flight', 'pss', 'workers')}
    assert set(rows) == times | peaks
    assert all(row[kind] > 0 for row in rows.values() for kind in ('stock', 'shared'))
    for kind in ('stock', 'shared'):
        assert rows['until_metric_0.1_s'][kind] >= 0.1
        assert rows['switch_0.1_s'][kind] >= rows['until_metric_0.1_s'][kind] + 0.1
        assert rows['around_0.1_s'][kind] >= rows['switch_0.1_s'][kind] + 0.01
        parts = rows['private_peak'][kind], rows['in_flight_peak'][kind]
        assert max(parts) <= rows['pools_peak'][kind] <= sum(parts)
    assert (rows['workers_peak']['stock'], rows['workers_peak']['shared']) == (2, 1)


def test_resuming_is_measured(start, tmp_path, temporary):
    tiny = ('--iteration', 50, '--stock', 4, '--sample', 0.001, '--workers', 1, '--json-mb', 0.5, '--steps', 4)
    with start('bench_resume.py', *tiny, '--batch-sizes', 3, '--out', tmp_path / 'out') as process:
        rows = results(process, tmp_path, temporary)
    assert set(rows) == {f'{name}_3{what}_s' for name in ('infinite', 'aspect') for what in ('', '_processor')}
    assert all(row['shared'] > 0 for row in rows.values())
    assert all(rows[f'{name}_3_s']['stock'] > 0 for name in ('infinite', 'aspect'))


def test_other_samples_are_an_error(modules):
    from bench_resume import OtherSamplesError, _compare

    _compare('job', [[1, 2], [3, 4]], [[1, 2], [3, 4]])
    with pytest.raises(OtherSamplesError, match=r'1 steps after .* has samples \[\[4, 3\]\], should be \[\[3, 4\]\]'):
        _compare('job', [[1, 2], [4, 3]], [[1, 2], [3, 4]])
    with pytest.raises(OtherSamplesError, match='1 steps after'):
        _compare('job', [[1, 2]], [[1, 2], [3, 4]])


def test_shared_memory_is_counted_once_mapped_or_not(modules):
    from pool_memory import SHARED, shared_memory

    me = os.getpid()
    before = shared_memory([me])
    with tempfile.TemporaryFile(dir=SHARED) as file:  # it has no name, as PyTorch's have none
        file.truncate(3_000_000)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped.write(bytes(3_000_000))
            assert shared_memory([me]) - before == pytest.approx(3, rel=0.01)
        twice = os.dup(file.fileno())
        assert shared_memory([me, me]) - before == pytest.approx(3, rel=0.01)
        os.close(twice)
    assert shared_memory([me]) == before


def test_nothing_is_left_when_it_is_stopped(start, temporary):
    with start('bench_loops.py', '--only', 'memory', *TINY_LOOPS, *TINY_JOB) as process:
        said = iter(process.stderr.readline, '')
        assert any('pair 1' in line for line in said)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(temporary.iterdir())
    commands = [' '.join(p.info['cmdline'] or []) for p in psutil.process_iter(['cmdline'])]
    assert not [command for command in commands if str(temporary) in command]


def test_a_path_that_is_too_long_is_an_error(modules, tmp_path):
    from probe import Probe, ProbeError

    with pytest.raises(ProbeError, match='set TMPDIR to a shorter one'):
        Probe('job', tmp_path / ('long' * 30))


@pytest.mark.parametrize(
    ('script', 'arguments'), [('bench_loops', ['--workers', '0']), ('bench_resume', ['--stock', '1'])]
)
def test_nonsense_is_refused(modules, monkeypatch, capsys, script, arguments):
    monkeypatch.setattr(sys, 'argv', [script, *arguments])
    with pytest.raises(SystemExit) as exit_:
        importlib.import_module(script).main()
    assert exit_.value.code == 2
    assert 'must be at least' in capsys.readouterr().err
