"""``mmshared convert-config``: a config in, a config out; what is refused; nothing half done."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from mmengine.config import Config

from .conftest import ROOT, on_disk, process

TEXT = """
default_scope = 'mmdet'
train_pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
train_dataloader = dict(
    batch_size=2, dataset=dict(type='CocoDataset', ann_file='a.json', pipeline=train_pipeline))
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=1)
val_cfg = dict(type='TeacherStudentValLoop')
"""


@pytest.fixture
def config(tmp_path):
    """A small config, which inherits from another one."""
    (tmp_path / 'base.py').write_text(TEXT)
    path = tmp_path / 'config.py'
    path.write_text("_base_ = 'base.py'\ntrain_cfg = dict(max_epochs=2)\n")
    return path


def test_to_stdout(cli, config):
    status, out, err = cli('convert-config', config)
    assert status == 0
    cfg = Config.fromstring(out, '.py')
    assert cfg.train_dataloader.dataset.type == 'SharedCocoDataset'
    assert cfg.train_cfg.to_dict() == dict(type='LeanTrainLoop', max_epochs=2)
    assert cfg.custom_imports.imports == ['mmshared']
    assert 'train_dataloader.dataset.type: CocoDataset -> SharedCocoDataset\n' in err
    assert 'left val_cfg: TeacherStudentValLoop: this loop has no lean counterpart\n' in err


def test_to_a_file_and_back(cli, config, tmp_path):
    status, out, err = cli('convert-config', config, '-o', tmp_path / 'out.py')
    assert (status, err) == (0, '') and 'train_cfg.type: EpochBasedTrainLoop -> LeanTrainLoop\n' in out
    config.unlink()
    (tmp_path / 'base.py').unlink()  # the result needs neither
    assert Config.fromfile(tmp_path / 'out.py').train_cfg.type == 'LeanTrainLoop'
    status, out, err = cli('convert-config', '--back', tmp_path / 'out.py')
    expected = Config.fromstring(TEXT, '.py')
    expected.train_cfg.max_epochs = 2
    assert status == 0 and Config.fromstring(out, '.py').to_dict() == expected.to_dict()
    assert on_disk(tmp_path) == ['out.py']


def test_converted_twice(cli, config, tmp_path):
    cli('convert-config', config, '-o', tmp_path / 'out.py')
    status, out, err = cli('convert-config', tmp_path / 'out.py')
    assert status == 0 and out == (tmp_path / 'out.py').read_text()
    assert err.startswith('nothing to change\nleft val_cfg: ')


@pytest.mark.parametrize('suffix', ['json', 'yaml'])
def test_other_formats_are_read(cli, suffix, tmp_path):
    Config(dict(val_cfg=dict(type='ValLoop'))).dump(tmp_path / f'config.{suffix}')
    status, out, _ = cli('convert-config', tmp_path / f'config.{suffix}')
    assert status == 0 and "type='LeanValLoop'" in out


def test_a_config_that_imports_what_it_uses(cli, tmp_path):
    """A new-style config: types are classes, and are written as their paths."""
    path = tmp_path / 'new.py'
    path.write_text(
        'from mmengine.config import read_base\n'
        'from mmengine.runner.loops import ValLoop\n'
        'from mmdet.datasets import CocoDataset\n'
        'from mmdet.evaluation import VOCMetric\n'
        'default_scope = None\n'
        'dataset_type = CocoDataset\n'
        "val_dataloader = dict(batch_size=1, dataset=dict(type=dataset_type, ann_file='a.json'))\n"
        'val_evaluator = dict(type=VOCMetric)\n'
        'val_cfg = dict(type=ValLoop)\n'
    )
    status, out, err = cli('convert-config', path, '-o', tmp_path / 'out.py')
    assert status == 0, err
    cfg = Config.fromfile(tmp_path / 'out.py')
    assert cfg.dataset_type == cfg.val_dataloader.dataset.type == 'mmshared.datasets.coco.SharedCocoDataset'
    assert cfg.val_cfg.type.startswith('mmshared.') and cfg.val_cfg.type.endswith('.LeanValLoop')
    assert cfg.val_evaluator.type == 'mmdet.evaluation.VOCMetric'
    assert 'CocoDataset' not in cfg
    status, out, err = cli('convert-config', '--back', tmp_path / 'out.py')
    assert status == 0 and 'mmshared' not in out


# ---- what is refused
def test_a_file_that_is_there(cli, fails, config, tmp_path):
    before = config.read_bytes()
    assert 'is there already' in fails('convert-config', config, '-o', config)
    assert config.read_bytes() == before
    assert cli('convert-config', config, '-o', config, '--force').status == 0  # as its user wants it
    assert Config.fromfile(config).train_cfg.type == 'LeanTrainLoop'
    assert on_disk(tmp_path) == ['base.py', 'config.py']


def test_names_that_no_config_may_have(fails, config, tmp_path):
    assert 'has to end in .py' in fails('convert-config', config, '-o', tmp_path / 'out.json')
    (tmp_path / 'folder.py').mkdir()
    assert 'not a regular file' in fails('convert-config', config, '-o', tmp_path / 'folder.py', '--force')
    assert 'No such file' in fails('convert-config', config, '-o', tmp_path / 'nowhere' / 'out.py')


@pytest.mark.parametrize(
    'text, said',
    [
        ('a = 1 +', 'SyntaxError'),
        ('a = undefined', 'NameError'),
        ("_base_ = 'nowhere.py'", 'nowhere.py'),
        ("custom_imports = dict(imports=['no_such_module'])", 'no_such_module'),
        ("raise OSError(5, 'a disk', 'somewhere')", 'a disk'),
        ("a = float('inf')", 'cannot be written'),
        ("raise RuntimeError('two\\nlines')", 'RuntimeError: two\\nlines'),
    ],
    ids=['syntax', 'name', 'base', 'import', 'os', 'infinity', 'lines'],
)
def test_configs_that_cannot_be_converted(fails, tmp_path, text, said):
    path = tmp_path / 'bad.py'
    path.write_text(text)
    err = fails('convert-config', path, '-o', tmp_path / 'out.py')
    assert said in err and 'bad.py' in err
    assert on_disk(tmp_path) == ['bad.py']


def test_no_config_there(fails, tmp_path):
    assert 'No such file' in fails('convert-config', tmp_path / 'none.py')
    assert 'Is a directory' in fails('convert-config', tmp_path)


# ---- as a command
def test_what_a_config_prints_is_no_part_of_the_result(config):
    config.write_text(config.read_text() + "print('loading...')\n")
    running = process('convert-config', config)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert b'loading...' in err and out.startswith(b'custom_imports = ') and b'SharedCocoDataset' in out
    cfg = Config.fromstring(out.decode(), '.py')
    assert cfg.train_dataloader.collate_fn.type == 'packed_collate'


@pytest.mark.parametrize('missing', ['mmengine', 'torch'])
def test_without_the_packages_that_configs_are_for(config, missing, tmp_path):
    script = (
        'import importlib.util as util, sys\n'
        'find = util.find_spec\n'
        f'util.find_spec = lambda name, *rest: None if name == {missing!r} else find(name, *rest)\n'
        "sys.argv = ['mmshared', *sys.argv[1:]]\n"
        'from mmshared.__main__ import start\n'
        'sys.exit(start())\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', script, 'convert-config', os.fspath(config)],
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': os.fspath(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == ''
    assert re.fullmatch(f'mmshared: error: convert-config needs .*: {missing} cannot be imported\n', done.stderr)
