"""``--lean``: the tools convert a stock config on the fly."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from mmshared.conversion import convert_back
from mmshared.conversion.writing import as_text


@pytest.fixture(scope='module')
def stock(repo, tmp_path_factory):
    """The tiny job's config, without anything of ours."""
    cfg = Config.fromfile(repo / 'tests' / 'tools' / 'tiny_rtmdet.py')
    convert_back(cfg)
    path = tmp_path_factory.mktemp('stock') / 'stock.py'
    path.write_text(as_text(cfg))
    assert 'mmshared' not in path.read_text()
    return path


def test_a_stock_config_trains_with_shared_types_on_two_processes(run_tool, stock, shapes, tmp_path, unused_port):
    options = ['--lean', '--data-root', shapes, '--work-dir', tmp_path, '--cfg-options', 'val_dataloader.num_workers=1']
    log = run_tool('dist_train.sh', stock, 2, *options, PORT=unused_port)
    for line in (
        '--lean: train_dataloader.dataset.type: CocoDataset -> SharedCocoDataset',
        '--lean: train_cfg.type: EpochBasedTrainLoop -> LeanTrainLoop',
    ):
        assert log.count(line) == 1  # one rank says it
    assert 'coco/bbox_mAP' in log
    ran = Config.fromfile(tmp_path / 'stock.py')  # as the runner keeps it
    for split in ('train', 'val', 'test'):
        assert ran[f'{split}_dataloader'].dataset.type == 'SharedCocoDataset'
        assert ran[f'{split}_dataloader'].dataset.data_root == str(shapes)
        assert ran[f'{split}_dataloader'].collate_fn.type == 'packed_collate'
    assert ran.custom_imports.imports == ['mmshared'] and ran.val_dataloader.num_workers == 1

    log = run_tool('test.py', stock, tmp_path / 'epoch_1.pth', *options[:5], cwd=tmp_path)
    assert '--lean: test_cfg.type: TestLoop -> LeanTestLoop' in log and 'coco/bbox_mAP' in log
