"""``data_list``, ``data_bytes``, ``data_address`` and ``cat_img_map`` as other code reads, changes and assigns them."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from .helpers import content, shared, stock, write
from .oracle import attempt, compare_datasets, difference


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / 'annotations.json', content())


@pytest.fixture
def pair(file):
    return stock(file, serialize_data=False), shared(file, serialize_data=False)


def test_serialized_arrays_are_those_of_stock(file):
    a, b = stock(file), shared(file)
    assert a.data_list == b.data_list == []
    assert b.data_bytes.dtype == a.data_bytes.dtype and b.data_address.dtype == a.data_address.dtype
    assert b.data_address.tolist() == a.data_address.tolist()
    assert b.data_bytes.tobytes() == a.data_bytes.tobytes()
    assert b.data_bytes is b.data_bytes and b.data_bytes.flags.writeable


def test_arrays_follow_subsets(file):
    a, b = stock(file), shared(file)
    assert len(b.data_address) == 12
    for indices in (9, [4, 1, -1], 2):
        a.get_subset_(indices)
        b.get_subset_(indices)
        assert b.data_address.tolist() == a.data_address.tolist()
        assert b.data_bytes.tobytes() == a.data_bytes.tobytes()
    assert b.get_subset(1).data_address.tolist() == a.get_subset(1).data_address.tolist()


def test_assigned_arrays_are_what_counts(file):
    a, b = stock(file), shared(file)
    other = stock(file, data_prefix={'img': 'elsewhere'}, filter_cfg={'filter_empty_gt': True})
    for dataset in (a, b):
        dataset.data_bytes, dataset.data_address = other.data_bytes, other.data_address
    assert len(b) == len(a) == len(other) < 12
    assert compare_datasets(a, b) is None
    assert 'elsewhere' in b.get_data_info(0)['img_path']
    assert 'elsewhere' in copy.deepcopy(b).get_data_info(0)['img_path']
    assert 'elsewhere' in pickle.loads(pickle.dumps(b)).get_subset([1]).get_data_info(0)['img_path']


def test_one_array_assigned(file):
    """As when somebody moves the bytes to shared memory."""
    a, b = stock(file), shared(file)
    b.data_bytes = b.data_bytes.copy()
    assert compare_datasets(a, b) is None


def test_arrays_of_a_list(pair):
    for dataset in pair:
        assert isinstance(attempt(lambda d=dataset: d.data_bytes), AttributeError)
        assert not hasattr(dataset, 'data_address')


def test_list_reads_like_one(pair):
    a, b = pair
    assert a.data_list == b.data_list and b.data_list == a.data_list
    assert (b.data_list != a.data_list) is False
    assert len(b.data_list) == 12
    assert difference(list(b.data_list), a.data_list) is None
    assert difference(b.data_list[2:9:3], a.data_list[2:9:3]) is None
    assert difference(b.data_list[-12], a.data_list[-12]) is None
    assert (
        difference([x['img_id'] for x in reversed(b.data_list)], [x['img_id'] for x in reversed(a.data_list)]) is None
    )
    assert a.data_list[3] in b.data_list and b.data_list.index(a.data_list[5]) == 5
    assert difference(b.data_list + [{}], a.data_list + [{}]) is None
    assert difference([{}] + b.data_list, [{}] + a.data_list) is None
    assert b.data_list != a.data_list[:-1] and b.data_list != 5
    assert isinstance(attempt(lambda: b.data_list[12]), IndexError)
    assert isinstance(attempt(lambda: hash(b.data_list)), TypeError)
    assert b.data_list[4] is b.data_list[4]


CHANGES = {
    'item': lambda x: x[3]['instances'].pop(),
    'negative item': lambda x: x[-1].update(height=7),
    'while iterating': lambda x: [d.update(extra=d['img_id']) for d in x],
    'replace': lambda x: x.__setitem__(-2, dict(x[0], img_id='new')),
    'append': lambda x: x.append(dict(x[0])),
    'extend': lambda x: x.extend(x[:2]),
    'insert': lambda x: x.insert(0, dict(x[4])),
    'delete': lambda x: x.__delitem__(0),
    'delete slice': lambda x: x.__delitem__(slice(2, 9)),
    'assign slice': lambda x: x.__setitem__(slice(0, 3), x[5:7]),
    'pop': lambda x: x.pop(),
    'remove': lambda x: x.remove(x[2]),
    'reverse': lambda x: x.reverse(),
    'sort': lambda x: x.sort(key=lambda d: -d['img_id']),
    'clear': lambda x: x.clear(),
}


@pytest.mark.parametrize('then', ['nothing', 'deepcopy', 'pickle', 'subset', 'subset_'])
@pytest.mark.parametrize('change', CHANGES)
def test_changes_of_the_list_are_seen(change, then, pair):
    results = []
    for dataset in pair:
        CHANGES[change](dataset.data_list)
        if then == 'deepcopy':
            dataset = copy.deepcopy(dataset)
        elif then == 'pickle':
            dataset = pickle.loads(pickle.dumps(dataset))
        elif then == 'subset':
            dataset = dataset.get_subset(5)
        elif then == 'subset_':
            dataset.get_subset_(-3)
        results.append(dataset)
    a, b = results
    assert compare_datasets(a, b) is None
    assert difference(a.data_list, b.data_list[:]) is None


def test_reading_an_item_does_not_give_it_away(pair):
    for dataset in pair:
        dataset.data_list[0]
        dataset.get_data_info(0)['instances'] = 'changed'
        dataset.get_data_info(1)['instances'] = 'changed'
        assert dataset.get_data_info(0)['instances'] != 'changed' != dataset.get_data_info(1)['instances']


def test_assigned_list_is_what_counts(pair):
    other = [{'img_path': 'x', 'instances': [], 'height': 1, 'width': 2}]
    for dataset in pair:
        dataset.data_list = other
        assert len(dataset) == 1 and dataset.data_list is other
        assert dataset.get_data_info(-1) == {**other[0], 'sample_idx': 0}
        assert len(dataset.get_subset([0, 0])) == 2


def test_assigned_list_is_not_looked_at_when_serialized(file):
    for dataset in (stock(file), shared(file)):
        dataset.data_list = [{}]
        assert len(dataset) == 12 and dataset.data_list == [{}]


def test_looking_at_the_list_costs_nothing_later(pair):
    """Only items somebody holds are kept: ``get_data_info`` of the others must not fill the list up."""
    dataset = pair[1]
    assert len(dataset.data_list) == 12
    for i in range(12):
        dataset.get_data_info(i)
        dataset.get_cat_ids(i)
    assert dataset.data_list.untouched is not None
    assert len(pickle.dumps(dataset)) < 2**16
    assert dataset.get_subset(4).data_list.untouched is not None


@pytest.mark.parametrize('filter_cfg', [None, {}, {'filter_empty_gt': True}])
@pytest.mark.parametrize('test_mode', [True, False])
def test_category_images(tmp_path, filter_cfg, test_mode):
    """Stock's filter looks categories up in a defaultdict, which leaves an empty list for those without images."""
    data = content()
    data['annotations'] = [a for a in data['annotations'] if a['category_id'] != 5]
    file = write(tmp_path / 'annotations.json', data)
    a, b = (d(file, filter_cfg=filter_cfg, test_mode=test_mode) for d in (stock, shared))
    assert (5 in a.cat_img_map) is (filter_cfg is not None and not test_mode)
    assert a.cat_img_map == b.cat_img_map and b.cat_img_map == a.cat_img_map
    assert type(a.cat_img_map) is type(b.cat_img_map) and b.cat_img_map['unknown'] == []
    assert b.cat_img_map is b.cat_img_map
    assert len(pickle.dumps(b)) < 2**16
    assert pickle.loads(pickle.dumps(b)).cat_img_map == copy.deepcopy(b).get_subset(1).cat_img_map
    b.cat_img_map = {1: [2]}
    assert copy.deepcopy(b).cat_img_map == pickle.loads(pickle.dumps(b)).cat_img_map == {1: [2]}


def test_torch_can_use_the_arrays(file):
    import torch

    dataset = shared(file)
    dataset.data_bytes = torch.from_numpy(dataset.data_bytes).share_memory_().numpy()
    assert isinstance(dataset.data_bytes, np.ndarray) and len(dataset) == 12
    assert compare_datasets(stock(file), dataset) is None
