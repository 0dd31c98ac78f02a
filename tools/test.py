"""Test a detector: mmdet's ``tools/test.py``, also for machines without a GPU and for PyTorch >= 2.6."""

from __future__ import annotations

import argparse
from copy import deepcopy

from mmdet.engine.hooks.utils import trigger_visualization_hook
from mmdet.evaluation import DumpDetResults
from mmdet.utils import setup_cache_size_limit_of_dynamo
from mmengine.config import Config, ConfigDict

from mmshared.engine import build_runner
from mmshared.utils.arguments import add_job_arguments, load_config

_META_KEYS = ('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor', 'flip', 'flip_direction')


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description='Test a detector.')
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', metavar='FILE.pkl', help='write the predictions to this pickle file')
    parser.add_argument('--show', action='store_true', help='show the predictions in a window')
    parser.add_argument('--show-dir', metavar='DIR', help='write images with the predictions to <work dir>/<time>/DIR')
    parser.add_argument('--wait-time', type=float, default=2, metavar='SECONDS', help='how long to show each image')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    add_job_arguments(parser)
    args = parser.parse_args()
    if args.out is not None and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out {args.out}: the name must end in .pkl or .pickle')
    return args


def use_tta(cfg: Config) -> None:
    """Wrap the model and the innermost test dataset's pipeline for test-time augmentation.

    Where the config has no ``tta_model`` or ``tta_pipeline``: horizontal flips, merged by NMS.
    """
    dataset = cfg.test_dataloader.dataset
    while 'dataset' in dataset:
        dataset = dataset['dataset']
    tta_model = cfg.get('tta_model') or dict(
        type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
    )
    pipeline = cfg.get('tta_pipeline')
    if pipeline is None:
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        pack = [dict(type='PackDetInputs', meta_keys=_META_KEYS)]
        pipeline = [*deepcopy(dataset.pipeline[:-1]), dict(type='TestTimeAug', transforms=[flips, pack])]
    elif pipeline[0]['type'] == dataset.pipeline[0]['type']:
        pipeline = [deepcopy(dataset.pipeline[0]), *pipeline[1:]]  # with its backend_args: where the images are
    dataset.pipeline = pipeline
    cfg.model = ConfigDict(**tta_model, module=cfg.model)


def main() -> None:
    """Test as the command line says."""
    args = parse_args()
    setup_cache_size_limit_of_dynamo()
    cfg = load_config(args)
    cfg.load_from = args.checkpoint
    if args.show or args.show_dir:
        cfg = trigger_visualization_hook(cfg, args)
    if args.tta:
        use_tta(cfg)
    runner = build_runner(cfg)
    if args.out is not None:
        runner.test_evaluator.metrics.append(DumpDetResults(out_file_path=args.out))
    runner.test()


if __name__ == '__main__':
    main()
