"""LoadSharedAnnotations against LoadAnnotations: same file and options through both, equal results or two errors."""

from __future__ import annotations

import copy
import itertools
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet.datasets import CocoDataset
from mmdet.datasets.transforms import LoadAnnotations
from mmdet.registry import TRANSFORMS
from mmdet.structures.bbox import HorizontalBoxes, register_box
from mmengine.dataset import Compose

from mmshared.annotations import AnnotationFileError
from mmshared.datasets import LoadSharedAnnotations, SharedCocoDataset
from mmshared.datasets.deferred import LazyResults

from .coco_text import ACCEPTED, CLASSES, CocoText, coco_files, dataset_options
from .helpers import REAL, content, options, shared, stock, write
from .oracle import attempt, difference
from .results import SetShape, compare_items, is_deferred, plain


@register_box('test_loading_box', force=True)
class OtherBoxes(HorizontalBoxes):
    """A box type that tells lists from arrays."""

    def __init__(self, data, *args, **kwargs):
        self.made_of = type(data).__name__
        super().__init__(data, *args, **kwargs)

    def __reduce__(self):
        return OtherBoxes, (self.tensor,)


LOADERS = st.fixed_dictionaries(
    {},
    optional={
        'with_bbox': st.booleans(),
        'with_label': st.booleans(),
        'with_mask': st.sampled_from([True, True, False]),
        'poly2mask': st.booleans(),
        'box_type': st.sampled_from(['hbox', None, 'test_loading_box']),
        'with_keypoints': st.just(True),
    },
)
OPTIONS = [
    {},
    {'with_mask': True},
    {'with_mask': True, 'poly2mask': False},
    {'box_type': None, 'with_mask': True, 'poly2mask': False},
    {'with_bbox': False, 'with_mask': True},
    {'with_label': False, 'box_type': 'test_loading_box'},
    {'with_bbox': False, 'with_label': False},
]
SETTINGS = settings(
    max_examples=80, deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)


def same_error(file: str):
    def judge(stock_error: Exception, error: Exception) -> bool:
        if isinstance(error, AnnotationFileError):
            text = str(error)
            return repr(stock_error) == "KeyError('mask')" and file in text and 'annotations[' in text
        return repr(stock_error) == repr(error)

    return judge


class Unrasterised:
    """Keeps what the parent would rasterise: pycocotools crashes on numbers out of any range, so on some files here."""

    def _load_masks(self, results):
        results['gt_masks'] = self._process_masks(results)


LOADING = LoadAnnotations, LoadSharedAnnotations
UNRASTERISED = tuple(type(cls.__name__, (Unrasterised, cls), {}) for cls in LOADING)


def check(file: str, loaders: list, cache: str, classes: tuple = LOADING, **more) -> int:
    """Fail unless both load the same of ``file`` with each of the options; returns how many samples were compared."""
    a = attempt(lambda: CocoDataset(ann_file=file, **more))
    if isinstance(a, Exception):
        return 0
    b = SharedCocoDataset(ann_file=file, cache_dir=cache, **more)
    for loader in loaders:
        for dataset, cls in zip((a, b), classes):
            dataset.pipeline = Compose([SetShape(), cls(**loader)])
        found = compare_items(a, b, same_error(file))
        assert found is None, f'{loader}: {found}'
    return len(a)


@given(coco_files(), dataset_options(), LOADERS)
@SETTINGS
def test_generated_files(file, more, loader):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'annotations.json'
        path.write_bytes(file.encode())
        check(str(path), [loader, {'with_mask': True}], folder + '/cache', UNRASTERISED, **more)


@pytest.mark.parametrize('feature', [None, *ACCEPTED])
def test_every_peculiarity_by_itself(feature, tmp_path):
    path, compared = tmp_path / 'a.json', 0
    more = {'metainfo': {'classes': CLASSES}, 'data_prefix': {'img': 'a'}, 'serialize_data': False}
    for seed in range(3):
        path.write_bytes(CocoText({feature}, 4, 24, seed).encode())
        compared += check(str(path), OPTIONS, str(tmp_path / 'cache'), UNRASTERISED, **more)
    assert compared > 3


def masked(mask, **more) -> dict:
    """An annotation of 20 x 20 pixels."""
    return {
        'id': 0,
        'image_id': 10,
        'category_id': 3,
        'bbox': [1, 2, 20, 20.5],
        'area': 9,
        'segmentation': mask,
        **more,
    }


FLOATS, INTEGERS = [0.5, 1.25, 8.75, 2.5, 4.5, 9.25], [1, 1, 9, 2, 5, 9]
MASKS = {
    'floats': [FLOATS],
    'integers': [INTEGERS],
    'mixed': [[1, 1.0, 9, 2.5, 5, 9]],
    'integers beside floats': [INTEGERS, FLOATS],
    'integers beside mixed': [INTEGERS, [1, 1.5, 9, 2, 5, 9], FLOATS, INTEGERS],
    'long and thin': [[-70000.5, 3, 70000.25, 4, 5, 6]],
    'too many digits': [[1 / 3, 2 / 3, 9.1234567, 2, 5, 9]],
    'minus zero': [[-0.0, 0.0, 9.5, 2.5, -0.0, 9]],
    'two points': [[1, 2, 3, 4]],
    'half a point': [[1, 2, 3, 4, 5, 6, 7]],
    'half a point beside a polygon': [[1, 2, 3, 4, 5, 6, 7], FLOATS],
    'no points': [[]],
    'no points beside polygons': [[], INTEGERS, [], FLOATS],
    'compressed': {'size': [480, 640], 'counts': 'eW[1`>2N2N2O0O1\\/"n'},
    'runs': {'size': [20, 30], 'counts': [100, 7, 493]},
    'no counts': {'size': [20, 30]},
    'no size': {'counts': [600]},
    'null counts': {'size': [20, 30], 'counts': None},
    'a boolean': [[True, 2, 3, 4, 5, 6]],
}


@pytest.mark.parametrize('size', [1, 2, 40])
def test_every_kind_of_mask(size, tmp_path):
    """Alone, beside another kind, and among many; beside annotations that are dropped, and crowds."""
    kinds = list(MASKS.values())
    if size > 1:
        kinds = [mask for pair in itertools.combinations(kinds, 2) for mask in pair]
    groups = [kinds[i : i + size] for i in range(0, len(kinds), size)]
    data = {**content(), 'annotations': []}
    data['images'] = [{'id': i, 'file_name': f'{i}.jpg', 'height': 20, 'width': 30} for i in range(len(groups))]
    for image, group in enumerate(groups):
        for i, mask in enumerate(group):
            extra = {'ignore': int(i % 5 == 3), 'category_id': 3 if i % 7 != 5 else 9, 'iscrowd': int(i % 4 == 2)}
            data['annotations'].append(masked(mask, id=len(data['annotations']), image_id=image, **extra))
    file = write(tmp_path / 'a.json', data)
    more = options(serialize_data=False)
    assert check(file, OPTIONS[:4], str(tmp_path / 'cache'), UNRASTERISED, **more) == len(groups)
    assert check(file, OPTIONS[1:2], str(tmp_path / 'cache'), indices=range(0, len(groups), 3), **more)


def test_no_instances(tmp_path):
    data = content(images=3)
    for annotation, flag in zip(data['annotations'], itertools.cycle([0, 1])):
        annotation['ignore'] = flag if annotation['image_id'] == 11 else 1
    assert check(write(tmp_path / 'a.json', data), OPTIONS, str(tmp_path / 'cache'), **options()) == 3


def test_boxes_of_any_size(tmp_path):
    data = content(images=2, annotations=8)
    boxes = [[1e300, 1, 2, 3], [1, 2, 1e39, 5], [0.1, 0.2, 0.7, 1e5], [-0.0, 0, 1.0, 1], [16777217, 2, 33554433, 5],
             [-5, -5, 2**50, 2**50], [-1e-7, 0.1 + 0.2, 2.3, 1e22], [0, 0, 10, 10]]  # fmt: skip
    for annotation, box in zip(data['annotations'], boxes):
        annotation.update(bbox=box, image_id=11, area=5)
    assert check(write(tmp_path / 'a.json', data), OPTIONS, str(tmp_path / 'cache'), **options()) == 2


@pytest.mark.parametrize('dtype', [torch.float16, torch.float64])
def test_other_default_dtypes(dtype, tmp_path):
    """torch makes a list numbers of its default dtype before they become float32."""
    file = write(tmp_path / 'a.json', content())
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert check(file, OPTIONS, str(tmp_path / 'cache'), **options()) == 12
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize('split', ['train', 'val'])
def test_real_images(split, tmp_path):
    folder = REAL / 'coco_tiny'
    if not folder.exists():
        pytest.skip('../shared/data/coco_tiny is missing: this test compares both on real annotations')
    source = str(folder / f'annotations/instances_{split}2017.json')
    more = {'data_prefix': {'img': 'x'}, 'serialize_data': False}
    assert check(source, OPTIONS[:4], str(tmp_path), UNRASTERISED, indices=40, **more) == 40
    assert check(source, [{'with_mask': True}], str(tmp_path), indices=10, **more) == 10


# ---- transforms before and after


def append(results):
    results['instances'].append(copy.deepcopy(results['instances'][-1]))
    return results


def change(results):
    for instance in results['instances']:
        instance['bbox'][0] -= 1
        if isinstance(instance['mask'], list):
            instance['mask'][0][0] = 77.5
        instance['bbox_label'] = 1
        instance['ignore_flag'] = 1 - instance['ignore_flag']
    return results


def replace(results):
    """As InstaBoost does."""
    results['instances'] = [dict(i, bbox=[1, 2, 3, 4]) for i in results['instances'] if i['ignore_flag'] == 0]
    return results


def keep_a_reference(results):
    results['mine'] = results['instances']
    return results


def look(results):
    assert type(results['instances']) is list
    return results


def drop(results):
    del results['instances']
    return results


def plain_dict(results):
    return {**results}


def empty(results):
    results['instances'] = []
    return results


BEFORE = [append, change, replace, keep_a_reference, look, drop, plain_dict, empty]


@pytest.fixture
def file(tmp_path):
    data = content()
    for image in data['images']:
        image.update(height=20, width=30)
    data['annotations'][7].update(segmentation=[[1, 2, 3, 4]], category_id=3, image_id=11, iscrowd=0)
    runs = {'size': [20, 30], 'counts': [100, 7, 493]}
    data['annotations'][9].update(segmentation=runs, category_id=3, image_id=11, iscrowd=0)
    return write(tmp_path / 'annotations.json', data)


def pair_of(file, *pipeline, name='Annotations', loader=None, **more):
    """Both datasets with a pipeline in which the string ``load`` stands for the transform that loads."""
    pair = []
    more.setdefault('serialize_data', False)  # stock's costs a garbage collection
    for build, cls in ((stock, LoadAnnotations), (shared, LoadSharedAnnotations)):
        transforms = [cls(**(loader or {})) if step == 'load' else step for step in pipeline]
        pair.append(build(file, pipeline=[SetShape(), *transforms], **more))
    return pair


@pytest.mark.parametrize('loader', OPTIONS[:4], ids=str)
@pytest.mark.parametrize('before', BEFORE)
def test_what_a_transform_before_did_counts(before, loader, file):
    safe = {'filter_cfg': {'filter_empty_gt': True}, 'indices': 6}
    for steps in ([before, 'load'], ['load', before], ['load', before, 'load'], [before, 'load', before]):
        if before is drop and steps.count(drop) > 1:
            continue
        a, b = pair_of(file, *steps, loader=loader, **safe)
        assert compare_items(a, b, same_error(file)) is None
        assert steps[0] != 'load' or isinstance(a[0], dict)


@pytest.mark.parametrize('loader', OPTIONS[:4], ids=str)
def test_instances_afterwards(loader, file):
    """Flags that are set because a mask is of no use can be seen in them, once, twice, and in copies."""
    steps = ['load', lambda r: copy.deepcopy(r), 'load', lambda r: pickle.loads(pickle.dumps(r)), 'load']
    a, b = pair_of(file, *steps, loader=loader)
    assert compare_items(a, b, same_error(file)) is None
    flags = [i['ignore_flag'] for index in range(len(b)) for i in b[index]['instances']]
    unusable = {'with_mask': True, 'poly2mask': False}.items() <= loader.items()
    given = [i['ignore_flag'] for index in range(len(b)) for i in b.get_data_info(index)['instances']]
    assert sum(flags) - sum(given) == (0 if 'with_mask' not in loader else 2 if unusable else 1)


def test_nobody_shares_arrays(file):
    """What one sample does to its arrays in place is not seen by copies loaded from the same deferred instances."""

    def load_twice(results):
        first, second = loader(results.copy()), loader(results)
        for value in (first['gt_bboxes'].tensor, first['gt_bboxes_labels'], first['gt_ignore_flags']):
            value[...] = 1
        first['gt_masks'].masks[0][0][...] = -1
        return second

    loader = LoadSharedAnnotations(with_mask=True, poly2mask=False)
    b = shared(file, pipeline=[SetShape(), LoadSharedAnnotations(with_bbox=False, with_label=False), load_twice])
    a = stock(file, pipeline=[SetShape(), LoadAnnotations(with_mask=True, poly2mask=False)])
    compared = 0
    for index in range(len(a)):
        if a.get_data_info(index)['instances']:
            assert difference(plain(a[index]), plain(b[index])) is None
            compared += 1
    assert compared > 5


# ---- when samples are deferred


def defers(dataset) -> bool:
    """Whether the first transform of its pipeline gets to see deferred instances."""
    seen, pipeline = [], dataset.pipeline
    dataset.pipeline = Compose([lambda results: seen.append(is_deferred(results)) or results, *pipeline.transforms])
    dataset[0]
    dataset.pipeline = pipeline
    return seen == [True]


@pytest.mark.parametrize(
    'more', [{}, {'serialize_data': False}, {'test_mode': True}, {'return_classes': True}, {'lazy_init': True}]
)
def test_deferred_where_it_helps(more, file):
    a, b = pair_of(file, 'load', **more)
    assert defers(b)
    assert compare_items(a, b, same_error(file)) is None
    assert defers(b.get_subset(4)) and defers(pickle.loads(pickle.dumps(b))) and defers(copy.deepcopy(b))
    for index in (0, -1, -len(b), np.int64(3)):
        info = b.get_data_info(index)
        assert type(info) is dict and type(info['instances']) is list
        loaded = b[index]
        assert difference(info, {key: loaded[key] for key in info}) is None
    for index in (len(b), -len(b) - 1):
        assert isinstance(attempt(lambda i=index: b[i]), IndexError)


def test_not_without_the_transform(file):
    dataset = shared(file, pipeline=[SetShape(), LoadAnnotations()])
    assert not defers(dataset) and type(dataset[0]) is dict
    dataset.pipeline = Compose([SetShape(), LoadSharedAnnotations()])
    assert defers(dataset)


def get_data_info(self, idx):
    info = super(type(self), self).get_data_info(idx)
    info['instances'] = info['instances'][:1]
    return info


def prepare_data(self, idx):
    info = self.get_data_info(idx)
    info['more'] = 1
    return self.pipeline(info)


def parse_data_info(self, raw):
    info = super(type(self), self).parse_data_info(raw)
    info['instances'] = info['instances'][1:]
    return info


@pytest.mark.parametrize('override', [get_data_info, prepare_data, parse_data_info])
@pytest.mark.parametrize('loader', OPTIONS[:4], ids=str)
def test_classes_of_ones_own(override, loader, file):
    pair = []
    for build, base, load in (
        (stock, CocoDataset, LoadAnnotations),
        (shared, SharedCocoDataset, LoadSharedAnnotations),
    ):
        cls = type('Custom', (base,), {override.__name__: override})
        pair.append(build(file, cls=cls, pipeline=[SetShape(), load(**loader)]))
    assert not defers(pair[1])
    assert compare_items(*pair, same_error(file)) is None


def test_a_method_set_on_the_instance(file):
    pair = pair_of(file, 'load')
    for dataset in pair:
        dataset.get_data_info = lambda idx, d=dataset: type(d).get_data_info(d, 0)
    assert not defers(pair[1])
    assert compare_items(*pair, same_error(file)) is None


def test_an_item_of_the_list_that_was_changed(file):
    pair = pair_of(file, 'load', serialize_data=False)
    for dataset in pair:
        dataset.data_list[3]['instances'].clear()
    assert not defers(pair[1])
    assert compare_items(*pair, same_error(file)) is None


@pytest.mark.parametrize('loader', OPTIONS, ids=str)
def test_a_dataset_that_is_not_shared(loader, file):
    pair = [stock(file, pipeline=[SetShape(), cls(**loader)]) for cls in LOADING]
    assert compare_items(*pair, lambda a, b: repr(a) == repr(b)) is None
    assert repr(LoadSharedAnnotations(**loader)) == repr(LoadAnnotations(**loader)).replace('Load', 'LoadShared', 1)


def test_semantic_maps(tmp_path, file):
    import cv2

    (tmp_path / 'seg').mkdir()
    for i in range(12):
        cv2.imwrite(str(tmp_path / 'seg' / f'{i}.png'), np.full((4, 5), i, np.uint8))
    for more in ({}, {'reduce_zero_label': True, 'ignore_index': 9}):
        pair = pair_of(
            file, 'load', loader={'with_seg': True, **more}, data_prefix={'img': 'a', 'seg': str(tmp_path / 'seg')}
        )
        assert compare_items(*pair, same_error(file)) is None
        assert pair[1][3]['gt_seg_map'].shape == (4, 5)


def test_registered():
    assert TRANSFORMS.get('LoadSharedAnnotations') is LoadSharedAnnotations
    assert TRANSFORMS.build({'type': 'mmdet.LoadSharedAnnotations', 'with_mask': True}).with_mask


# ---- errors


@pytest.mark.parametrize('mask', [None, [], {}, 'absent', 0])
@pytest.mark.parametrize('id_', [909, 'nine', 0.5])
@pytest.mark.parametrize('poly2mask', [True, False])
def test_a_missing_mask_is_named(mask, id_, poly2mask, tmp_path):
    data = content(annotations=6)
    for annotation in data['annotations']:
        annotation.update(image_id=11, category_id=3, iscrowd=0)
    data['annotations'][2]['ignore'] = 1
    record = data['annotations'][4]
    record.update(id=id_, segmentation=mask)
    if mask == 'absent':
        del record['segmentation']
    file = write(tmp_path / 'a.json', data)
    a, b = pair_of(file, 'load', loader={'with_mask': True, 'poly2mask': poly2mask}, indices=[1])
    assert repr(attempt(lambda: a[0])) == "KeyError('mask')"
    error = attempt(lambda: b[0])
    assert isinstance(error, AnnotationFileError)
    assert f"{Path(file).resolve()}: annotations[4] (id {id_!r}), field 'segmentation'" in str(error)
    assert isinstance(pair_of(file, 'load', indices=[1])[1][0], LazyResults)


def test_a_missing_mask_of_an_annotation_that_is_not_used(tmp_path):
    data = content()
    for annotation in data['annotations'][::3]:
        annotation.update(ignore=1, segmentation=[])
    pair = pair_of(write(tmp_path / 'a.json', data), 'load', loader={'with_mask': True})
    assert compare_items(*pair, lambda a, b: False) is None
