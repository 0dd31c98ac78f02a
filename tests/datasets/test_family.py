"""Every dataset of the family against the one of mmdet that it stands in for, on files of its own kind."""

from __future__ import annotations

import copy
import importlib.util
import json
import pickle
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmdet import datasets as mmdet_datasets
from mmdet.registry import DATASETS
from mmengine.dataset import ClassBalancedDataset, ConcatDataset, RepeatDataset

from mmshared import datasets
from mmshared.annotations import AnnotationFileError
from mmshared.datasets import SharedAnnotations, SharedCityscapesDataset, SharedLVISV1Dataset

from .coco_text import ACCEPTED, REJECTED, dataset_options
from .family_files import LEFT_OUT, TEXTS, case, digest, lvis_options, lvis_v05, lvis_v1, shown
from .helpers import shared, stock, write
from .make_lvis_expected import FILE
from .oracle import attempt, compare_builds, compare_datasets, difference
from .results import SetShape, compare_items

NAMES = [name for name in datasets.__all__ if hasattr(mmdet_datasets, name[6:])]
WHOLE = [name for name in NAMES if getattr(datasets, name).LOADED_WHOLE]
COLUMNS = [name for name in NAMES if name not in WHOLE]
SETTINGS = settings(
    max_examples=40, deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
HAS_LVIS = importlib.util.find_spec('lvis') is not None
FILTER = {'filter_cfg': {'filter_empty_gt': True, 'min_size': 32}}


def pair(name: str) -> tuple:
    """The class of mmdet, and ours."""
    return getattr(mmdet_datasets, name[6:]), getattr(datasets, name)


def compare(name: str, content: bytes, options: dict) -> None:
    """Fail unless both classes make the same of ``content``, ours from columns."""
    theirs, own = pair(name)
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder) / 'annotations.json', Path(folder) / 'cache'
        file.write_bytes(content)
        a = attempt(lambda: theirs(ann_file=str(file), **options))
        b = attempt(lambda: own(ann_file=str(file), cache_dir=str(cache), **options))
        assert not isinstance(a, ImportError)
        assert isinstance(b, Exception) or b._samples is not None
        found = compare_builds(a, b, file)
        assert found is None, found


# ---- generated files
GENERATED = [name for name in COLUMNS if name[6:] in TEXTS and (HAS_LVIS or 'LVIS' not in name)]


@pytest.mark.parametrize('name', GENERATED)
def test_generated_files(name):
    text = TEXTS[name[6:]]

    @given(st.sets(st.sampled_from(ACCEPTED), max_size=6), st.integers(0, 2**32), dataset_options())
    @SETTINGS
    def check(features, seed, options):
        compare(name, text(features, seed % 6, seed % 13, seed).encode(), options)

    check()


@pytest.mark.parametrize('name', GENERATED)
def test_generated_files_that_are_mostly_rejected(name):
    for feature in REJECTED:
        text = TEXTS[name[6:]]({feature}, 4, 12, seed=1).encode()
        compare(name, text, {'data_prefix': {'img': 'a'}, 'serialize_data': False})


# ---- LVIS: what mmdet makes of it with the package `lvis`, kept with the script that runs it
EXPECTED = json.loads(FILE.read_text())


@pytest.mark.parametrize('name', ['LVISV05Dataset', 'LVISV1Dataset'])
def test_lvis_as_mmdet_loads_it(name, tmp_path):
    own = getattr(datasets, f'Shared{name}')
    file = write(tmp_path / 'small.json', lvis_v1() if 'V1' in name else lvis_v05())
    dataset = own(ann_file=file, cache_dir=str(tmp_path / 'cache'), **lvis_options(0))
    assert repr(shown(dataset)) == EXPECTED[name]['small']
    assert dataset._samples is not None and dataset.get_cat_ids(0) == [1, 2]
    outcomes = []
    for seed, (text_digest, expected) in enumerate(EXPECTED[name]['cases']):
        text = case(TEXTS[name], seed).encode()
        assert digest(text) == text_digest, 'the files are others: run make_lvis_expected.py where lvis is installed'
        path = tmp_path / f'{seed}.json'
        path.write_bytes(text)
        found = attempt(lambda p=path, s=seed: own(str(p), cache_dir=str(tmp_path / 'c'), **lvis_options(s)))
        assert ('rejected' if isinstance(found, Exception) else digest(shown(found))) == expected, (seed, found)
        assert not isinstance(found, Exception) or str(path) in str(found) or isinstance(found, IndexError)
        outcomes.append(expected)
    assert len(set(outcomes)) > 50 and 5 < outcomes.count('rejected') < 40


def test_lvis_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'lvis', None)
    file = write(tmp_path / 'a.json', lvis_v1())
    assert isinstance(attempt(lambda: stock(file, mmdet_datasets.LVISV1Dataset)), ImportError)
    dataset = shared(file, SharedLVISV1Dataset)
    assert dataset.get_data_info(1)['img_path'] == 'img/val2017/000000391896.jpg'


@pytest.mark.parametrize('section', ['images', 'annotations', 'categories'])
def test_lvis_needs_all_sections(section, tmp_path):
    content = lvis_v1()
    del content[section]
    with pytest.raises(AnnotationFileError, match=f'has no "{section}"'):
        shared(write(tmp_path / 'a.json', content), SharedLVISV1Dataset)


def test_images_without_a_path_are_named(tmp_path):
    content = lvis_v1()
    content['images'][1]['coco_url'] = 7
    file = write(tmp_path / 'a.json', content)
    error = attempt(lambda: shared(file, SharedLVISV1Dataset))
    assert str(error) == f"{file}: images[1] (id 391896), field 'coco_url': is 7, should be a string"
    error = attempt(lambda: shared(file))
    assert str(error) == f"{file}: images[0] (id 391895), field 'file_name': is missing"


# ---- small files of every kind
def coco_file(classes: tuple, images: int = 6) -> dict:
    """Annotations of all ``classes``, in another order, and of a category that is none; the first image has none."""
    ids = {name: 3 * i + 2 for i, name in enumerate(classes)}
    names = [*sorted(classes), 'no such class']
    return {
        'images': [
            {'id': 7 * i + 1, 'file_name': f'a/patch{i}/{i}.jpg', 'height': 20 + 10 * i, 'width': 50}
            for i in range(images)
        ],
        'annotations': [
            {
                'id': 1000 - k,
                'image_id': 7 * (1 + k % (images - 1)) + 1,
                'category_id': ids.get(names[k % len(names)], 1),
                'bbox': [1, 2.5, 10, 10 + k % 7],
                'area': 5.5,
                'iscrowd': int(k % 3 == 0),
                'segmentation': [[1, 2.5, 11, 2.5, 11, 12 + k % 7]],
            }
            for k in range(3 * len(names))
        ],
        'categories': [{'id': ids.get(name, 1), 'name': name} for name in names],
    }


def small_file(name: str, tmp_path: Path) -> tuple:
    """A file for the class, and the arguments that the class needs besides."""
    theirs, _ = pair(name)
    options: dict = {'data_prefix': {'img': 'img', 'seg': 'seg'}}
    classes = theirs.METAINFO['classes']
    if name == 'SharedV3DetDataset':
        classes = tuple(f'class {i}' for i in range(30))
        (tmp_path / 'labels.txt').write_text('\n'.join(classes))
        options.update(data_root=str(tmp_path), label_file='labels.txt')
    if 'LVIS' in name:
        return write(tmp_path / 'a.json', lvis_v1() if 'V1' in name else lvis_v05()), options
    content = coco_file(classes)
    if name == 'SharedObjects365V2Dataset':
        content['images'][2]['file_name'] = f'images/v1/{LEFT_OUT[0]}'
        content['images'][3]['file_name'] = f'images/v1/{LEFT_OUT[1]}x'
    if name == 'SharedCityscapesDataset':
        for annotation in content['annotations']:
            annotation['iscrowd'] = int(annotation['image_id'] == 15 or annotation['iscrowd'])
    return write(tmp_path / 'a.json', content), options


def build(name: str, tmp_path: Path, **more) -> list:
    """The two datasets on a small file; for LVIS without ``lvis`` twice ours, as the values are checked above."""
    file, options = small_file(name, tmp_path)
    theirs, own = pair(name)
    more = {**options, **more}
    ours = own(ann_file=file, cache_dir=str(tmp_path / 'cache'), **more)
    if 'LVIS' in name and not HAS_LVIS:
        return [own(ann_file=file, cache_dir=str(tmp_path / 'other'), **more), ours]
    found = attempt(lambda: theirs(ann_file=file, **more))
    assert isinstance(found, theirs), found
    return [found, ours]


@pytest.mark.parametrize('name', COLUMNS)
def test_small_files(name, tmp_path):
    theirs, own = pair(name)
    for more in ({}, FILTER, {**FILTER, 'test_mode': True}, {'serialize_data': False, 'indices': [2, 0]}):
        a, b = build(name, tmp_path, **more)
        assert b._samples is not None and isinstance(b, theirs) and isinstance(b, SharedAnnotations)
        assert compare_datasets(a, b) is None
        assert compare_datasets(a, pickle.loads(pickle.dumps(b))) is None
        assert compare_datasets(a, copy.deepcopy(b)) is None
        assert compare_datasets(a.get_subset(1), b.get_subset(1)) is None
    assert own.METAINFO == theirs.METAINFO and DATASETS.get(name) is own
    assert not isinstance(getattr(mmdet_datasets, name[6:]), SharedAnnotations)


@pytest.mark.parametrize('name', COLUMNS)
def test_class_texts(name, tmp_path):
    a, b = build(name, tmp_path, return_classes=True, caption_prompt={'x': {'name': 'y'}})
    assert compare_datasets(a, b) is None and 'caption_prompt' in b.get_data_info(0)


@pytest.mark.parametrize('name', COLUMNS)
def test_lists_that_stock_keeps(name, tmp_path):
    a, b = build(name, tmp_path, serialize_data=False)
    assert difference(list(a.data_list), list(b.data_list)) is None
    a, b = build(name, tmp_path)
    assert a.data_bytes.tobytes() == b.data_bytes.tobytes() and (a.data_address == b.data_address).all()


@pytest.mark.parametrize('name', COLUMNS)
@pytest.mark.parametrize('with_mask', [False, True], ids=['boxes', 'masks'])
def test_annotations_as_arrays(name, with_mask, tmp_path):
    """LoadSharedAnnotations gives what LoadAnnotations does, of categories as the class has them."""
    load = [{'type': f'mmdet.Load{kind}Annotations', 'with_mask': with_mask} for kind in ('', 'Shared')]
    a, _ = build(name, tmp_path, pipeline=[SetShape(), load[0]])
    _, b = build(name, tmp_path, pipeline=[SetShape(), load[1]])
    assert b._may_defer() and len(b)
    assert compare_items(a, b, lambda x, y: False) is None


@pytest.mark.parametrize('name', COLUMNS)
def test_wrappers(name, tmp_path):
    a, b = build(name, tmp_path, **FILTER)
    for wrap in (
        lambda d: ConcatDataset([d, d.get_subset(1)]),
        lambda d: RepeatDataset(d, 2),
        lambda d: ClassBalancedDataset(d, 0.3),
    ):
        x, y = wrap(a), wrap(b)
        assert len(x) == len(y) > 0
        infos = ([dataset.get_data_info(i) for i in range(len(dataset))] for dataset in (x, y))
        assert difference(*infos) is None


@pytest.mark.parametrize('name', COLUMNS)
def test_a_subclass_that_overrides_loading_is_loaded_as_stock_does(name, tmp_path):
    if 'LVIS' in name and not HAS_LVIS:
        pytest.skip("stock's LVIS needs the package lvis to load")
    file, options = small_file(name, tmp_path)

    def filter_data(self):
        return self.data_list[1:2]

    theirs, own = (type('Custom', (cls,), {'filter_data': filter_data}) for cls in pair(name))
    a = attempt(lambda: theirs(ann_file=file, **options))
    b = attempt(lambda: own(ann_file=file, cache_dir=str(tmp_path / 'cache'), **options))
    assert b._samples is None and compare_datasets(a, b) is None


def test_of_an_own_class_nothing_is_taken_for_known(tmp_path):
    """The mixin in front of a class that loads in a way of its own, without saying that it stands in for it."""

    class Own(mmdet_datasets.CocoDataset):
        def parse_data_info(self, raw_data_info):
            return {**super().parse_data_info(raw_data_info), 'own': 1}

    class SharedOwn(SharedAnnotations, Own):
        pass

    file = write(tmp_path / 'a.json', coco_file(('cat', 'dog')))
    a, b = stock(file, Own), shared(file, SharedOwn)
    assert b._samples is None and b.get_data_info(0)['own'] == 1 and compare_datasets(a, b) is None


# ---- what is special about one of them
def test_objects365_v1_sorts_categories(tmp_path):
    a, b = build('SharedObjects365V1Dataset', tmp_path)
    assert b.cat_ids == sorted(b.cat_ids) != shared(a.ann_file, metainfo=dict(a.metainfo)).cat_ids
    content = coco_file(('cat', 'dog'))
    content['categories'][0]['id'] = 'x'
    file = write(tmp_path / 'mixed.json', content)
    theirs, own = pair('SharedObjects365V1Dataset')
    assert isinstance(attempt(lambda: stock(file, theirs)), TypeError)
    with pytest.raises(AnnotationFileError, match='categories: their ids have no order'):
        shared(file, own)


def test_objects365_v2_leaves_images_out(tmp_path):
    a, b = build('SharedObjects365V2Dataset', tmp_path)
    assert [b.get_data_info(i)['img_id'] for i in range(len(b))] == [1, 8, 22, 29, 36]
    assert 15 in {i for ids in b.cat_img_map.values() for i in ids}  # as in stock
    assert b.get_data_info(1)['img_path'] == 'img/patch1/1.jpg'
    assert compare_datasets(a.get_subset([2, 0]), b.get_subset([2, 0])) is None


def test_cityscapes_leaves_images_of_crowds_out(tmp_path):
    a, b = build('SharedCityscapesDataset', tmp_path, **FILTER)
    images = [b.get_data_info(i)['img_id'] for i in range(len(b))]
    assert 15 not in images and images and compare_datasets(a, b) is None
    plain = shared(a.ann_file, metainfo=dict(a.metainfo), **FILTER)
    assert 15 in [plain.get_data_info(i)['img_id'] for i in range(len(plain))]
    # Both filters of one file are kept apart in the cache.
    again = shared(a.ann_file, SharedCityscapesDataset, metainfo=dict(a.metainfo), **FILTER)
    assert len(again) == len(b) < len(plain)


def test_v3det_reads_its_classes(tmp_path):
    a, b = build('SharedV3DetDataset', tmp_path)
    assert b.metainfo['classes'] == a.metainfo['classes'] and len(b.cat_ids) == 30
    a, b = build('SharedV3DetDataset', tmp_path, metainfo={'classes': ('class 3',)})
    assert len(b.cat_ids) == 1 and compare_datasets(a, b) is None


def test_aliases():
    assert DATASETS.get('SharedLVISDataset') is datasets.SharedLVISDataset is datasets.SharedLVISV05Dataset
    assert {'SharedCocoPanopticDataset', 'SharedYouTubeVISDataset', 'SharedMOTChallengeDataset'} <= set(WHOLE)
    assert issubclass(datasets.SharedLVISV1Dataset, mmdet_datasets.LVISDataset)
