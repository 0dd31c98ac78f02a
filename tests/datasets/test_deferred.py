"""LazyResults is the dict it stands for, whoever reads it and however, and costs the same for every image to copy."""

from __future__ import annotations

import collections
import copy
import json
import multiprocessing
import operator
import pickle
import pprint

import msgspec
import pytest
from mmcv.transforms import KeyMapper
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import default_collate

from mmshared.annotations.packing import pack_store
from mmshared.datasets import LoadSharedAnnotations
from mmshared.datasets.deferred import LazyResults, unread
from mmshared.utils.deferral import deferred_instances

from .helpers import content, shared, write
from .oracle import attempt, difference
from .results import SetShape, is_deferred, plain


@pytest.fixture
def dataset(tmp_path):
    data = content(images=4, annotations=300)
    data['annotations'][0].update(image_id=11, bbox=[1, 2, 3, float('nan')], ignore=1)  # so that image 1 is an odd one
    return shared(write(tmp_path / 'a.json', data), pipeline=[LoadSharedAnnotations()])


@pytest.fixture(params=[1, 2], ids=['odd', 'usual'])
def both(request, dataset):
    """The dict, and what stands for it."""
    lazy = dataset._samples.defer(request.param)
    lazy['sample_idx'] = request.param
    assert is_deferred(lazy)
    return dataset.get_data_info(request.param), lazy


def merged(a):
    target = {'instances': 5, 'x': 1}
    target.update(a)
    return target


def keywords(**more):
    return more


class Shown(dict):
    """A dict with other methods, filled by C."""


READS = {
    'lookup': lambda d: d['instances'],
    'missing': lambda d: d['nothing'],
    'get': lambda d: d.get('instances'),
    'get other': lambda d: (d.get('nothing'), d.get('nothing', 5), d.get('img_id')),
    'itemgetter': operator.itemgetter('img_id', 'instances'),
    'dict': dict,
    'subclass': lambda d: dict(Shown(d)),
    'ordered': lambda d: list(collections.OrderedDict(d).items()),
    'stars': lambda d: {**d},
    'keywords': lambda d: keywords(**d),
    'update': merged,
    'or': lambda d: {'x': 1} | d if hasattr(dict, '__or__') else None,
    'or, left': lambda d: dict(d | {'x': 1}) if hasattr(dict, '__or__') else None,
    'chain map': lambda d: collections.ChainMap(d)['instances'],
    'items': lambda d: list(d.items()),
    'values': lambda d: list(d.values()),
    'reversed': lambda d: list(reversed(d)),
    'keys': lambda d: [*d, *d.keys(), *map(str, d)],
    'contains': lambda d: ('instances' in d, 'nothing' in d, len(d), bool(d)),
    'comprehension': lambda d: {k: v for k, v in d.items() if k != 'img_path'},
    'pop': lambda d: (d.pop('instances'), d.pop('instances', 3)),
    'pop missing': lambda d: d.pop('nothing'),
    'popitem': lambda d: [d.popitem() for _ in range(3)],
    'setdefault': lambda d: (d.setdefault('instances', []), d.setdefault('new', 1)),
    'delete': lambda d: operator.delitem(d, 'instances'),
    'assign': lambda d: operator.setitem(d, 'instances', [1]),
    'in place': lambda d: d['instances'].append(7),
    'clear': lambda d: d.clear(),
    'json': json.dumps,
    'json, indented': lambda d: json.dumps(d, indent=1, sort_keys=True),
    'repr': repr,
    'pprint': pprint.pformat,
    'format': lambda d: '{instances}'.format_map(d),
    'msgspec, list': lambda d: msgspec.json.encode(d['instances']),
    'copy': lambda d: dict(copy.copy(d)),
    'method copy': lambda d: dict(d.copy()),
    'deepcopy': lambda d: dict(copy.deepcopy(d)),
    'pickle': lambda d: [dict(pickle.loads(pickle.dumps(d, protocol))) for protocol in range(6)],
    'collate': lambda d: dict(default_collate([{**d, 'seg_map_path': 0}])),
    'batch': lambda d: dict(type(d)({key: [d[key]] for key in d})),
}


@pytest.mark.parametrize('name', READS)
def test_read_as_a_dict(name, both):
    known, lazy = both
    results = [attempt(lambda d=d: READS[name](d)) for d in (known, lazy)]
    if isinstance(results[0], Exception):
        assert repr(results[0]) == repr(results[1]) and name.endswith('missing')
    else:
        assert difference(*results) is None
    assert difference(known, dict(lazy)) is None


def test_equality(both):
    known, lazy = both
    assert [lazy == known, known == lazy, lazy != known, known != lazy] == [True, True, False, False]
    assert lazy.copy() == lazy and lazy == copy.deepcopy(lazy)
    other = {**known, 'instances': known['instances'][1:]}
    assert lazy != other and other != lazy
    assert None not in [lazy]  # as MultiImageMixDataset asks


def test_shallow_copies_share_the_list(both):
    known, lazy = both
    copies = [lazy, lazy.copy(), copy.copy(lazy), lazy.copy().copy()]
    assert all(type(c) is LazyResults and is_deferred(c) for c in copies)
    copies[2]['instances'].pop()
    assert all(c['instances'] is copies[2]['instances'] for c in copies)
    assert len(lazy['instances']) == len(known['instances']) - 1


def test_deep_copies_share_nothing(both):
    known, lazy = both
    first, second = copy.deepcopy(lazy), copy.deepcopy(lazy)
    first['instances'][0]['bbox'].clear()
    assert second == lazy == known
    deep = copy.deepcopy([lazy.copy(), lazy.copy(), first])
    assert deep[0]['instances'] is not lazy['instances'] and deep[2] == first
    deep[2]['instances'].clear()
    assert first['instances']


def test_copies_after_one_was_read(both):
    """A copy that shares a list others have read, and may have changed, is a copy of that."""
    _, lazy = both
    other = lazy.copy()
    lazy['instances'][0]['bbox_label'] = 'changed'
    assert unread(other) is None and unread(lazy) is None
    for made in (copy.deepcopy(other), pickle.loads(pickle.dumps(other)), other.copy()):
        assert made['instances'][0]['bbox_label'] == 'changed'
    together = pickle.loads(pickle.dumps([lazy, other]))
    assert together[0]['instances'] is together[1]['instances']
    together = copy.deepcopy([lazy, other])
    assert together[0]['instances'] is together[1]['instances']


def test_an_object_twice_in_one_copy(both):
    _, lazy = both
    pair = copy.deepcopy([lazy, lazy])
    assert pair[0] is pair[1]
    pair = pickle.loads(pickle.dumps([lazy, lazy.copy()]))
    pair[0]['instances'].clear()
    assert pair[1]['instances'] == []


def test_copying_costs_the_same_for_every_image(dataset):
    """And makes no instance: what is copied can still be read as arrays."""
    few, many = (dataset._samples.defer(i) for i in (0, 2))
    assert (len(few['instances']), len(dataset.get_data_info(2)['instances'])) == (0, pytest.approx(75, abs=30))
    few = dataset._samples.defer(0)
    assert abs(len(pickle.dumps(few)) - len(pickle.dumps(many))) < 20
    for made in (copy.deepcopy(many), copy.copy(many), pickle.loads(pickle.dumps(many)), many):
        assert unread(made) is not None


def test_a_store_that_was_packed_again(tmp_path):
    target = tmp_path / 'team.mmstore'
    boxes = []
    for x in (1, 2):
        data = content(images=4, annotations=300)
        for record in data['annotations']:
            record['bbox'] = [x, 1, 20, 20]
        pack_store(write(tmp_path / 'a.json', data), target)
        lazy = shared(str(target), pipeline=[LoadSharedAnnotations()])._samples.defer(2)
        boxes.append({instance['bbox'][0] for instance in pickle.loads(pickle.dumps(lazy))['instances']})
    assert boxes == [{1}, {2}]


def _read_in_child(data, pipe):
    lazy = pickle.loads(data)
    ready = is_deferred(lazy)
    pipe.send((ready, plain(lazy), plain(LoadSharedAnnotations()(pickle.loads(data)))))


@pytest.mark.parametrize('method', ['spawn', 'fork'])
def test_in_another_process(method, dataset):
    known, lazy = dataset.get_data_info(2), dataset._samples.defer(2)
    lazy['sample_idx'] = 2
    context = multiprocessing.get_context(method)
    parent, child = context.Pipe()
    process = context.Process(target=_read_in_child, args=(pickle.dumps(lazy), child))
    process.start()
    assert parent.poll(120)
    ready, read, loaded = parent.recv()
    process.join()
    assert ready
    assert difference(plain(known), read) is None
    assert difference(plain(LoadSharedAnnotations()(known)), loaded) is None


def test_from_a_worker_to_the_loop(dataset):
    """Results that nobody packed travel as a reference, and are read in the main process."""
    loader = DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=list)
    samples = [sample for batch in loader for sample in batch]
    assert [unread(sample) is not None for sample in samples] == [True, False, True, True]  # the odd one was read
    for index, sample in enumerate(samples):
        assert difference(plain(dataset[index]), plain(sample)) is None


def test_inside_a_key_mapper(dataset):
    """It copies results into plain dicts."""
    dataset.pipeline.transforms.insert(0, SetShape())
    expected = [plain(dataset[i]) for i in range(4)]
    mapper = KeyMapper(transforms=[LoadSharedAnnotations()], mapping={'mine': 'sample_idx'}, auto_remap=True)
    dataset.pipeline.transforms[1:1] = [mapper]
    found = [dataset[i] for i in range(4)]
    assert [plain(f['instances']) for f in found] == [e['instances'] for e in expected]
    assert [plain(f['gt_bboxes']) for f in found] == [e['gt_bboxes'] for e in expected]


def test_samples_that_samplers_ask_for(dataset):
    """Their instances are made when they are read; after that, and for everybody else, samples are plain dicts."""
    with deferred_instances():
        lazy = [dataset.get_data_info(index) for index in (0, 2, -1)]
        assert all(is_deferred(sample) for sample in lazy)
        assert [sample['width'] for sample in lazy] == [dataset.get_data_info(index)['width'] for index in (0, 2, -1)]
    for index, sample in zip((0, 2, -1), lazy):
        info = dataset.get_data_info(index)
        assert type(info) is dict and difference(dict(sample), info) is None
