"""Distributed training without an accelerator, which MMEngine 0.10 does not foresee.

Three things stop it: ``init_dist`` calls ``torch.cuda.set_device``, the runner hands ``device_ids`` to
``DistributedDataParallel``, and SyncBN is refused on the CPU. All three are decided in two methods of the runner, so
a mixin over those leaves configs, dumped configs and checkpoints as they would be on a GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional

import torch
from mmengine.device import get_device
from mmengine.dist import init_dist, is_distributed
from mmengine.model import revert_sync_batchnorm
from mmengine.utils.dl_utils import set_multi_processing
from torch import nn


def has_accelerator() -> bool:
    """Whether MMEngine would put the model anywhere but on the CPU."""
    return get_device() != 'cpu'


@contextlib.contextmanager
def _without_set_device() -> Iterator[None]:
    """``torch.cuda.set_device`` does nothing within the block: there is no device it could select."""
    stock = torch.cuda.set_device
    torch.cuda.set_device = lambda device: None
    try:
        yield
    finally:
        torch.cuda.set_device = stock


def init_cpu_process_group(launcher: str, dist_cfg: Optional[Dict[str, Any]] = None) -> None:
    """MMEngine's ``init_dist`` on a machine without an accelerator.

    Args:
        launcher: ``'pytorch'``, ``'slurm'`` or ``'mpi'``, as for ``init_dist``.
        dist_cfg: ``env_cfg.dist_cfg`` of a config. Its ``timeout`` (seconds) and whatever else ``init_dist`` takes
            are kept; the GPU backend NCCL becomes gloo.

    Raises:
        KeyError: the launcher's environment variables are missing.
        ValueError: an unknown launcher.
    """
    kwargs = dict(dist_cfg or {})
    if kwargs.get('backend', 'nccl') == 'nccl':
        kwargs['backend'] = 'gloo'
    with _without_set_device():
        init_dist(launcher, **kwargs)


class CPURunnerMixin:
    """Put before ``Runner`` in a class's bases: the same runner, for machines without an accelerator.

    Single-process jobs run as stock. In distributed ones the processes talk over gloo, and every SyncBN layer,
    however it came into the model, becomes the BN layer with the same parameters; one log line says so.
    """

    def setup_env(self, env_cfg: Dict[str, Any]) -> None:
        """Stock's ``setup_env``, with the process group made before it asks for one."""
        if self.distributed and not is_distributed():
            # Stock sets the start method first too; init_dist would otherwise choose spawn and stock then complain.
            set_multi_processing(**env_cfg.get('mp_cfg', {}), distributed=True)
            init_cpu_process_group(self.launcher, env_cfg.get('dist_cfg'))
        super().setup_env(env_cfg)

    def wrap_model(self, model_wrapper_cfg: Optional[Dict[str, Any]], model: nn.Module) -> nn.Module:
        """Stock's ``wrap_model``, without device ids and without SyncBN."""
        if not self.distributed:
            return super().wrap_model(model_wrapper_cfg, model)
        # Stock fills in `device_ids` only where it is not given. The other two values are stock's when it has no cfg.
        wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)
        if model_wrapper_cfg is None:
            find_unused = self.cfg.get('find_unused_parameters', False)
            wrapper_cfg.update(broadcast_buffers=False, find_unused_parameters=find_unused)
        else:
            wrapper_cfg.update(model_wrapper_cfg)
        sync_bn = self.cfg.pop('sync_bn', None)
        try:
            return super().wrap_model(wrapper_cfg, self._without_sync_bn(model, sync_bn))
        finally:
            if sync_bn is not None:  # the config that is dumped and stored in checkpoints stays as given
                self.cfg.sync_bn = sync_bn

    def _without_sync_bn(self, model: nn.Module, sync_bn: Optional[str]) -> nn.Module:
        """``model`` with every SyncBN layer turned into BN, which is said in the log."""
        layers = sum('SyncBatchNorm' in type(module).__name__ for module in model.modules())
        if layers or sync_bn is not None:
            self.logger.info(
                f'SyncBN needs an accelerator and there is none: its {layers} layers in the model '
                'are ordinary BN in this run (statistics per process).'
            )
        return revert_sync_batchnorm(model)
