"""Run by torchrun in each rank: a tiny job that records its memory."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from mmengine.runner import Runner

from mmshared.engine import CPURunnerMixin
from tests.engine.lean_jobs import Draw, Mark, Numbers, loader, train

__all__ = ['Draw', 'Mark', 'Numbers']


class CPURunner(CPURunnerMixin, Runner):
    """Ranks talk over gloo."""


if __name__ == '__main__':
    torch.set_num_threads(1)
    for lean in (None, True):
        train(
            Path(sys.argv[1]) / ('stock' if lean is None else 'lean'),
            lean,
            runner=CPURunner,
            launcher='pytorch',
            env_cfg=dict(dist_cfg=dict(backend='gloo', timeout=120)),
            train=loader(True, size=16),
            val=loader(False, size=32),
            train_cfg=dict(max_epochs=2 if lean is None else 1),
            custom_hooks=[dict(type='NodeMemoryHook', interval=1, max_share=1e-9)],
        )
    dist.destroy_process_group()
