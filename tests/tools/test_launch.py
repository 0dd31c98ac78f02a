"""The launch tools, for real: training on two processes and on one, validation, resuming, testing."""

from __future__ import annotations

import pickle
import re
import shutil
import stat
import tarfile

import pytest
import torch


def scores(log):
    """The values of ``coco/bbox_mAP`` in a log, in order."""
    return [float(value) for value in re.findall(r'coco/bbox_mAP: ([-\d.]+)', log)]


@pytest.fixture(scope='module')
def trained(run_tool, tiny_job, tmp_path_factory, unused_port_factory):
    """Work folder and log of an epoch on two processes, started from a folder that is not the repository."""
    folder = tmp_path_factory.mktemp('trained')
    config, options = tiny_job('work')
    log = run_tool('dist_train.sh', config, 2, *options, cwd=folder, PORT=unused_port_factory())
    return folder / 'work', log


@pytest.fixture
def work_dir(trained, tmp_path):
    """A copy of the trained job's work folder, to go on in."""
    copy = tmp_path / 'work'
    shutil.copytree(trained[0], copy)
    (copy / 'last_checkpoint').write_text(str(copy / 'epoch_1.pth'))
    return copy


def test_two_processes_train_and_validate(trained):
    work, log = trained
    assert (work / 'epoch_1.pth').is_file()
    assert len(scores(log)) == 1
    assert log.count('SyncBN needs an accelerator') == 1
    assert '[1][2/2]' in log  # 8 images in batches of 2 are shared by 2 processes


def test_the_checkpoint_loads_safely_and_holds_what_a_resume_needs(trained):
    from mmshared.engine import allow_mmengine_checkpoints

    allow_mmengine_checkpoints()
    checkpoint = torch.load(trained[0] / 'epoch_1.pth')
    assert {'optimizer', 'param_schedulers', 'message_hub', 'ema_state_dict'} <= set(checkpoint)
    assert 'best_score' in checkpoint['message_hub']['runtime_info']


def test_resume_on_two_processes(run_tool, tiny_job, work_dir, unused_port_factory):
    config, options = tiny_job(work_dir, 'train_cfg.max_epochs=2')
    log = run_tool('dist_train.sh', config, 2, '--resume', *options, PORT=unused_port_factory())
    assert 'resumed epoch: 1, iter: 2' in log
    assert 'Epoch(train) [1]' not in log and 'Epoch(train) [2][2/2]' in log
    assert len(scores(log)) == 1
    state = torch.load(work_dir / 'epoch_2.pth', weights_only=False)
    assert state['meta']['iter'] == 4
    assert len(state['message_hub']['log_scalars']['train/loss'].data[0]) == 4  # the history of both runs


def test_resume_one_process_from_a_named_checkpoint(run_tool, tiny_job, work_dir, tmp_path):
    config, options = tiny_job(tmp_path / 'other', 'train_cfg.max_epochs=2')
    log = run_tool('train.py', config, '--resume', work_dir / 'epoch_1.pth', *options)
    assert 'resumed epoch: 1' in log
    assert (tmp_path / 'other' / 'epoch_2.pth').is_file()


def test_testing_on_two_processes(run_tool, tiny_job, trained, tmp_path, unused_port_factory):
    config, options = tiny_job(tmp_path / 'work')
    out = tmp_path / 'predictions.pkl'
    log = run_tool(
        'dist_test.sh', config, trained[0] / 'epoch_1.pth', 2, '--out', out, *options, PORT=unused_port_factory()
    )
    assert scores(log) == scores(trained[1])
    assert len(pickle.loads(out.read_bytes())) == 4


def test_testing_on_one_process_with_tta_and_pictures(run_tool, tiny_job, trained, tmp_path):
    config, options = tiny_job(tmp_path / 'work')
    log = run_tool('test.py', config, trained[0] / 'epoch_1.pth', '--tta', '--show-dir', 'pictures', *options)
    assert len(scores(log)) == 1
    assert len(list((tmp_path / 'work').glob('*/pictures/*'))) == 4


def test_tta_reads_the_archive_of_the_test_pipeline(run_tool, tiny_job, trained, shapes, tmp_path):
    with tarfile.open(tmp_path / 'val.tar', 'w') as archive:
        archive.add(shapes / 'val', 'packed')
    base, options = tiny_job(tmp_path / 'work', 'test_dataloader.dataset.data_prefix.img=packed/')
    config = tmp_path / 'packed.py'
    images = {'backend': 'record', 'archive': str(tmp_path / 'val.tar')}
    config.write_text(
        f'_base_ = {str(base)!r}\n'
        'tta_pipeline = [\n'
        "    dict(type='LoadImageFromFile', backend_args=None),\n"
        "    dict(type='Resize', scale=(64, 64)),\n"
        "    dict(type='TestTimeAug', transforms=[[dict(type='RandomFlip', prob=1.0)], [dict(type='PackDetInputs',\n"
        "        meta_keys=('img_id', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction'))]]),\n"
        ']\n'
        f"test_pipeline = [dict(type='LoadImageFromFile', backend_args={images!r}), dict(type='PackDetInputs')]\n"
        'test_dataloader = dict(dataset=dict(pipeline=test_pipeline))\n'
    )
    log = run_tool('test.py', config, trained[0] / 'epoch_1.pth', '--tta', *options)
    assert len(scores(log)) == 1


def test_amp_without_an_accelerator_is_refused(run_tool, tiny_job, tmp_path):
    if torch.cuda.is_available():
        pytest.skip('this machine has a GPU, where --amp works')
    config, options = tiny_job(tmp_path)
    assert '--amp: mixed precision needs an accelerator' in run_tool('train.py', config, '--amp', *options, fail=True)


@pytest.mark.parametrize(
    'script, args',
    [('dist_train.sh', ['c.py']), ('dist_test.sh', ['c.py', 'w.pth']), ('slurm_train.sh', ['part', 'name', 'c.py'])],
)
def test_too_few_arguments_show_the_usage(run_tool, script, args):
    assert 'usage: bash' in run_tool(script, *args, fail=True)


def test_a_number_of_processes_that_is_none(run_tool):
    assert "positive integer, not 'two'" in run_tool('dist_train.sh', 'c.py', 'two', fail=True)


def test_slurm_train_calls_srun_as_mmdet_does(run_tool, repo, tmp_path):
    srun = tmp_path / 'srun'  # there is no slurm here: what it would be asked to do
    srun.write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n')
    srun.chmod(srun.stat().st_mode | stat.S_IEXEC)
    log = run_tool(
        'slurm_train.sh',
        'part',
        'a job',
        'c.py',
        'work',
        '--amp',
        '--cfg-options',
        'x=[1, 2]',
        PATH=f'{tmp_path}:/usr/bin:/bin',
        GPUS='16',
        GPUS_PER_NODE='4',
        SRUN_ARGS='--qos=high --mem=1G',
        PY_ARGS='--resume',
        PYTHON='python',
    )
    words = re.findall(r'^<(.*)>$', log, re.M)
    assert words == [
        '-p',
        'part',
        '--job-name=a job',
        '--ntasks=16',
        '--cpus-per-task=5',
        '--kill-on-bad-exit=1',
        '--gres=gpu:4',
        '--ntasks-per-node=4',
        '--qos=high',
        '--mem=1G',
        'python',
        '-u',
        str(repo / 'tools' / 'train.py'),
        'c.py',
        '--work-dir=work',
        '--launcher=slurm',
        '--amp',
        '--cfg-options',
        'x=[1, 2]',
        '--resume',
    ]
