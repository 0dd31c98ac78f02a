"""The benchmark of loading runs as a user runs it, compares what it times, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='the store needs Linux')
FOLDER = ('tools', 'benchmarks')


def run(repo, tmp_path, *args):
    (tmp_path / 'tmp').mkdir()
    command = [sys.executable, str(repo.joinpath(*FOLDER, 'bench_loading.py')), *map(str, args)]
    done = subprocess.run(command, env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')}, text=True, capture_output=True)
    assert not list((tmp_path / 'tmp').iterdir())
    return done


def test_every_measurement_is_taken(repo, tmp_path):
    done = run(
        repo, tmp_path, '--size-mb', 1, '--instances', 3, '--only', 'boxes', 'polygons', '--out', tmp_path / 'out'
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / 'out' / 'results.json').read_text())['results']
    assert set(rows) == {'boxes_3_us', 'polygons_3_us'}
    assert all(row[kind] > 0 for row in rows.values() for kind in ('stock', 'shared', 'ratio'))
    assert done.stdout == (tmp_path / 'out' / 'table.md').read_text()
    assert all(row['title'] in done.stdout for row in rows.values())


def test_a_bad_file_is_named(repo, tmp_path):
    bad = tmp_path / 'bad.json'
    bad.write_text('{"images": [{"id": 1}], "annotations": []}')
    done = run(repo, tmp_path, '--json', bad)
    assert done.returncode == 1
    assert str(bad) in done.stderr
    assert not done.stdout


def test_a_difference_is_seen(repo, monkeypatch):
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))
    from mmdet.structures.bbox import HorizontalBoxes
    from mmdet.structures.mask import BitmapMasks, PolygonMasks
    from tasks import _content

    def results(value=1.0, box=4.0, label=np.int64, bit=1):
        return {
            'gt_bboxes': HorizontalBoxes(np.float32([[1, 2, 3, box]])),
            'gt_bboxes_labels': np.array([1], label),
            'gt_masks': PolygonMasks([[np.array([value] * 6)]], 2, 2),
            'bits': BitmapMasks(np.full((1, 2, 2), bit, np.uint8), 2, 2),
        }

    known = _content(results())
    assert known == _content(results())
    changed = [{'value': 1.0000000000000002}, {'box': 5.0}, {'label': np.int32}, {'bit': 0}]
    assert all(known != _content(results(**change)) for change in changed)
