"""Stock's panoptic metric and ours on the same pictures; run as a script, alone or by torchrun.

A process of its own, since ``panopticapi`` must be there (or be stood in for) before mmdet's metrics are imported.
Prints a JSON line: what stock gives, what ours gives.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

from tests.evaluation.panopticapi_stand_in import install

install()

import mmcv  # noqa: E402
import torch  # noqa: E402
from mmdet.evaluation.metrics import CocoPanopticMetric  # noqa: E402
from mmdet.structures.mask import encode_mask_results  # noqa: E402, F401  (what it imports takes part in the memory)
from mmengine.structures import PixelData  # noqa: E402

from mmshared.evaluation import SharedCocoPanopticMetric  # noqa: E402

CATEGORIES = [
    {'id': 8, 'name': 'sky', 'isthing': 0},
    {'id': 3, 'name': 'dog', 'isthing': 1},
    {'id': 5, 'name': 'cat', 'isthing': 1},
]
META = {'classes': ('sky', 'dog', 'cat'), 'thing_classes': ('dog', 'cat'), 'stuff_classes': ('sky',)}
SIDE, OFFSET = 24, 1000


def make_data(folder: Path, images: int) -> List[dict]:
    """Write pictures and ``panoptic.json``, once; the samples that a model hands to ``process``."""
    rng = random.Random(7)
    content: Dict[str, Any] = {'images': [], 'annotations': [], 'categories': CATEGORIES}
    samples = []
    for number in range(1, images + 1):
        image_id, name = 10 * number, f'{number:03d}'
        truth, segments = np.zeros((SIDE, SIDE), np.int32), []
        predicted = np.full((1, SIDE, SIDE), len(META['classes']), np.int64)
        for k in range(rng.randrange(1, 6)):
            label, left, top = rng.randrange(3), rng.randrange(16), rng.randrange(16)
            truth[top : top + 8, left : left + 8] = 300 * number + k + 1
            segments.append({'id': 300 * number + k + 1, 'label': label, 'iscrowd': int(rng.random() < 0.2)})
            shift, found = rng.randrange(-2, 3), label if rng.random() < 0.8 else rng.randrange(3)
            predicted[0, top : top + 8, max(left + shift, 0) : left + shift + 8] = found + OFFSET * (k + 1)
        segments = [s for s in segments if (truth == s['id']).any()]
        content['images'].append({'id': image_id, 'file_name': f'{name}.jpg', 'height': SIDE, 'width': SIDE})
        content['annotations'].append(
            {
                'image_id': image_id,
                'file_name': f'{name}.png',
                'segments_info': [
                    {
                        'id': s['id'],
                        'category_id': CATEGORIES[s['label']]['id'],
                        'iscrowd': s['iscrowd'],
                        'area': int((truth == s['id']).sum()),
                        'bbox': [0, 0, 1, 1],
                    }
                    for s in segments
                ],
            }
        )
        if int(os.environ.get('RANK', '0')) == 0:
            colors = np.stack([truth >> shift & 255 for shift in (16, 8, 0)], axis=-1).astype(np.uint8)
            mmcv.imwrite(colors, str(folder / f'{name}.png'))
        samples.append(
            {
                'img_id': image_id,
                'img_path': f'{name}.jpg',
                'seg_map_path': str(folder / f'{name}.png'),
                'ori_shape': (SIDE, SIDE),
                'pred_panoptic_seg': PixelData(sem_seg=torch.from_numpy(predicted)).to_dict(),
                'segments_info': [
                    {
                        'id': s['id'],
                        'category': s['label'],
                        'is_thing': META['classes'][s['label']] != 'sky' and not s['iscrowd'],
                    }
                    for s in segments
                ],
            }
        )
    if int(os.environ.get('RANK', '0')) == 0:
        (folder / 'panoptic.json').write_text(json.dumps(content))
    return samples


def run(metric: Any, samples: List[dict], size: int) -> Any:
    """The metrics, or the error."""
    metric.dataset_meta = META
    try:
        for start in range(0, len(samples), 2):
            metric.process({}, copy.deepcopy(samples[start : start + 2]))
        return metric.evaluate(size)
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def main(folder: Path, images: int, options: Dict[str, Any]) -> None:
    """Run both on this rank's share, padded as mmengine's sampler does it."""
    distributed = 'RANK' in os.environ
    if distributed:
        torch.distributed.init_process_group('gloo')
    rank, world = int(os.environ.get('RANK', '0')), int(os.environ.get('WORLD_SIZE', '1'))
    samples = make_data(folder, images)
    if distributed:
        torch.distributed.barrier()
    mine = [samples[i % images] for i in range(rank, -(-images // world) * world, world)]
    if options.pop('bad', None) == rank:
        mine[0] = {**mine[0], 'img_path': 'nowhere.jpg'}
    if options.pop('file', True):
        options['ann_file'] = str(folder / 'panoptic.json')
    results = {}
    for name, kind in (('stock', CocoPanopticMetric), ('ours', SharedCocoPanopticMetric)):
        own = {'cache_dir': str(folder / 'cache')} if name == 'ours' else {}
        if 'outfile_prefix' in options:
            own['outfile_prefix'] = str(folder / name / 'r')
        if name == 'stock' and distributed and options.get('only_ours'):
            continue
        kept = {key: value for key, value in options.items() if key != 'only_ours'}
        results[name] = run(kind(seg_prefix=str(folder), **{**kept, **own}), mine, images)
    sys.stdout.write(f'RESULT {rank} {json.dumps(results)}\n')
    sys.stdout.flush()


if __name__ == '__main__':
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
