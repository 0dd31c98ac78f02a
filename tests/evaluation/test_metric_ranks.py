"""Two ranks over gloo: predictions of both count once, and an error in one is raised in both."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .metric_cases import outcome, stock_metric, write
from .metric_ranks import case


@pytest.fixture(scope='module')
def ranks(tmp_path_factory, unused_port_factory, repo):
    """What both ranks report, by the name of the evaluation."""
    folder = tmp_path_factory.mktemp('ranks')
    write(folder, case().content)
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node=2', '--master_addr=127.0.0.1']
    done = subprocess.run(
        [*command, f'--master_port={unused_port_factory()}', '-m', 'tests.evaluation.metric_ranks', str(folder)],
        cwd=repo,
        env={**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return [json.loads((folder / f'rank{rank}.json').read_text()) for rank in (0, 1)]


@pytest.mark.parametrize('name', ['shared cpu', 'shared gpu', 'small pieces', 'and still', 'stock gpu'])
def test_each_of_21_images_counts_once(ranks, name):
    for rank in ranks:
        assert rank[name] == ranks[0]['stock cpu'] and len(rank[name]['metrics']) > 12


def test_as_in_one_process(ranks, tmp_path):
    options = {'metric': ['bbox', 'segm', 'proposal'], 'classwise': True, 'proposal_nums': (2, 5, 10)}
    one = outcome(stock_metric(write(tmp_path, case().content), **options), case().samples)
    # The order in which equal scores come is another one there, but it is that of the images in both.
    assert json.loads(json.dumps(one.metrics)) == ranks[0]['shared cpu']['metrics']


def test_ground_truth_of_the_samples(ranks):
    assert ranks[0]['no file shared'] == ranks[1]['no file shared'] == ranks[0]['no file stock']
    assert 'metrics' in ranks[0]['no file shared']


def test_one_rank_has_nothing(ranks):
    assert ranks[0]['one image'] == ranks[1]['one image'] == ranks[0]['one image stock']


def test_nobody_has_anything(ranks):
    assert ranks[0]['nothing']['error'] == 'ValueError' and ranks[1]['nothing']['error'] == 'RankError'


def test_bad_predictions_are_an_error_in_all_ranks(ranks):
    reports = [rank['bad predictions'] for rank in ranks]
    assert [report['error'] for report in reports] == ['RankError', 'KeyError']
    assert "rank 1: KeyError: 'scores'" in reports[0]['text']


def test_evaluation_fails_in_all_ranks(ranks):
    reports = [rank['unknown image'] for rank in ranks]
    assert [report['error'] for report in reports] == ['AssertionError', 'RankError']
    assert 'nowhere' in reports[0]['text'] and '(rank 1)' in reports[0]['text']
    assert reports[1]['text'] == f'Evaluation failed in rank 0: AssertionError: {reports[0]["text"]}'
