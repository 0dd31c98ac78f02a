"""The benchmark at scale runs as a user runs it, at a small size, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
SMALL = ('--size-mb', 2, '--instances', 5, '--workers', 1, '--memory-mb', 300)


def test_a_store_is_read_within_a_limit(repo, tmp_path):
    command = [sys.executable, str(repo / 'tools' / 'benchmarks' / 'bench_scale.py'), 'limit', *map(str, SMALL)]
    done = subprocess.run(command, env={**os.environ, 'TMPDIR': str(tmp_path)}, text=True, capture_output=True)
    assert not list(tmp_path.iterdir())
    assert not list(Path('/sys/fs/cgroup').glob('**/mmshared-bench-*'))
    if done.returncode and 'NoLimitError' in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    rows = re.findall(r'^\| (.*?) +\| +([\d,.-]+) \|$', done.stdout, re.MULTILINE)
    figures = {name: float(text.replace(',', '')) for name, text in rows}
    assert figures['workers'] == 1 and figures['images'] > 100
    rates = [value for name, value in figures.items() if name.endswith('samples/s of a worker')]
    assert len(rates) == 4 and min(rates) > 0
    within = {name: value for name, value in figures.items() if name.startswith('... limit 300')}
    assert within and all(0 < value <= 300 for value in within.values())
