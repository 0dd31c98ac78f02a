"""Run by torchrun in each rank: the tiny jobs with stock's loops and with ours; what they did goes into a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from mmengine.runner import Runner

from mmshared.engine import CPURunnerMixin
from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from tests.engine.lean_jobs import Draw, Mark, Numbers, assert_one_pool, loader, train

__all__ = ['Draw', 'Mark', 'Numbers']


class CPURunner(CPURunnerMixin, Runner):
    """Ranks talk over gloo."""


def resumed(folder: Path, by_epoch: bool) -> dict:
    """A job that was resumed after five steps, and one that was not. The seed is known to checkpoints only."""
    jobs = []
    for name in ('whole', 'more'):
        jobs.append(
            train(
                folder / name,
                'auto',
                by_epoch,
                runner=CPURunner,
                launcher='pytorch',
                env_cfg=dict(dist_cfg=dict(backend='gloo', timeout=120)),
                train=loader(True, size=16, sampler=None if by_epoch else dict(type='InfiniteSampler')),
                val=loader(False, size=8),
                randomness=dict(seed=None),
                default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=5, by_epoch=False), logger=None),
                load_from=str(folder / 'whole' / 'iter_5.pth') if jobs else None,
                resume=bool(jobs),
            )
        )
    return dict(zip(('whole', 'more'), (job.indices for job in jobs)))


def main(folder: Path) -> None:
    """Every job, one after the other."""
    torch.set_num_threads(1)
    allow_mmengine_checkpoints()
    report = {}
    for by_epoch in (True, False):
        sampler = None if by_epoch else dict(type='InfiniteSampler', shuffle=True)
        for lean in (None, True, False):
            job = train(
                folder / f'{by_epoch}-{lean}',
                lean,
                by_epoch,
                runner=CPURunner,
                launcher='pytorch',
                env_cfg=dict(dist_cfg=dict(backend='gloo', timeout=120)),
                train=loader(True, size=16, sampler=sampler),
                val=loader(False, size=8),
            )
            if lean:
                assert_one_pool(job)
            report[f'{"epochs" if by_epoch else "iterations"} {lean}'] = dict(
                training=job.training, draws=[step.draws for step in job.steps], most=job.most
            )
        report[f'{"epochs" if by_epoch else "iterations"} resumed'] = resumed(folder / f'{by_epoch}', by_epoch)
    (folder / f'rank{dist.get_rank()}.json').write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
