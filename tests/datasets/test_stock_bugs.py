"""Where stock has a plain bug, SharedCocoDataset is right. Each test shows the bug too, so that it notices a repair."""

from __future__ import annotations

import copy
import pickle

import pytest
from mmengine.dataset import BaseDataset
from mmengine.runner.runner import _SlicedDataset

from .helpers import content, shared, stock, write
from .oracle import attempt, difference


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / 'annotations.json', content())


def test_index_minus_len(file):
    a, b = stock(file), shared(file)
    assert isinstance(attempt(lambda: a.get_data_info(-len(a))), IndexError)
    assert difference(a.get_data_info(0), b.get_data_info(-len(b))) is None


def test_subset_of_all_samples(file):
    a, b = stock(file), shared(file)
    n = len(a)
    assert isinstance(attempt(lambda: a.get_subset(n)), AssertionError)
    assert isinstance(attempt(lambda: a.get_subset(-n)), IndexError)
    assert isinstance(attempt(lambda: a.get_subset([-n])), IndexError)
    for indices in (n, -n):
        subset = b.get_subset(indices)
        assert [subset.get_data_info(i)['img_id'] for i in range(n)] == [a.get_data_info(i)['img_id'] for i in range(n)]
        in_place = copy.deepcopy(b)
        in_place.get_subset_(indices)
        assert len(in_place) == n
    assert b.get_subset([-n]).get_data_info(0)['img_id'] == a.get_data_info(0)['img_id']
    for indices in (n + 1, -n - 1, [n], [-n - 1]):
        assert isinstance(attempt(lambda i=indices: a.get_subset(i)), AssertionError)
        assert isinstance(attempt(lambda i=indices: b.get_subset(i)), AssertionError)


def test_subset_of_nothing(file):
    a, b = stock(file).get_subset([]), shared(file).get_subset([])
    assert isinstance(attempt(lambda: pickle.loads(a.data_bytes)), Exception), 'stock: an array of float64'
    assert len(b) == 0 and isinstance(attempt(lambda: b.get_data_info(0)), IndexError)


def test_an_empty_dataset(tmp_path):
    file = write(tmp_path / 'annotations.json', {'images': [], 'annotations': [], 'categories': []})
    error = attempt(lambda: stock(file))
    assert 'need at least one array to concatenate' in str(error)
    ours = attempt(lambda: shared(file))
    assert isinstance(ours, ValueError) and file in str(ours) and '0 images' in str(ours)
    assert len(stock(file, serialize_data=False)) == len(shared(file, serialize_data=False)) == 0


@pytest.mark.parametrize('position', [0, 50])
def test_annotation_id_again_under_an_unknown_image(position, tmp_path):
    """Stock looks annotations up by id, so the last one of an id takes the place of the others, on any image."""
    data = content()
    plain = stock(write(tmp_path / 'plain.json', data), serialize_data=False)
    shown = next(a for a in data['annotations'] if a['category_id'] == 3 and a['bbox'][3] > 1)
    intruder = {**shown, 'image_id': 9999, 'bbox': [1, 1, 11.125, 11.125]}
    data['annotations'].insert(position, intruder)
    file = write(tmp_path / 'annotations.json', data)
    a, b = stock(file, serialize_data=False), shared(file, serialize_data=False)
    if position == 50:
        assert difference(a.data_list, plain.data_list), 'stock shows the box of the unknown image'
    assert difference(plain.data_list, b.data_list[:]) is None


def test_copies_made_for_subsets_do_not_share_their_attributes(file, monkeypatch):
    """Stock may keep one memo for all copies, as a default argument; then the second subset gets the first's."""
    original = BaseDataset._copy_without_annotation.__wrapped__
    monkeypatch.setattr(BaseDataset, '_copy_without_annotation', original)
    a, b = stock(file), shared(file)
    first, second = a.get_subset(3), a.get_subset(4)
    (memo,) = original.__defaults__
    assert (first.cat_ids is second.cat_ids) is isinstance(memo, dict)
    first, second = b.get_subset(3), b.get_subset(4)
    first.cat_ids.append('changed')
    assert second.cat_ids == b.cat_ids == a.cat_ids


def test_sliced_dataset_cannot_be_pickled_but_ours_can(file):
    """mmengine wraps a dataset for ``num_batch_per_epoch`` in a class that recurses for ever while it is unpickled.

    That is in mmengine, whatever dataset is inside; what can be done here is that ours travels by itself.
    """
    sliced = _SlicedDataset(shared(file), 4)
    assert isinstance(attempt(lambda: pickle.loads(pickle.dumps(sliced))), RecursionError)
    assert len(pickle.loads(pickle.dumps(sliced._dataset))) == 12
