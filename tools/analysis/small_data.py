"""The training data of a config on a small generated file: as it is, and converted."""

from __future__ import annotations

import copy
import inspect
import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from mmdet.datasets import CocoDataset, V3DetDataset
from mmdet.registry import DATASETS
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.fileio import dump

from mmshared.conversion import convert

LABELS = ('one', 'two', 'three')
_IMAGES = 6


class SmallData:
    """Writes one small annotation file for each list of classes.

    Args:
        folder: where to.

    Attributes:
        proposals: a file of proposals, one for each image.
        labels, label_map: files of names of classes, as V3Det and data for grounding have them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proposals = folder / 'proposals.pkl'
        box = {'bboxes': np.array([[1.0, 2.0, 30.0, 40.0]]), 'scores': np.array([0.5])}
        self.labels = folder / 'labels.txt'
        self.labels.write_text('\n'.join(LABELS), encoding='utf-8')
        self.label_map = folder / 'label_map.json'
        self.label_map.write_text(json.dumps(dict(enumerate(LABELS))), encoding='utf-8')
        dump({image['file_name']: box for image in _images()}, self.proposals)
        self._known: Dict[Tuple[str, ...], Path] = {}
        self._compared: Dict[str, Optional[str]] = {}

    def file(self, classes: Sequence[str]) -> Path:
        """COCO JSON with these classes: six images, the last one without annotations, one object of every class."""
        key = tuple(classes)
        if key not in self._known:
            path = self.folder / f'{len(self._known)}.json'
            path.write_text(json.dumps(_document(key)), encoding='utf-8')
            self._known[key] = path
        return self._known[key]

    def known(self, text: str) -> Dict[str, Optional[str]]:
        """Results of comparisons, by the text of what was compared: many configs have the same training data."""
        return self._compared


def compare(cfg: Config, data: SmallData) -> Optional[str]:
    """Build the training data of a stock config, and those of the converted one; says what is wrong, else None.

    Datasets that read COCO files read a generated one. Others are only constructed.
    """
    stock = ConfigDict(dataset=copy.deepcopy(cfg.train_dataloader.dataset))
    _use(stock, data)
    text = str(stock)
    known = data.known(text)
    if text not in known:
        known[text] = _compare(stock)
    return known[text]


def _compare(stock: ConfigDict) -> Optional[str]:
    shared = Config(copy.deepcopy(dict(stock)))
    convert(shared)
    try:
        built = DATASETS.build(shared.dataset)
    except Exception as error:
        try:
            DATASETS.build(stock.dataset)
        except Exception as theirs:
            if type(theirs) is type(error) and str(theirs) == str(error):
                return f'nor are they without converting: {type(error).__name__}: {error}'
        return f'though they are without converting: {type(error).__name__}: {error}'
    try:
        original = DATASETS.build(stock.dataset)
    except ImportError:  # lvis, which only the stock dataset needs
        return None
    return _difference(original, built)


def _difference(stock: Any, shared: Any) -> Optional[str]:
    pairs = list(zip(leaves(stock), leaves(shared)))
    if any(not one._fully_initialized for one, _ in pairs):
        return None
    if len(stock) != len(shared):
        return f'{len(shared)} samples instead of {len(stock)}'
    for one, other in pairs:
        if len(one) != len(other):
            return f'{len(other)} samples instead of {len(one)}'
        for i in range(len(one)):
            if not equal(one.get_data_info(i), other.get_data_info(i)):
                return f'sample {i} of {type(other).__name__} is not that of {type(one).__name__}'
    return None


def equal(one: Any, other: Any) -> bool:
    """Whether two data infos are equal: dicts, lists, arrays and plain values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and one == other


def leaves(dataset: Any) -> Iterator[BaseDataset]:
    """The datasets inside of wrappers."""
    if isinstance(dataset, BaseDataset):
        yield dataset
        return
    for inner in getattr(dataset, 'datasets', None) or [dataset.dataset]:
        yield from leaves(inner)


def _use(node: Any, data: SmallData) -> bool:
    """Have every dataset that reads COCO files read a generated one, and every other one wait, with what it is in.

    Returns:
        Whether none has to wait.
    """
    if not isinstance(node, (dict, list, tuple)):
        return True
    children = list(node.values()) if isinstance(node, dict) else node
    kind = DATASETS.get(node['type']) if isinstance(node, dict) and isinstance(node.get('type'), str) else None
    if _reads_coco(kind) and 'ann_file' in node:
        _use_file(node, kind, data)
        return True
    ready = [_use(child, data) for child in children]
    if not inspect.isclass(kind):
        return all(ready)
    if 'label_map_file' in node:
        node.update(data_root=str(data.folder), label_map_file=data.label_map.name)
    if issubclass(kind, BaseDataset) or not all(ready) and 'lazy_init' in inspect.signature(kind).parameters:
        node['lazy_init'] = True
    return not issubclass(kind, BaseDataset) and all(ready)


def _reads_coco(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, CocoDataset)


def _use_file(node: Dict[str, Any], kind: type, data: SmallData) -> None:
    classes = (node.get('metainfo') or {}).get('classes') or kind.METAINFO['classes']
    if issubclass(kind, V3DetDataset):
        node['label_file'] = data.labels.name
    node.update(data_root=str(data.folder), ann_file=data.file(classes or LABELS).name)
    if node.get('proposal_file'):
        node['proposal_file'] = data.proposals.name


def _images() -> List[Dict[str, Any]]:
    return [
        {
            'id': 10 - i,
            'file_name': f'folder/image_{i}.jpg',
            'coco_url': f'http://images.cocodataset.org/train2017/{i:012d}.jpg',
            'height': 480 + i,
            'width': 640,
            'neg_category_ids': [],
            'not_exhaustive_category_ids': [],
        }
        for i in range(_IMAGES)
    ]


def _document(classes: Sequence[str]) -> Dict[str, List[Dict[str, Any]]]:
    """Records with all the fields that mmdet's datasets ask for: LVIS's, too."""
    images = _images()
    annotations = []
    for number in range(max(len(classes), 3 * (_IMAGES - 1))):
        x, y = 10.5 + number % 300, 20.25 + number % 200
        annotations.append(
            {
                'id': number + 1,
                'image_id': images[number % (_IMAGES - 1)]['id'],
                'category_id': number % len(classes) + 1,
                'bbox': [x, y, 60.75, 50.5],
                'area': 60.75 * 50.5,
                'iscrowd': int(number % 7 == 6),
                'segmentation': [[x, y, x + 60.75, y, x + 60.75, y + 50.5, x, y + 50.5]],
            }
        )
    # Not in the order of their ids: Objects365 sorts them itself, and others take them as they come.
    categories = [{'id': number, 'name': name} for number, name in enumerate(classes, 1)][::-1]
    return {'images': images, 'annotations': annotations, 'categories': categories}
