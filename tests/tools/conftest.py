"""A tiny job for the launch tools."""

from __future__ import annotations

import pytest
from mmdet.registry import DATASETS

import mmshared  # noqa: F401  (registers its datasets)

# Until SharedCocoDataset is registered the launch tools are tried with stock's dataset.
_REGISTERED = DATASETS.get('SharedCocoDataset') is not None
DATASET_OPTIONS = (
    [] if _REGISTERED else [f'{split}_dataloader.dataset.type=CocoDataset' for split in ('train', 'val', 'test')]
)


@pytest.fixture(scope='session')
def dataset_options():
    """``--cfg-options`` that choose the dataset to try the tools with."""
    return DATASET_OPTIONS


@pytest.fixture(scope='session')
def tiny_job(repo, shapes):
    """Arguments of a tiny job: ``tiny_job(work_dir, 'key=value', ...)`` -> config, and the options after it."""
    config = repo / 'tests' / 'tools' / 'tiny_rtmdet.py'

    def job(work_dir, *options):
        extra = [*DATASET_OPTIONS, *options]
        return config, ['--data-root', shapes, '--work-dir', work_dir, *(['--cfg-options', *extra] if extra else [])]

    return job
