"""Panoptic and video datasets, whose records no columns hold: loaded as stock does, and equal to stock."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import pytest
from mmdet import datasets as mmdet_datasets
from mmdet.datasets import TrackImgSampler
from mmdet.registry import DATASETS
from mmengine.dataset import ConcatDataset, RepeatDataset

from mmshared import datasets
from mmshared.annotations import AnnotationFileError
from mmshared.datasets import SharedAnnotations, SharedCocoPanopticDataset
from mmshared.datasets.once.file import MappedArray

from .helpers import content, shared, write
from .oracle import attempt, compare_datasets, difference
from .results import SetShape, compare_items

PANOPTIC = ['CocoPanopticDataset', 'ADE20KPanopticDataset']
VIDEO = ['YouTubeVISDataset', 'MOTChallengeDataset']


def panoptic_file(things: tuple, stuff: tuple) -> dict:
    """Segments that share ids between images, crowds, too small ones, an image with stuff only, one without record."""
    return {
        'images': [{'id': i, 'file_name': f'{i}.jpg', 'height': 20 + 10 * i, 'width': 50} for i in range(1, 6)],
        'annotations': [
            {
                'file_name': f'{image}.png',
                'image_id': image,
                'segments_info': [
                    {
                        'id': 5 * k + 1,
                        'category_id': 10 + (len(things) if image == 3 else (image + k * 7) % len(things + stuff)),
                        'iscrowd': int(k == 2),
                        'bbox': [1, 2.5, 10 - 10 * (k == 3), 8 + image],
                        'area': 40 * (k != 4),
                    }
                    for k in range(6)
                ],
            }
            for image in (2, 1, 3, 5)
        ],
        'categories': [
            {'id': 10 + i, 'name': name, 'isthing': int(name in things)} for i, name in enumerate(things + stuff)
        ],
    }


def video_file(classes: tuple, with_video: bool = True) -> dict:
    """Frames of three videos, mixed; some without instances, one too small."""
    frames = [(2, 0), (1, 0), (1, 1), (2, 1), (3, 0), (1, 2), (2, 2)]
    images = [
        {'id': i, 'file_name': f'v{v}/{f}.jpg', 'height': 20 if i == 3 else 60, 'width': 50, 'frame_id': f}
        for i, (v, f) in enumerate(frames)
    ]
    if with_video:
        for image, (video, _) in zip(images, frames):
            image.update(video_id=video, mot_frame_id=image['frame_id'] + 1)
    return {
        'images': images,
        'videos': [{'id': i, 'name': f'v{i}'} for i in (1, 2, 3)],
        'annotations': [
            {
                'id': 100 - k,
                'image_id': k % len(frames),
                'video_id': frames[k % len(frames)][0],
                'category_id': 1 + k % (len(classes) + 1),
                'instance_id': k // len(frames),
                'bbox': [1, 2.5, 10, 5 + k % 9],
                'area': 50.5,
                'iscrowd': int(k % 11 == 3),
                'mot_conf': 1.0,
                'visibility': 0.1 * (k % 10),
                'segmentation': [[1, 2.5, 11, 2.5, 11, 12.5 + k % 5]],
            }
            for k in range(6 * len(frames))
        ],
        'categories': [{'id': 1 + i, 'name': name} for i, name in enumerate([*classes, 'no such class'])],
    }


def options_for(name: str) -> dict:
    if name in PANOPTIC:
        return {'data_prefix': {'img': 'img', 'seg': 'seg'}}
    own = {'dataset_version': '2019'} if name == 'YouTubeVISDataset' else {'visibility_thr': 0.05}
    return {'data_prefix': {'img_path': 'img'}, **own}


def file_for(name: str, tmp_path: Path) -> str:
    if name in PANOPTIC:
        info = getattr(mmdet_datasets, name).METAINFO
        return write(
            tmp_path / 'a.json', panoptic_file(tuple(info['thing_classes'][:6]), tuple(info['stuff_classes'][:5]))
        )
    metainfo = attempt(lambda: getattr(mmdet_datasets, name)(lazy_init=True, **options_for(name))).metainfo
    return write(tmp_path / 'a.json', video_file(metainfo['classes'][:3]))


def build(name: str, tmp_path: Path, **more: Any) -> list:
    file, more = file_for(name, tmp_path), {**options_for(name), **more}
    theirs, own = getattr(mmdet_datasets, name), getattr(datasets, f'Shared{name}')
    a = attempt(lambda: theirs(ann_file=file, **more))
    b = attempt(lambda: own(ann_file=file, cache_dir=str(tmp_path / 'cache'), **more))
    assert isinstance(a, theirs) and isinstance(b, (theirs, SharedAnnotations)), (a, b)
    return [a, b]


@pytest.mark.parametrize('name', PANOPTIC + VIDEO)
@pytest.mark.parametrize('serialize', [True, False], ids=['serialized', 'list'])
@pytest.mark.parametrize(
    'more',
    [
        {},
        {'filter_cfg': {'filter_empty_gt': True, 'min_size': 32}},
        {'test_mode': True},
        {'indices': 2},
    ],
    ids=['plain', 'filter', 'test', 'indices'],
)
def test_equal_to_stock(name, serialize, more, tmp_path):
    a, b = build(name, tmp_path, serialize_data=serialize, **more)
    assert len(a) > 1 and compare_datasets(a, b) is None
    assert compare_datasets(a, pickle.loads(pickle.dumps(b))) is None
    assert compare_datasets(a, copy.deepcopy(b)) is None
    assert compare_datasets(a.get_subset([1, 0]), b.get_subset([1, 0])) is None
    own = type(b)
    assert DATASETS.get(f'Shared{name}') is own and isinstance(b, getattr(mmdet_datasets, name))


@pytest.mark.parametrize('name', PANOPTIC + VIDEO)
def test_lazily_and_in_wrappers(name, tmp_path):
    a, b = build(name, tmp_path, lazy_init=True)
    assert not hasattr(b, 'cat_ids') and b.data_list == []
    for wrap in (lambda d: RepeatDataset(d, 2), lambda d: ConcatDataset([d, d])):
        x, y = wrap(a), wrap(b)
        assert len(x) == len(y) == 2 * len(a)
        infos = ([dataset.get_data_info(i) for i in range(len(dataset))] for dataset in (x, y))
        assert difference(*infos) is None


@pytest.mark.parametrize('name', ['CocoPanopticDataset', 'MOTChallengeDataset'])
def test_their_samples_are_mapped(tmp_path, messages, name):
    _, ours = build(name, tmp_path)
    assert type(ours.data_bytes) is MappedArray and type(ours.data_address) is MappedArray
    assert 'every process' not in messages()


def test_a_store_is_of_no_use_to_them(tmp_path):
    file = write(tmp_path / 'a.json', content())
    store = tmp_path / 'a.mmstore'
    store.write_bytes(Path(shared(file)._store.path).read_bytes())
    with pytest.raises(AnnotationFileError, match='Give the JSON it was made from, because .*segments'):
        SharedCocoPanopticDataset(ann_file=str(store), **options_for('CocoPanopticDataset'))


# ---- panoptic
def test_class_texts_of_things_and_stuff(tmp_path):
    a, b = build('CocoPanopticDataset', tmp_path, return_classes=True)
    assert compare_datasets(a, b) is None and len(b.get_data_info(0)['stuff_text']) == 53


def test_panoptic_pipeline(tmp_path):
    pytest.importorskip('panopticapi', reason='LoadPanopticAnnotations needs the package panopticapi')
    (tmp_path / 'seg').mkdir()
    rng = np.random.RandomState(0)
    for i in range(1, 6):  # a segment's id is red + 256 * green + 65536 * blue
        ids = rng.randint(0, 30, (20 + 10 * i, 50))
        mmcv.imwrite(np.stack([0 * ids, 0 * ids, ids], -1).astype(np.uint8), str(tmp_path / 'seg' / f'{i}.png'))
    prefix = {'img': 'img', 'seg': str(tmp_path / 'seg')}
    pipeline = [SetShape(), {'type': 'mmdet.LoadPanopticAnnotations'}]
    a, b = build('CocoPanopticDataset', tmp_path, data_prefix=prefix, pipeline=pipeline)
    assert compare_items(a, b, lambda x, y: False) is None
    assert b[1]['gt_seg_map'].min() < 255


# ---- video
def track_pipeline(name: str) -> list:
    load = {'type': 'mmdet.LoadTrackAnnotations', 'with_mask': name == 'YouTubeVISDataset'}
    return [{'type': 'mmdet.TransformBroadcaster', 'transforms': [SetShape(), load]}, dict]


@pytest.mark.parametrize('name', VIDEO)
def test_track_pipeline(name, tmp_path):
    a, b = build(name, tmp_path, test_mode=True, pipeline=track_pipeline(name))
    assert compare_items(a, b, lambda x, y: False) is None
    assert len(b[0]['gt_instances_ids']) == b.get_len_per_video(0)


@pytest.mark.parametrize('name', VIDEO)
def test_videos_and_frames(name, tmp_path):
    a, b = build(name, tmp_path)
    assert a.num_all_imgs == b.num_all_imgs > 3
    assert a.img_ids_with_ann == b.img_ids_with_ann
    for video in range(len(a)):
        assert a.get_len_per_video(video) == b.get_len_per_video(video)
        for frame in range(a.get_len_per_video(video)):
            assert a.get_cat_ids((video, frame)) == b.get_cat_ids((video, frame))
            assert difference(a[video, frame], b[video, frame]) is None
    assert [*TrackImgSampler(a, seed=0)] == [*TrackImgSampler(b, seed=0)]


def test_frames_without_a_video(tmp_path):
    """Each is a video of its own."""
    metainfo = {'classes': ('pedestrian',)}
    file = write(tmp_path / 'a.json', video_file(metainfo['classes'], with_video=False))
    more = {'metainfo': metainfo, **options_for('MOTChallengeDataset')}
    a = attempt(lambda: mmdet_datasets.MOTChallengeDataset(ann_file=file, **more))
    b = attempt(lambda: datasets.SharedMOTChallengeDataset(ann_file=file, **more))
    assert len(b) == 7 and compare_datasets(a, b) is None


def test_versions_of_youtube_vis(tmp_path):
    for version in ('2019', '2021'):
        a, b = build('YouTubeVISDataset', tmp_path, dataset_version=version, lazy_init=True)
        assert a.metainfo == b.metainfo
    error = attempt(lambda: datasets.SharedYouTubeVISDataset('1999'))
    assert isinstance(error, NotImplementedError)
    positional = datasets.SharedYouTubeVISDataset('2019', lazy_init=True)
    assert len(positional.metainfo['classes']) == 40
