"""Train a detector: mmdet's ``tools/train.py``, also for machines without a GPU and for PyTorch >= 2.6."""

from __future__ import annotations

import argparse

from mmdet.utils import setup_cache_size_limit_of_dynamo
from mmengine.config import Config

from mmshared.engine import build_runner, has_accelerator
from mmshared.utils.arguments import add_job_arguments, load_config


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description='Train a detector.')
    parser.add_argument('config', help='config file')
    parser.add_argument('--amp', action='store_true', help='train with automatic mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate with the batch size, as the config's auto_scale_lr says",
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint or, without a value, from the latest one in the work folder',
    )
    add_job_arguments(parser)
    return parser.parse_args()


def use_amp(cfg: Config) -> None:
    """Make the config's optimizer wrapper the one for mixed precision."""
    if not has_accelerator():
        raise SystemExit('--amp: mixed precision needs an accelerator and this machine has none. Leave the option out.')
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.loss_scale = 'dynamic'


def use_auto_scale_lr(cfg: Config) -> None:
    """Switch the config's ``auto_scale_lr`` on."""
    if 'base_batch_size' not in (cfg.get('auto_scale_lr') or {}):
        raise SystemExit(
            f'--auto-scale-lr: {cfg.filename} does not say which batch size its learning rate is for. '
            'Add auto_scale_lr = dict(enable=False, base_batch_size=...).'
        )
    cfg.auto_scale_lr.enable = True


def main() -> None:
    """Train as the command line says."""
    args = parse_args()
    setup_cache_size_limit_of_dynamo()
    cfg = load_config(args)
    if args.amp:
        use_amp(cfg)
    if args.auto_scale_lr:
        use_auto_scale_lr(cfg)
    if args.resume is not None:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    build_runner(cfg).train()


if __name__ == '__main__':
    main()
