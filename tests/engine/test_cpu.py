"""The CPU runner: process groups of every launcher, DDP without device ids, BN for SyncBN."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as torch_dist
from mmengine.config import Config
from mmengine.dist import get_rank, get_world_size
from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS, MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from mmshared.engine import CPURunnerMixin, build_runner, has_accelerator, init_cpu_process_group, launch

pytestmark = pytest.mark.skipif(has_accelerator(), reason='this machine has an accelerator: nothing to adapt')


class Net(BaseModel):
    def __init__(self, norm=nn.SyncBatchNorm):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = norm(4)

    def forward(self, inputs, mode='tensor'):
        return self.norm(self.conv(inputs))


@pytest.fixture
def launched(monkeypatch, unused_port):
    """The environment that a launcher gives to the only process of its job; its process group ends with the test."""
    environment = dict(
        pytorch=dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1),
        slurm=dict(SLURM_PROCID=0, SLURM_LOCALID=0, SLURM_NTASKS=1, SLURM_NODELIST='localhost'),
        mpi=dict(OMPI_COMM_WORLD_LOCAL_RANK=0, OMPI_COMM_WORLD_SIZE=1, OMPI_COMM_WORLD_RANK=0, LOCAL_RANK=0),
    )

    def launch_as(launcher):
        place = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=unused_port)
        for name, value in {**environment[launcher], **place}.items():
            monkeypatch.setenv(name, str(value))
        # MMEngine sets these itself: known to monkeypatch, they are put back.
        for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
            if name not in environment[launcher]:
                monkeypatch.setenv(name, '0')
                if not name.endswith('THREADS'):
                    monkeypatch.delenv(name)

    yield launch_as
    if torch_dist.is_initialized():
        torch_dist.destroy_process_group()


def make_runner(tmp_path, model, launcher='pytorch', **cfg):
    return type('CPURunner', (CPURunnerMixin, Runner), {})(
        model=model,
        work_dir=str(tmp_path),
        launcher=launcher,
        experiment_name=tmp_path.name,
        cfg=cfg,
        env_cfg=dict(dist_cfg=dict(backend='nccl', timeout=60)),
    )


@pytest.mark.parametrize('launcher', ['pytorch', 'slurm', 'mpi'])
def test_a_process_group_for_every_launcher(launched, launcher):
    launched(launcher)
    set_device = torch.cuda.set_device
    init_cpu_process_group(launcher, dict(backend='nccl', timeout=60))
    assert torch_dist.get_backend() == 'gloo'
    assert (get_rank(), get_world_size()) == (0, 1)
    assert torch.cuda.set_device is set_device


def test_an_unknown_launcher_is_an_error_and_set_device_is_put_back():
    set_device = torch.cuda.set_device
    with pytest.raises(ValueError, match='carrier pigeon'):
        init_cpu_process_group('carrier pigeon')
    assert torch.cuda.set_device is set_device


def test_sync_bn_becomes_bn_with_one_line_that_says_so(launched, tmp_path):
    launched('pytorch')
    runner = make_runner(tmp_path, Net(), sync_bn='torch')
    assert isinstance(runner.model, MMDistributedDataParallel)
    assert type(runner.model.module.norm).__name__ != 'SyncBatchNorm'
    assert runner.model.module.norm(torch.rand(2, 4, 3, 3)).shape == (2, 4, 3, 3)
    assert runner.cfg.sync_bn == 'torch'
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert log.count('SyncBN needs an accelerator') == 1


def test_a_model_without_sync_bn_is_not_mentioned(launched, tmp_path):
    launched('pytorch')
    make_runner(tmp_path, Net(nn.BatchNorm2d))
    assert 'SyncBN needs' not in next(tmp_path.glob('*/*.log')).read_text()


def test_a_wrapper_of_the_config_is_kept(launched, tmp_path):
    class MyWrapper(MMDistributedDataParallel):
        pass

    launched('pytorch')
    MODEL_WRAPPERS.register_module(module=MyWrapper, force=True)
    runner = make_runner(tmp_path, Net(), model_wrapper_cfg=dict(type='MyWrapper', find_unused_parameters=True))
    assert type(runner.model) is MyWrapper
    assert runner.model.find_unused_parameters is True
    assert runner.model.device_ids is None
    assert runner.cfg.model_wrapper_cfg == dict(type='MyWrapper', find_unused_parameters=True)


def test_find_unused_parameters_of_the_config(launched, tmp_path):
    launched('pytorch')
    assert make_runner(tmp_path, Net(), find_unused_parameters=True).model.find_unused_parameters is True


def test_a_job_of_one_process_is_stock(tmp_path):
    runner = make_runner(tmp_path, Net(), launcher='none')
    assert isinstance(runner.model, Net)
    assert not torch_dist.is_initialized()


def test_a_registered_runner_is_adapted_too(tmp_path):
    class MyRunner(Runner):
        pass

    RUNNERS.register_module(module=MyRunner, force=True)
    MODELS.register_module(module=Net, force=True)
    cfg = Config(
        dict(runner_type='MyRunner', model=dict(type='Net'), work_dir=str(tmp_path), experiment_name=tmp_path.name)
    )
    runner = build_runner(cfg)
    assert isinstance(runner, MyRunner) and isinstance(runner, CPURunnerMixin)


def test_an_unknown_runner_is_named():
    with pytest.raises(KeyError, match='NoSuchRunner'):
        launch.runner_class(Config(dict(runner_type='NoSuchRunner')))


def test_with_an_accelerator_the_runner_is_stock(monkeypatch):
    monkeypatch.setattr(launch, 'has_accelerator', lambda: True)
    assert launch.runner_class(Config({})) is Runner
