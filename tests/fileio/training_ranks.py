"""Run by torchrun in each rank: one small detector trained from the folder and from archives, with two datasets.

``training_ranks.py SOURCES OUT``: ``SOURCES`` is a JSON file of names and what each is read by (``data_root`` and
``backend_args``); what came of each training goes to ``OUT/RANK.json``.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, Tuple

import torch
import torch.distributed as dist
from mmengine.hub import get_config
from mmengine.runner import Runner

import mmshared  # noqa: F401  (registers what configs name)
from mmshared.engine import CPURunnerMixin

DATASETS = ('CocoDataset', 'SharedCocoDataset')
RESNET = dict(depth=18, base_channels=8, frozen_stages=-1, norm_eval=False, init_cfg=None)
FPN = dict(in_channels=[8, 16, 32, 64], out_channels=16)
MODEL = dict(backbone=RESNET, neck=FPN, bbox_head=dict(in_channels=16, feat_channels=16, stacked_convs=1))


class CPURunner(CPURunnerMixin, Runner):
    """Ranks talk over gloo."""


def dataset(kind: str, data_root: str, backend_args: Any) -> Dict[str, Any]:
    """Stock's config of COCO, with ``backend_args`` wherever it has them."""
    pipeline = [
        dict(type='LoadImageFromFile', backend_args=backend_args),
        dict(type='LoadAnnotations', with_bbox=True),
        dict(type='RandomResize', scale=(96, 64), ratio_range=(0.8, 1.2), keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PackDetInputs'),
    ]
    return dict(
        type=kind,
        data_root=data_root,
        ann_file='annotations/instances_train2017.json',
        data_prefix=dict(img='train2017/'),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=pipeline,
        backend_args=backend_args,
    )


def digest(tensors: Iterable[Tuple[str, torch.Tensor]]) -> str:
    """A hash of names and all bits."""
    result = hashlib.sha256()
    for name, tensor in tensors:
        result.update(name.encode() + tensor.detach().numpy().tobytes())
    return result.hexdigest()


def trained(folder: Path, name: str, kind: str, source: Dict[str, Any]) -> Dict[str, Any]:
    """What comes of ten iterations: all that was logged; the weights; and those with the statistics of each rank."""
    cfg = get_config('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py')
    cfg.merge_from_dict(dict(model=MODEL))
    runner = CPURunner(
        model=cfg.model,
        work_dir=str(folder / f'{kind}-{name}'),
        experiment_name=f'{folder.name}-{kind}-{name}',
        launcher='pytorch',
        env_cfg=dict(dist_cfg=dict(backend='gloo', timeout=120)),
        train_dataloader=dict(
            batch_size=2,
            num_workers=2,
            persistent_workers=True,
            sampler=dict(type='InfiniteSampler', shuffle=True),
            dataset=dataset(kind, **source),
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=10),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.005, momentum=0.9), clip_grad=dict(max_norm=10)),
        default_scope='mmdet',
        randomness=dict(seed=1),
        default_hooks=dict(checkpoint=None),
        log_level='WARNING',
    )
    runner.train()
    runner.train_loop.dataloader_iterator._iterator._shutdown_workers()
    model = runner.model
    logged = runner.message_hub.log_scalars.items()
    scalars = {key: buffer.data[0].tolist() for key, buffer in logged if 'time' not in key}
    return dict(scalars=scalars, weights=digest(model.named_parameters()), state=digest(model.state_dict().items()))


def main() -> None:
    """Every dataset from every source, one after the other."""
    torch.set_num_threads(1)
    sources, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    seen = {
        f'{kind} {name}': trained(folder, name, kind, source) for kind in DATASETS for name, source in sources.items()
    }
    (folder / f'{dist.get_rank()}.json').write_text(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
