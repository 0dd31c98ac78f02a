"""Small files for datasets that are not COCO, and a package with a dataset of its own, written on the fly."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any, Dict

PACKAGE = '''
"""A dataset of another package: a file of its own kind, attributes that loading sets, an order drawn at random."""
import json
import os
import random
import signal
import time

import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS


class Index:
    def __init__(self, dataset, names):
        self.dataset, self.names = dataset, names

    def __eq__(self, other):
        return self.names == other.names


@DATASETS.register_module()
class ListDataset(BaseDataset):
    METAINFO = dict(dataset_type='list')
    log = None

    def __init__(self, ann_file, log=None, wait=None, scale=1, **kwargs):
        self.log, self.wait, self.scale, self.found, self.temporary = log, wait, scale, [], 'goes'
        super().__init__(ann_file=ann_file, **kwargs)
        self.after = 'set after loading'

    def load_data_list(self):
        if self.log:
            with open(self.log, 'a') as file:
                file.write(f'{os.getpid()}\\n')
        if self.wait:
            while not os.path.exists(self.wait):
                time.sleep(0.01)
        with open(self.ann_file) as file:
            records = json.load(file)
        order = list(range(len(records)))
        np.random.shuffle(order)
        data = [dict(records[i], value=records[i]['value'] * self.scale, tags={f'tag {i}', 'all'}) for i in order]
        self.found += [record['name'] for record in records]
        self._metainfo['classes'] = tuple(sorted({record['kind'] for record in records}))
        self.index = Index(self, self.found)
        self.table = np.arange(12.0).reshape(3, 4)
        self.order = order
        del self.temporary
        return data

    def filter_data(self):
        smallest = (self.filter_cfg or {}).get('smallest', 0)
        self.filtered = sum(record['value'] < smallest for record in self.data_list)
        return [record for record in self.data_list if record['value'] >= smallest]

    def get_cat_ids(self, idx):
        return [self.metainfo['classes'].index(self.get_data_info(idx)['kind'])]
'''


def xml_files(folder: Path, count: int = 9) -> Dict[str, Any]:
    """Write a VOC-like folder; return the arguments of ``XMLDataset`` for it."""
    rng = random.Random(3)
    (folder / 'Annotations').mkdir(parents=True)
    for i in range(count):
        boxes = ''.join(
            f'<object><name>{rng.choice(["cat", "dog", "bus"])}</name><difficult>{rng.randrange(2)}</difficult><bndbox>'
            f'<xmin>{x}</xmin><ymin>{x}</ymin><xmax>{x + 9 * k}</xmax><ymax>{x + 20}</ymax></bndbox></object>'
            for k, x in enumerate(rng.sample(range(1, 90), i % 4), 1)
        )
        size = f'<size><width>{100 + i}</width><height>{40 + 10 * i}</height><depth>3</depth></size>'
        (folder / 'Annotations' / f'{i}.xml').write_text(f'<annotation>{size}{boxes}</annotation>')
    (folder / 'list.txt').write_text('\n'.join(map(str, range(count))))
    return {
        'type': 'XMLDataset',
        'data_root': str(folder),
        'ann_file': 'list.txt',
        'data_prefix': {'sub_data_root': ''},
        'metainfo': {'classes': ('cat', 'dog')},
        'filter_cfg': {'filter_empty_gt': True, 'min_size': 50, 'bbox_min_size': 12},
    }


def open_images_files(folder: Path, count: int = 8) -> Dict[str, Any]:
    """Write the files of an Open Images data set; return the arguments of ``OpenImagesDataset`` for them."""
    rng = random.Random(4)
    folder.mkdir(parents=True)
    labels = [f'/m/{name}' for name in 'abcd']
    lines = ['ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,x']
    levels, metas = ['ImageID,Source,LabelName,Confidence'], []
    for i in range(count):
        for _ in range(1 + i % 3):
            x, y = round(rng.random() / 2, 4), round(rng.random() / 2, 4)
            flags = ','.join(str(rng.randrange(2)) for _ in range(5))
            lines.append(f'img{i},x,{rng.choice(labels)},1,{x},{x + 0.3},{y},{y + 0.4},{flags}')
        levels.append(f'img{i},x,{rng.choice(labels)},{rng.randrange(2)}')
        metas.append({'filename': f'some/img{i}.jpg', 'ori_shape': (100 + i, 200, 3)})
    (folder / 'boxes.csv').write_text('\n'.join(lines))
    (folder / 'levels.csv').write_text('\n'.join(levels))
    (folder / 'labels.csv').write_text('\n'.join(f'{label},name {label}' for label in labels))
    tree = {'LabelName': '/m/0', 'Subcategory': [{'LabelName': '/m/a', 'Subcategory': [{'LabelName': '/m/b'}]}]}
    (folder / 'tree.json').write_text(json.dumps(tree))
    (folder / 'metas.pkl').write_bytes(pickle.dumps(metas))
    return {
        'type': 'OpenImagesDataset',
        'data_root': str(folder),
        'ann_file': 'boxes.csv',
        'data_prefix': {'img': 'images'},
        'label_file': 'labels.csv',
        'hierarchy_file': 'tree.json',
        'meta_file': 'metas.pkl',
        'image_level_ann_file': 'levels.csv',
    }


def list_files(folder: Path, count: int = 30) -> Dict[str, Any]:
    """Write the package ``other_package`` and a file for its dataset; return the arguments for it."""
    rng = random.Random(5)
    folder.mkdir(parents=True)
    (folder / 'other_package.py').write_text(PACKAGE)
    kinds = ('x', 'y', 'z')
    records = [{'name': f'{i}', 'kind': rng.choice(kinds), 'value': rng.randrange(100)} for i in range(count)]
    (folder / 'list.json').write_text(json.dumps(records))
    return {'type': 'ListDataset', 'ann_file': str(folder / 'list.json')}
