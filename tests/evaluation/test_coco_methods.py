"""The methods of SharedCOCO that draw, print, decode and fetch; and how it opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Tuple

import numpy as np
import pytest
from mmdet.datasets.api_wrappers import COCO

from mmshared.annotations import AnnotationFileError, open_store
from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import small
from tests.datasets.coco_text import REJECTED, CocoText
from tests.datasets.mock_backend import fetches

from .detections import SIDE, ground_truth
from .helpers import ask, assert_same, cocos_of, stock_coco
from .test_coco_parity import compare_whole

TRUTH = ground_truth(seed=21)
MASKS = [
    [[1.5, 2, 20, 2, 20, 30]],
    [[1, 2, 20, 2, 20, 30], [30, 30, 40, 30, 40, 50.5]],
    {'size': [SIDE, SIDE], 'counts': [10, 40, 3550]},
    {'size': [SIDE, SIDE], 'counts': 'Rj01'},
    [],
    None,
    [[1, 2]],
    {'counts': [1]},
]


@pytest.fixture
def cocos() -> Iterator[Tuple[COCO, SharedCOCO]]:
    truth = json.loads(json.dumps(TRUTH))
    for record, mask in zip(truth['annotations'], MASKS):
        record['segmentation'] = mask
    truth['annotations'][len(MASKS)]['image_id'] = 'nowhere'
    with cocos_of(json.dumps(truth).encode()) as pair:
        yield pair


@pytest.mark.parametrize('method', ['annToRLE', 'annToMask'])
def test_masks(cocos, method: str) -> None:
    def ask_all(coco: COCO, i: int) -> Any:
        result = getattr(coco, method)(coco.dataset['annotations'][i])
        return result.tolist() if isinstance(result, np.ndarray) else result

    for i in range(len(TRUTH['annotations'])):
        assert_same(*cocos, ask_all, i)


def test_info_prints(cocos, capsys) -> None:
    printed = []
    for coco in cocos:
        capsys.readouterr()
        coco.info()
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == 'year: 2024\n'
    with cocos_of(b'{"images": []}') as pair:
        assert_same(*pair, ask, 'info')


def test_captions_are_shown(cocos, capsys) -> None:
    for coco in cocos:
        coco.showAnns([{'caption': 'a'}, {'caption': 'b'}])
        assert capsys.readouterr().out.endswith('a\nb\n')
        assert coco.showAnns([]) == 0
        with pytest.raises(Exception, match='datasetType not supported'):
            coco.showAnns([{}])


def test_instances_are_drawn(cocos) -> None:
    pyplot = pytest.importorskip('matplotlib.pyplot', reason='needs matplotlib')
    pyplot.switch_backend('Agg')
    pictures = []
    for coco in cocos:
        figure = pyplot.figure()
        pyplot.axis([0, SIDE, SIDE, 0])
        np.random.seed(0)
        chosen = [r for r in coco.loadAnns(coco.getAnnIds(imgIds=[2, 3])) if isinstance(r['segmentation'], list)]
        chosen = [{k: v for k, v in r.items() if k != 'keypoints'} for r in chosen if len(r['segmentation'][0]) > 4]
        assert chosen
        coco.showAnns(chosen, draw_bbox=True)
        figure.canvas.draw()
        pictures.append(np.asarray(figure.canvas.buffer_rgba()).copy())
        pyplot.close(figure)
    assert np.array_equal(*pictures) and len(np.unique(pictures[0])) > 2


def test_images_are_downloaded(tmp_path: Path) -> None:
    source = tmp_path / 'source.jpg'
    source.write_bytes(b'image')
    data = small()
    for i, image in enumerate(data['images']):
        image.update(file_name=f'{i}.jpg', coco_url=source.as_uri())
    with cocos_of(json.dumps(data).encode()) as pair:
        for name, coco in zip('ab', pair):
            coco.download(str(tmp_path / name), [7, 'x'])
            coco.download(str(tmp_path / name))
            assert sorted(p.name for p in (tmp_path / name).iterdir()) == ['0.jpg', '1.jpg', '2.jpg']
        assert_same(*pair, ask, 'download')


# ---- opening
def test_without_a_file() -> None:
    stock, ours = stock_coco(None), SharedCOCO()
    for attribute in ('dataset', 'anns', 'cats', 'imgs', 'imgToAnns', 'catToImgs', 'img_ann_map', 'cat_img_map'):
        assert_same(stock, ours, getattr, attribute)
    assert_same(stock, ours, ask, 'getAnnIds')
    ours.release()
    ours.dataset = small()
    ours.createIndex()
    assert ours.getAnnIds(imgIds=[7]) == [1, 3, 5]


def test_paths_stores_and_addresses(tmp_path: Path) -> None:
    file, cache = tmp_path / 'annotations.json', str(tmp_path / 'cache')
    file.write_text(json.dumps(TRUTH))
    store = open_store(file, cache)
    backend = {'backend_args': {'backend': 'local'}}
    for ours in (
        SharedCOCO(file, cache_dir=cache),
        SharedCOCO(str(file), cache_dir=cache, **backend),
        SharedCOCO(annotation_file=store.path),
        SharedCOCO.from_store(store),
    ):
        compare_whole(stock_coco(file), ours)


def test_a_file_that_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all of a job, though CocoDataset would refuse it."""
    file = tmp_path / 'bucket' / 'annotations.json'
    file.parent.mkdir()
    file.write_bytes(CocoText({'duplicate_annotation'}, 3, 6, 0).encode())
    monkeypatch.setenv('MOCK_FOLDER', str(tmp_path))
    for _ in range(2):
        ours = SharedCOCO('mock://bucket/annotations.json', cache_dir=str(tmp_path / 'cache'))
        compare_whole(stock_coco(file), ours)
        assert ours._table.store.violation
    assert len(fetches(tmp_path)) == 1


@pytest.mark.parametrize('feature', sorted({*REJECTED} - {'bom', 'trailing', 'list_image_id', 'list_annotations_null'}))
def test_files_that_only_mmdet_refuses(feature: str, tmp_path: Path) -> None:
    file = tmp_path / 'annotations.json'
    for seed in range(5):
        file.write_bytes(CocoText({feature}, 4, 8, seed).encode())
        compare_whole(stock_coco(file), SharedCOCO(file, cache_dir=str(tmp_path / 'cache')))


@pytest.mark.parametrize('feature', ['bom', 'trailing', 'list_image_id', 'list_annotations_null'])
def test_files_that_pycocotools_refuses(feature: str, tmp_path: Path) -> None:
    file = tmp_path / 'annotations.json'
    file.write_bytes(CocoText({feature}, 4, 8, 0).encode())
    with pytest.raises((ValueError, TypeError)):
        stock_coco(file)
    with pytest.raises(AnnotationFileError, match=str(file)):
        SharedCOCO(file, cache_dir=str(tmp_path / 'cache'))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for make in (stock_coco, SharedCOCO):
        with pytest.raises(FileNotFoundError):
            make(tmp_path / 'nothing.json')
