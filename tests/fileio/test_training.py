"""Training from an archive is training from the folder, bit by bit: torchrun, two ranks, two workers each."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from . import record_files
from .known_archives import backend_args
from .record_files import Image
from .training_ranks import DATASETS

COCO = Path(__file__).resolve().parents[3] / 'shared' / 'data' / 'coco_tiny'
pytestmark = pytest.mark.skipif(not COCO.is_dir(), reason='needs ../shared/data/coco_tiny: trains on real images')
KINDS = ('tar', 'zip', 'rec')


def archives(folder):
    """The images of training, with the paths that COCO's own zip has and without folders."""
    images = sorted((COCO / 'train2017').iterdir())
    with tarfile.open(folder / 'images.tar', 'w') as tar:
        tar.add(COCO / 'train2017', 'train2017')
    with zipfile.ZipFile(folder / 'images.zip', 'w') as archive:
        for image in images:
            archive.write(image, image.name)
    records = [Image(number, image.read_bytes(), 0.0, f'train2017/{image.name}') for number, image in enumerate(images)]
    record_files.write_archive(folder / 'images.rec', records)
    return {kind: folder / f'images.{kind}' for kind in KINDS}


@pytest.fixture(scope='module')
def ranks(tmp_path_factory, repo):
    """What came of each training, in each rank."""
    folder = tmp_path_factory.mktemp('training')
    root = folder / 'no_images'
    shutil.copytree(COCO / 'annotations', root / 'annotations')
    sources = {'folder': dict(data_root=str(COCO), backend_args=None)}
    for kind, archive in archives(folder).items():
        sources[kind] = dict(data_root=str(root), backend_args=backend_args(archive, folder / 'cache'))
    (folder / 'sources.json').write_text(json.dumps(sources))
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    command += ['-m', 'tests.fileio.training_ranks', str(folder / 'sources.json'), str(folder)]
    own = {'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1', 'MMSHARED_CACHE': str(folder / 'cache')}
    done = subprocess.run(
        command,
        cwd=repo,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return [json.loads((folder / f'{rank}.json').read_text()) for rank in range(2)]


def test_there_is_something_to_compare(ranks):
    """Losses of ten different batches, of both ranks; what each learns goes into the weights of both."""
    for rank in ranks:
        assert len(rank) == len(DATASETS) * (1 + len(KINDS))
        scalars = rank['CocoDataset folder']['scalars']
        losses = [key for key in scalars if 'loss' in key]
        assert len(losses) > 2 and all(map(math.isfinite, sum((scalars[key] for key in losses), [])))
        assert len(set(scalars['train/loss'])) == 10
    first, second = (rank['CocoDataset folder'] for rank in ranks)
    assert first['scalars'] != second['scalars'] and first['weights'] == second['weights']


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('dataset', DATASETS)
def test_losses_and_weights_are_those_of_the_folder(dataset, kind, ranks):
    for rank in ranks:
        assert rank[f'{dataset} {kind}'] == rank['CocoDataset folder'] == rank[f'{dataset} folder']
