"""The trial on real COCO images: an epoch on two processes, validation, resuming."""

from __future__ import annotations

import re

import pytest


def test_an_epoch_of_coco_and_resume(run_tool, repo, tmp_path, unused_port_factory, dataset_options):
    data = repo.parent / 'shared' / 'data' / 'coco_tiny'
    if not data.is_dir():
        pytest.skip(f'{data} is missing: there are no real images to train on')
    config = repo / 'configs' / 'retinanet' / 'retinanet_r18_320_1e_shared-coco.py'
    arguments = [config, 2, '--data-root', f'{data}/', '--work-dir', tmp_path]
    # 32 of the 80 images, to be quick: four iterations of two times four; and 16 to validate on
    options = [
        '--cfg-options',
        'train_dataloader.dataset.indices=32',
        'val_dataloader.dataset.indices=16',
        *dataset_options,
    ]
    log = run_tool('dist_train.sh', *arguments, *options, PORT=unused_port_factory())
    assert re.search(r'Epoch\(train\) \[1\]\[4/4\]', log)
    log = run_tool(
        'dist_train.sh', *arguments, '--resume', *options, 'train_cfg.max_epochs=2', PORT=unused_port_factory()
    )
    assert 'resumed epoch: 1' in log and (tmp_path / 'epoch_2.pth').is_file()
    assert re.search(r'Epoch\(val\) \[2\]\[\d+/\d+\] .*coco/bbox_mAP: \d', log)
