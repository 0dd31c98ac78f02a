"""The benchmark of evaluation runs as a user runs it, compares the metrics, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')
TINY = ('--size-mb', 0.05, '--ranks', 2, '--evaluations', 2, '--images', 8, '--detections', 5)


def run(repo, tmp_path, *args):
    """Exit with no temporary files left."""
    (tmp_path / 'tmp').mkdir()
    command = [sys.executable, str(repo.joinpath(*FOLDER, 'bench_evaluation.py')), *map(str, args)]
    done = subprocess.run(command, env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')}, text=True, capture_output=True)
    assert not list((tmp_path / 'tmp').iterdir())
    return done


def test_every_measurement_is_taken(repo, tmp_path):
    done = run(repo, tmp_path, *TINY, '--out', tmp_path / 'out')
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / 'out' / 'results.json').read_text())['results']
    names = {'constructed', 'other_predicted', 'rank0_peak', 'other_peak', 'rank0_after', 'other_after', 'rank0_last'}
    memory = {f'{name}_{unit}_mb' for name in names for unit in ('uss', 'pss', 'anonymous')}
    assert set(rows) == {'construct_s', 'look_s', 'rank_evaluation_s', 'evaluation_s'} | memory
    assert all(rows[name]['stock'] > 0 and rows[name]['shared'] > 0 for name in ('construct_s', 'evaluation_s'))
    assert rows['rank0_peak_anonymous_mb']['stock'] > 0
    assert done.stdout == (tmp_path / 'out' / 'table.md').read_text()
    assert all(row['title'] in done.stdout for row in rows.values())


def test_a_backend_that_does_not_exist_is_an_error(repo, tmp_path):
    done = run(repo, tmp_path, *TINY, '--only', 'memory', '--backend', 'none')
    assert done.returncode == 1 and "backend is 'none'" in done.stderr and not done.stdout


def test_a_difference_is_seen(repo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))
    import bench_evaluation

    monkeypatch.setattr(sys, 'argv', ['bench_evaluation', *map(str, TINY), '--only', 'memory'])
    args = bench_evaluation.parse_args()
    real = bench_evaluation.run_ranks

    def other(kind, *more):
        seen = real(kind, *more)
        seen.metrics['coco/bbox_mAP'] += kind == 'shared'
        return seen

    monkeypatch.setattr(bench_evaluation, 'run_ranks', other)
    with pytest.raises(bench_evaluation.MetricsDifferError, match='stock: '):
        list(bench_evaluation.memory_rows(args, tmp_path))
