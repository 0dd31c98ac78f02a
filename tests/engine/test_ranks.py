"""Two ranks with DDP over gloo: as with stock's loops, and random numbers that differ between ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture(scope='module')
def ranks(tmp_path_factory, unused_port_factory, repo):
    """What both ranks did, by the name of the job."""
    folder = tmp_path_factory.mktemp('ranks')
    command = [sys.executable, '-m', 'torch.distributed.run', '--nproc_per_node=2', '--master_addr=127.0.0.1']
    done = subprocess.run(
        [*command, f'--master_port={unused_port_factory()}', '-m', 'tests.engine.lean_ranks', str(folder)],
        cwd=repo,
        env={**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return [json.loads((folder / f'rank{rank}.json').read_text()) for rank in (0, 1)]


@pytest.mark.parametrize('kind', ['epochs', 'iterations'])
def test_two_ranks_train_as_with_stock(ranks, kind):
    for rank in ranks:
        stock, released, kept = (rank[f'{kind} {lean}'] for lean in (None, True, False))
        assert stock['training'] == released['training'] == kept['training']
        assert len(stock['training'][0]) == (12 if kind == 'epochs' else 20)
        assert stock['most'] == 4 and released['most'] == 2
    indices, weights = ([rank[f'{kind} True']['training'][part] for rank in ranks] for part in (0, 3))
    assert indices[0] != indices[1] and weights[0] == weights[1]


@pytest.mark.parametrize('kind', ['epochs', 'iterations'])
def test_random_numbers_differ_between_ranks_workers_and_epochs(ranks, kind):
    drawn = [tuple(draws) for rank in ranks for step in rank[f'{kind} True']['draws'] for draws in step]
    for numbers in zip(*drawn):
        assert len(set(numbers)) == len(numbers) == (48 if kind == 'epochs' else 80)


@pytest.mark.parametrize('kind', ['epochs', 'iterations'])
def test_each_rank_goes_on_where_it_was(ranks, kind):
    for rank in ranks:
        job = rank[f'{kind} resumed']
        assert job['more'] == job['whole'][5:] and len(job['whole']) == (12 if kind == 'epochs' else 20)
    assert ranks[0][f'{kind} resumed'] != ranks[1][f'{kind} resumed']
