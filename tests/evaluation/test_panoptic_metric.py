"""SharedCocoPanopticMetric against CocoPanopticMetric, in processes of their own (see ``panoptic_jobs.py``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, images: int, ranks: int = 1, **options: Any) -> List[Dict[str, Any]]:
    """What each rank found."""
    launcher = ['-m', 'torch.distributed.run', '--standalone', f'--nproc-per-node={ranks}'] if ranks > 1 else []
    command = [sys.executable, *launcher, '-m', 'tests.evaluation.panoptic_jobs']
    environment = {**os.environ, 'PYTHONPATH': f'{ROOT}{os.pathsep}{os.environ.get("PYTHONPATH", "")}'}
    environment['OMP_NUM_THREADS'] = '1'
    done = subprocess.run(
        [*command, str(folder), str(images), json.dumps(options)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line.split(' ', 2) for line in done.stdout.splitlines() if line.startswith('RESULT ')]
    assert len(lines) == ranks, done.stdout + done.stderr
    return [json.loads(text) for _, _, text in sorted(lines)]


@pytest.mark.parametrize(
    'options',
    [{}, {'classwise': True}, {'file': False}, {'outfile_prefix': ''}, {'outfile_prefix': '', 'file': False}],
    ids=['plain', 'classwise', 'samples', 'kept', 'kept-samples'],
)
def test_equals_stock(tmp_path: Path, options: Dict[str, Any]) -> None:
    (found,) = run(tmp_path, 6, **options)
    assert found['ours'] == found['stock']
    assert 0 < found['ours']['coco_panoptic/PQ'] < 100
    assert not list(tmp_path.glob('cache/.*')), 'temporary pictures are left'
    if 'outfile_prefix' in options:
        pictures = {path.name: path.read_bytes() for path in (tmp_path / 'stock' / 'r.panoptic').iterdir()}
        assert len(pictures) == 6
        assert pictures == {path.name: path.read_bytes() for path in (tmp_path / 'ours' / 'r.panoptic').iterdir()}
        texts = [(tmp_path / name / 'r.panoptic.json').read_text() for name in ('stock', 'ours')]
        assert texts[0] == texts[1]


def test_format_only(tmp_path: Path) -> None:
    (found,) = run(tmp_path, 3, format_only=True, outfile_prefix='')
    assert found == {'stock': {}, 'ours': {}}


def test_each_image_counts_once(tmp_path: Path) -> None:
    """Seven images on two ranks; stock's ranks meet in a folder, ours do not."""
    one = run(tmp_path, 7)[0]
    two = run(tmp_path, 7, ranks=2)
    assert two[0]['ours'] == two[1]['ours'] == two[0]['stock'] == one['ours'] == one['stock']


def test_an_error_reaches_all_ranks(tmp_path: Path) -> None:
    first, second = run(tmp_path, 4, ranks=2, bad=1, only_ours=True)
    assert second['ours'].startswith('FileNotFoundError')
    assert first['ours'].startswith('RankError') and 'rank 1: FileNotFoundError' in first['ours']


@pytest.mark.skipif(importlib.util.find_spec('panopticapi') is not None, reason='panopticapi is installed')
def test_without_panopticapi() -> None:
    from mmshared.evaluation import SharedCocoPanopticMetric

    with pytest.raises(RuntimeError, match='panopticapi is not installed'):
        SharedCocoPanopticMetric()
