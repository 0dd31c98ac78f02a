"""Annotation files of the kinds that mmdet's COCO-style datasets are for."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any, Dict, List, Type

from .coco_text import ACCEPTED, REJECTED, CocoText, Lit, Pairs

CLASSES = ('person', 'car', 'rider')


def path_text(name: Any, make: Any) -> Any:
    """The value ``name`` of a file name with ``make`` done to its text; one written as raw JSON stays as it is."""
    return make(name) if type(name) is str else name


class LvisV1Text(CocoText):
    """LVIS v1: no ``file_name`` but a ``coco_url``, and lists of categories per image."""

    def _image(self, image_id: Any) -> Pairs:
        prefixes = ['http://images.cocodataset.org/'] * 3 + ['', 'x/http://images.cocodataset.org/']
        prefix = self.rng.choice(prefixes)
        url = ('coco_url', path_text(dict(super()._image(image_id))['file_name'], lambda name: prefix + name))
        has_name, has_url = self.rng.random() < 0.1, self.rng.random() < 0.97
        record = Pairs(p for p in super()._image(image_id) if p[0] != 'file_name' or has_name)
        lists = [('neg_category_ids', self.category_ids[:2]), ('not_exhaustive_category_ids', [])]
        return Pairs([*record, *([url] if has_url else []), *lists])


class LvisV05Text(CocoText):
    """LVIS v0.5: names of COCO 2014."""

    def _image(self, image_id: Any) -> Pairs:
        name = self.rng.choice([f'COCO_val2014_{self.rng.randrange(10**12):012}.jpg', 'COCO', 'a/COCO_1.jpg', None])
        return renamed(super()._image(image_id), lambda old: old if name is None else name)


LEFT_OUT = ('patch16/objects365_v2_00908726.jpg', 'patch6/objects365_v1_00320532.jpg')


class Objects365V2Text(CocoText):
    """Objects365 v2: paths in folders, some of them of images that mmdet leaves out, some almost."""

    def _image(self, image_id: Any) -> Pairs:
        before = self.rng.choice(['', 'images/v1/', '/a/', 'b/patch6/', 'x'])
        path = before + self.rng.choice(LEFT_OUT) + self.rng.choice(['', '', 'x', '.jpg'])
        keep = self.rng.random() < 0.5
        return renamed(super()._image(image_id), lambda old: old if keep else path)


class CrowdText(CocoText):
    """Cityscapes: many annotations are crowds."""

    def _flags(self) -> Pairs:
        flags = super()._flags()
        if self.rng.random() < 0.7:
            flags = Pairs([('iscrowd', 1), *(p for p in flags if p[0] != 'iscrowd')])
        return flags


def renamed(record: Pairs, make: Any) -> Pairs:
    """The image record with another ``file_name``."""
    return Pairs((key, path_text(value, make) if key == 'file_name' else value) for key, value in record)


TEXTS: Dict[str, Type[CocoText]] = {
    'CityscapesDataset': CrowdText,
    'LVISV05Dataset': LvisV05Text,
    'LVISV1Dataset': LvisV1Text,
    'Objects365V1Dataset': CocoText,
    'Objects365V2Dataset': Objects365V2Text,
}


def case(cls: Type[CocoText], seed: int) -> CocoText:
    """The ``seed``-th of a fixed series of files."""
    rng = random.Random(seed)
    features = set(rng.sample(ACCEPTED, rng.randrange(5)))
    if rng.random() < 0.15:
        features.add(rng.choice(REJECTED))
    return cls(features, rng.randrange(1, 6), rng.randrange(13), seed)


def lvis_options(seed: int) -> Dict[str, Any]:
    """Arguments of a dataset for :func:`case` ``seed``."""
    choices: List[Dict[str, Any]] = [
        {},
        {'filter_cfg': {'filter_empty_gt': True}},
        {'filter_cfg': {'min_size': 33}, 'return_classes': True},
        {'test_mode': True, 'indices': 2},
    ]
    more = {'data_prefix': {'img': 'train/', 'seg': 'seg'}, 'serialize_data': False, 'metainfo': {'classes': CLASSES}}
    return {**more, **choices[seed % len(choices)]}


def digest(value: Any) -> str:
    """Few characters that tell values of lists, dicts, strings and numbers apart (the order of keys counts)."""
    return hashlib.sha256(repr(value).encode('utf-8', 'surrogatepass')).hexdigest()[:16]


def shown(dataset: Any) -> Dict[str, Any]:
    """What a caller sees of a dataset, as plain Python."""

    def number(key: Any) -> Any:
        """Equal numbers are one key, whichever of them a dict was given first."""
        return float(key) if isinstance(key, (int, float)) else key

    images = {number(key): ids for key, ids in dataset.cat_img_map.items() if ids}
    return {
        'cat_ids': dataset.cat_ids,
        'cat2label': dataset.cat2label,
        'cat_img_map': sorted(images.items(), key=repr),
        'items': [dataset.get_data_info(i) for i in range(len(dataset))],
    }


def lvis_v1() -> Dict[str, Any]:
    """A file as LVIS v1 has them: fields, unsorted sparse category ids, one category without annotations."""
    return {
        'info': {'description': 'LVIS v1'},
        'images': [
            {
                'date_captured': '2013-11-14 17:02:52',
                'neg_category_ids': [1203, 7],
                'id': 391895 + i,
                'license': 3,
                'height': 360 + i,
                'width': 640,
                'flickr_url': f'http://farm9.staticflickr.com/{i}.jpg',
                'coco_url': f'http://images.cocodataset.org/{split}2017/{391895 + i:012}.jpg',
                'not_exhaustive_category_ids': [5] * i,
            }
            for i, split in enumerate(('train', 'val', 'train'))
        ],
        'categories': [
            {'frequency': 'c', 'synset': f's{i}.n.01', 'image_count': 1, 'id': i, 'name': f'n {i}', 'def': 'a "b"'}
            for i in (1203, 5, 7, 1)
        ],
        'annotations': [
            {
                'area': 20.5 + i,
                'id': 10 + i,
                'segmentation': [[1.5, 2.25, 11.0, 2.0, 11, 12.5 + i]],
                'image_id': image_id,
                'bbox': [1.5, 2.0, 9.5, 10.5],
                'category_id': category_id,
            }
            for i, (image_id, category_id) in enumerate([(391895, 5), (391897, 1203), (391895, 7), (391897, 5)])
        ],
    }


def lvis_v05() -> Dict[str, Any]:
    """The same as LVIS v0.5 has it: with a ``file_name`` of COCO 2014."""
    content = json.loads(json.dumps(lvis_v1()))
    for image in content['images']:
        image['file_name'] = f'COCO_val2014_{image["id"]:012}.jpg'
        del image['coco_url']
    return content


__all__ = ['LEFT_OUT', 'TEXTS', 'Lit', 'case', 'digest', 'lvis_options', 'lvis_v05', 'lvis_v1', 'shown']
