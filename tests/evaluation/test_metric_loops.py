"""SharedCocoMetric in a job: with stock's loop and the lean one, after every epoch, and what the process keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.evaluator import Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner
from mmengine.structures import InstanceData

from mmshared.evaluation import SharedCocoMetric
from tests.datasets.helpers import CLASSES, content, options, write

from .metric_cases import Case, shared_metric, stock_metric
from .metric_cases import write as write_case


class Guessing(BaseModel):
    """Predicts the same boxes in every image."""

    def forward(self, inputs=None, data_samples=None, mode='predict'):
        for sample in data_samples:
            boxes = torch.tensor([[0.0, 2.5, 20, 30], [5, 2.5, 30, 20]])
            scores, labels = torch.tensor([0.5, 0.25]), torch.tensor([0, 2])
            sample.pred_instances = InstanceData(bboxes=boxes, scores=scores, labels=labels)
        return data_samples


class Pack:
    """What PackDetInputs does, without images."""

    def __call__(self, results: dict) -> dict:
        shape = (results['height'], results['width'])
        return {'data_samples': DetDataSample(metainfo={'img_id': results['img_id'], 'ori_shape': shape})}


def validate(file: str, folder, metric, dataset: str, loop) -> dict:
    """Metrics of a validation by a runner."""
    source = {**options(), 'ann_file': file, 'pipeline': [Pack()], 'test_mode': True}
    if dataset == 'SharedCocoDataset':
        source['cache_dir'] = str(folder / 'cache')
    runner = Runner(
        model=Guessing(),
        work_dir=str(folder / 'work'),
        val_dataloader=dict(
            batch_size=3,
            num_workers=0,
            dataset=dict(type=f'mmdet.{dataset}', **source),
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        val_evaluator=Evaluator([metric]),
        val_cfg=ConfigDict(loop),
        default_scope='mmdet',
        experiment_name=f'{folder.name}-{len(list(folder.iterdir()))}',
        default_hooks=dict(logger=None, checkpoint=None),
    )
    return runner.val()


def test_in_loops(tmp_path):
    file = write(tmp_path / 'annotations.json', content())
    stock = validate(file, tmp_path, stock_metric(file), 'CocoDataset', {'type': 'ValLoop'})
    for loop in ('ValLoop', 'LeanValLoop'):
        ours = shared_metric(file, tmp_path, 'faster_coco_eval')
        assert validate(file, tmp_path, ours, 'SharedCocoDataset', {'type': loop}) == stock
    assert len(CLASSES) == 3 and stock['coco/bbox_mAP'] >= 0


@pytest.mark.parametrize('file', [True, False], ids=['file', 'no file'])
def test_epoch_after_epoch(tmp_path, file):
    """Of another dataset each time where there is no file: stock keeps the first one's ground truth."""
    cases = [Case({'crowds'}, seed, images=5) for seed in (1, 2)]
    paths = [write_case(_folder(tmp_path, i), case.content) for i, case in enumerate(cases)]
    one = shared_metric(paths[0] if file else None, tmp_path)
    for number in (0, 0, 0) if file else (0, 1, 0):
        expected, samples = stock_metric(paths[0] if file else None), cases[number].samples
        found = []
        for metric in (one, expected):
            metric.dataset_meta = {'classes': CLASSES}
            metric.process({}, samples)
            found.append(metric.evaluate(len(samples)))
        assert found[0] == found[1] and found[0]


def _folder(path, number: int):
    folder = path / str(number)
    folder.mkdir()
    return folder


GROWTH = """
import json, os, sys, torch
from mmengine.logging import MMLogger
from mmshared.evaluation import SharedCocoMetric
MMLogger.get_current_instance().setLevel('ERROR')
file, cache, images = sys.argv[1], sys.argv[2], int(sys.argv[3])
metric = SharedCocoMetric(file, cache_dir=cache)
metric.dataset_meta = {'classes': tuple(f'c{i}' for i in range(8))}
generator, private = torch.Generator().manual_seed(0), []
for _ in range(6):
    for image in range(images):
        boxes = torch.rand(30, 4, generator=generator) * 100
        boxes[:, 2:] += boxes[:, :2]
        found = dict(bboxes=boxes, scores=torch.rand(30, generator=generator), labels=torch.arange(30) % 8)
        metric.process({}, [dict(img_id=image, ori_shape=(200, 200), pred_instances=found)])
    metric.evaluate(images)
    lines = open('/proc/self/smaps_rollup').read().splitlines()
    private.append(sum(int(line.split()[1]) for line in lines if line.startswith('Private')))
files = [line.split()[-1] for line in open('/proc/self/maps') if cache in line]
os.write(3, json.dumps([private, files]).encode())
"""


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
def test_evaluations_in_a_row_do_not_grow(tmp_path, repo):
    images = 400
    boxes = [(i, k) for i in range(images) for k in range(10)]
    data = {
        'images': [{'id': i, 'file_name': '', 'height': 200, 'width': 200} for i in range(images)],
        'annotations': [
            {'id': n + 1, 'image_id': i, 'category_id': k % 8, 'bbox': [k, k, 50, 60], 'area': 3000, 'iscrowd': 0}
            for n, (i, k) in enumerate(boxes)
        ],
        'categories': [{'id': k, 'name': f'c{k}'} for k in range(8)],
    }
    file, cache = write(tmp_path / 'a.json', data), str(tmp_path / 'cache')
    reading, writing = os.pipe()
    subprocess.run(
        ['bash', '-c', f'exec 3>&{writing} "$@"', 'run', sys.executable, '-c', GROWTH, file, cache, str(images)],
        cwd=repo,
        pass_fds=[writing],
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as pipe:
        private, files = json.load(pipe)
    assert max(private[3:]) - private[1] < 3000, private  # kB; the predictions alone are 400 kB
    assert not files
    assert SharedCocoMetric(None).results.columns['box'].data == b''
