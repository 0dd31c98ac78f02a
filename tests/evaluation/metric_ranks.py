"""Run by torchrun in each rank: evaluations with both metrics; what came of them goes into a file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from mmengine.evaluator import Evaluator

from mmshared.evaluation import gathering

from .metric_cases import CLASSES, Case, shared_metric, stock_metric

IMAGES = 21


def case() -> Case:
    """The same in all ranks."""
    return Case({'ties', 'crowds', 'mask_scores', 'string_ids'}, 11, images=IMAGES)


def mine(samples: list) -> list:
    """What mmengine's DefaultSampler deals out to this rank: the last of 22 is the first one again."""
    padded = samples + samples[: -len(samples) % dist.get_world_size()]
    return padded[dist.get_rank() :: dist.get_world_size()]


def evaluated(metric, samples: list) -> dict:
    """Metrics, or the error."""
    evaluator = Evaluator([metric])
    try:
        evaluator.dataset_meta = {'classes': CLASSES}
        for sample in samples:
            evaluator.process([sample])
        return {'metrics': evaluator.evaluate(IMAGES)}
    except Exception as error:
        return {'error': type(error).__name__, 'text': str(error)}


def jobs(folder: Path) -> dict:
    """Every evaluation, one after the other."""
    file, report = folder / 'annotations.json', {}
    options = {'metric': ['bbox', 'segm', 'proposal'], 'classwise': True, 'proposal_nums': (2, 5, 10)}
    for device in ('cpu', 'gpu'):
        options['collect_device'] = device
        report[f'stock {device}'] = evaluated(stock_metric(file, **options), mine(case().samples))
        report[f'shared {device}'] = evaluated(shared_metric(file, folder, **options), mine(case().samples))
    del options['collect_device']
    report['no file stock'] = evaluated(stock_metric(None, **options), mine(case().samples))
    report['no file shared'] = evaluated(shared_metric(None, folder, **options), mine(case().samples))
    gathering.PIECE = 100
    report['small pieces'] = evaluated(shared_metric(file, folder, **options), mine(case().samples))
    few = case().samples[:1] if dist.get_rank() == 0 else []
    report['one image'] = evaluated(shared_metric(file, folder, **options), few)
    report['one image stock'] = evaluated(stock_metric(file, **options), few)
    report['nothing'] = evaluated(shared_metric(file, folder, **options), [])
    report.update(failures(folder, file))
    report['and still'] = evaluated(shared_metric(file, folder, **options), mine(case().samples))
    return report


def failures(folder: Path, file: Path) -> dict:
    """What goes wrong in one rank."""
    report, samples = {}, mine(case().samples)
    wrong = next(sample for sample in samples if len(sample['pred_instances']['labels']))
    if dist.get_rank() == 1:
        wrong['pred_instances'].pop('scores')
    report['bad predictions'] = evaluated(shared_metric(file, folder), samples)
    samples = mine(case().samples)
    wrong = next(sample for sample in samples if len(sample['pred_instances']['labels']))
    if dist.get_rank() == 1:
        wrong['img_id'] = 'nowhere'
    report['unknown image'] = evaluated(shared_metric(file, folder), samples)
    return report


def main(folder: Path) -> None:
    """Write the report of this rank."""
    dist.init_process_group('gloo')
    os.chdir(folder)  # stock makes a folder here
    with contextlib.redirect_stdout(io.StringIO()):
        report = jobs(folder)
    (folder / f'rank{dist.get_rank()}.json').write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == '__main__':
    main(Path(sys.argv[1]))
