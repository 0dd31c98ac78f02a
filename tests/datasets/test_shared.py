"""SharedDataset against the dataset it shares, in one process: who loads has the same as who takes over."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from mmdet.datasets import ConcatDataset as DetConcatDataset
from mmdet.datasets import MultiImageMixDataset, OpenImagesDataset, XMLDataset
from mmdet.registry import DATASETS, TRANSFORMS
from mmengine.config import ConfigDict
from mmengine.dataset import BaseDataset, ClassBalancedDataset, ConcatDataset, RepeatDataset
from mmengine.registry import init_default_scope
from torch.utils.data import DataLoader

from mmshared.datasets import SharedCocoDataset, SharedDataset

from .helpers import content, stock, write
from .oracle import attempt
from .other_datasets import list_files, open_images_files, xml_files
from .shared_pairs import build, import_other, sharing, unlike, unlike_datasets

FILES = {'xml': xml_files, 'open images': open_images_files, 'list': list_files}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    init_default_scope('mmdet')  # what wrappers of MMEngine, and every runner, look for types in
    return tmp_path / 'cache'


@pytest.fixture(params=FILES)
def config(request, tmp_path, monkeypatch):
    config = FILES[request.param](tmp_path / 'files')
    if request.param == 'list':
        import_other(tmp_path / 'files', monkeypatch)
    return config


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Arguments of the other package's dataset, which logs who loads it."""
    config = list_files(tmp_path / 'files')
    import_other(tmp_path / 'files', monkeypatch)
    return {**config, 'log': str(tmp_path / 'log')}


def loads(config):
    with open(config['log']) as file:
        return len(file.read().split())


def collate(batch):
    return batch


OPTIONS = {
    'plain': {},
    'list': {'serialize_data': False},
    'test': {'test_mode': True, 'filter_cfg': None},
    'first': {'indices': 4},
    'some': {'indices': [3, 1, 1], 'serialize_data': False},
    'lazy': {'lazy_init': True},
    'pipeline': {'pipeline': [lambda results: {**results, 'seen': 1}]},
    'metainfo': {'metainfo': {'classes': ('dog', 'cat'), 'palette': [1, 2]}},
}


@pytest.mark.parametrize('option', OPTIONS)
def test_who_loads_and_who_takes_over_have_what_stock_has(option, config):
    config.update(OPTIONS[option])
    expected = build(config)
    for who in ('loads', 'takes over'):
        shared = build(sharing(config))
        assert isinstance(shared, SharedDataset) and isinstance(shared, type(expected)), who
        assert unlike_datasets(expected, shared) is None, who
        assert unlike_datasets(expected.get_subset([2, 0]), shared.get_subset([2, 0])) is None, who
        for dataset in (a := copy.deepcopy(expected), b := copy.deepcopy(shared)):
            dataset.get_subset_(3)
        assert unlike_datasets(a, b) is None, who
        assert unlike_datasets(expected, shared) is None, who


@pytest.mark.parametrize('serialize', [True, False])
def test_one_loads_for_all(serialize, listed):
    listed['serialize_data'] = serialize
    datasets = [build(sharing(listed)) for _ in range(5)]
    assert loads(listed) == 1
    for dataset in datasets:
        dataset.full_init()
        assert dataset.index.dataset is dataset and dataset.index.names is dataset.found
        assert dataset.after == 'set after loading' and not hasattr(dataset, 'temporary')
    assert loads(listed) == 1
    datasets[1].table[0, 0] = 5
    datasets[1].found.clear()
    assert datasets[2].table[0, 0] == 0 and len(datasets[2].found) == 30


@pytest.mark.parametrize(
    'more',
    [
        {'ann_file': 'other'},
        {'scale': 2},
        {'filter_cfg': {'smallest': 50}},
        {'test_mode': True},
        {'indices': 5},
        {'serialize_data': False},
        {'metainfo': {'classes': ('y', 'z', 'x')}},
        {'data_prefix': {'img': 'elsewhere'}},
    ],
    ids=str,
)
def test_datasets_that_differ_do_not_mix(more, listed, tmp_path):
    if 'ann_file' in more:
        write(tmp_path / 'other', [{'name': 'a', 'kind': 'x', 'value': 1}])
        more = {'ann_file': str(tmp_path / 'other')}
    first, second = (build(sharing(c)) for c in (listed, {**listed, **more}))
    assert loads(listed) == 2
    assert unlike_datasets(build(listed), first) is None
    assert unlike_datasets(build({**listed, **more}), second) is None


def test_what_takes_no_part_in_loading_makes_no_difference(listed):
    """The same samples for training and for looking at them."""
    pipelines = [], [lambda results: results['name']]
    first, second = (build(sharing({**listed, 'pipeline': pipeline})) for pipeline in pipelines)
    assert loads(listed) == 1
    assert second[4] == first[4]['name']


def test_what_is_changed_before_loading_counts(listed):
    """As tools do that change a dataset between its construction and its loading."""
    datasets = [build(sharing({**listed, 'lazy_init': True})) for _ in range(2)]
    datasets[1].scale = 3
    for dataset in datasets:
        np.random.seed(0)
        dataset.full_init()
    assert [d['value'] for d in datasets[1]] == [3 * d['value'] for d in datasets[0]]


def test_random_numbers_are_those_of_stock(listed):
    """All ranks of a stock job have one seed, draw the same order, and go on from the same state."""
    results = []
    for make in (listed, sharing(listed), sharing(listed)):
        dataset = build(make, seed=7)
        results.append((dataset.order, np.random.rand()))
    assert results[0] == results[1] == results[2] and loads(listed) == 2
    dataset = build(sharing(listed), seed=8)
    assert dataset.order == results[0][0], 'one order on all ranks'
    np.random.seed(8)
    assert np.random.rand() != results[0][1]


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('protocol', range(pickle.HIGHEST_PROTOCOL + 1))
def test_copies(serialize, protocol, config):
    config['serialize_data'] = serialize
    expected, shared = build(config), build(sharing(config))
    for copied in (
        pickle.loads(pickle.dumps(shared, protocol)),
        copy.deepcopy(shared),
        copy.copy(shared),
        copy.deepcopy(pickle.loads(pickle.dumps(copy.deepcopy(shared), protocol))),
    ):
        assert type(copied) is type(shared) and vars(copied).keys() == vars(shared).keys()
        assert unlike_datasets(expected, copied) is None
    copied._metainfo['classes'] = ()
    copied.get_subset_(1)
    assert unlike_datasets(expected, shared) is None


@pytest.mark.parametrize('serialize', [True, False])
def test_pickles_and_copies_carry_no_samples(serialize, listed, tmp_path):
    write(tmp_path / 'long', [{'name': f'{i}' * 50, 'kind': 'x', 'value': i} for i in range(3000)])
    listed.update(ann_file=str(tmp_path / 'long'), serialize_data=serialize)
    for _ in range(2):
        shared = build(sharing(listed))
        del shared.found[:], shared.order[:]
        shared[0], shared.get_data_info(-1), len(shared)
        assert shared.get_subset([1, 0])[1]['name'] == shared[0]['name']
        for dataset in (shared, copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
            assert len(pickle.dumps(dataset)) < 4000
            assert len(pickle.dumps(RepeatDataset(dataset, 3))) < 4000
            if serialize:
                assert dataset.data_bytes.base is not None and not dataset.data_bytes.flags.writeable


def test_items_of_a_list_can_be_changed(listed):
    """As in stock: for those who look at ``data_list``, and those who ask for samples."""
    listed['serialize_data'] = False
    results = []
    for dataset in (build(listed), build(sharing(listed)), build(sharing(listed))):
        for info in dataset.data_list:
            info['name'] += '!'
        dataset.data_list[3]['tags'].add('more')
        dataset.get_data_info(2)['name'] = 'lost'
        del dataset.data_list[1]
        dataset.get_subset_([0, 2, 2])
        results.append(list(dataset.data_list))
    assert unlike(results[0], results[1]) is None and unlike(results[0], results[2]) is None


@pytest.mark.parametrize('context', ['fork', 'spawn', 'forkserver'])
def test_workers(context, tmp_path):
    config = xml_files(tmp_path / 'files')
    configs = [{**config, 'serialize_data': serialize} for serialize in (True, False)]
    expected = ConcatDataset([build(config) for config in configs])
    shared = ConcatDataset([build(sharing(config)) for config in configs])
    workers = 2 if context == 'fork' else 1  # the others take seconds to import all
    loader = DataLoader(shared, batch_size=2, num_workers=workers, multiprocessing_context=context, collate_fn=collate)
    assert unlike([expected[i] for i in range(len(expected))], [item for batch in loader for item in batch]) is None


def same_items(a, b):
    assert len(a) == len(b) > 0
    for read in (lambda d, i: d[i], lambda d, i: d.get_data_info(i)):
        results = []
        for dataset in (a, b):
            np.random.seed(0)
            results.append([read(dataset, i) for i in range(len(dataset))])
        assert unlike(*results) is None


@TRANSFORMS.register_module()
class MixPairs:
    """Put another sample's boxes into this one."""

    def get_indexes(self, dataset):
        return [np.random.randint(0, len(dataset))]

    def __call__(self, results):
        for other in results['mix_results']:
            results['instances'] = results['instances'] + other['instances']
            other['instances'].clear()
        return results


WRAPPERS = {
    'concat': lambda d: ConcatDataset([d, d]),
    'concat of mmdet': lambda d: DetConcatDataset([d, d]),
    'repeat': lambda d: RepeatDataset(d, times=3),
    'class balanced': lambda d: ClassBalancedDataset(d, oversample_thr=0.9),
    'mixed': lambda d: MultiImageMixDataset(d, pipeline=[{'type': 'MixPairs'}]),
    'parts': lambda d: ConcatDataset([d.get_subset(3), d, d.get_subset([1])]),
}


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_wrappers(wrapper, serialize, tmp_path):
    config = {**xml_files(tmp_path / 'files'), 'serialize_data': serialize}
    stock = WRAPPERS[wrapper](build(config))
    for _ in range(2):
        shared = WRAPPERS[wrapper](build(sharing(config)))
        same_items(stock, shared)
        assert unlike(stock.metainfo, shared.metainfo) is None
        same_items(stock, pickle.loads(pickle.dumps(shared)))


def test_wrappers_by_config(tmp_path):
    config = xml_files(tmp_path / 'files')
    for kind in ({'type': 'RepeatDataset', 'times': 2}, {'type': 'MultiImageMixDataset', 'pipeline': []}):
        same_items(build({**kind, 'dataset': config}), build({**kind, 'dataset': sharing(config)}))
    both = [{'type': 'ConcatDataset', 'datasets': [c, c]} for c in (config, sharing(config))]
    same_items(*map(build, both))


def test_ways_to_say_which_dataset(tmp_path, listed):
    config = xml_files(tmp_path / 'files')
    expected = build(config)
    lazy = build({**config, 'lazy_init': True})
    arguments = {key: value for key, value in config.items() if key != 'type'}
    for dataset in (
        ConfigDict(config),
        {**config, 'type': XMLDataset},
        {**config, 'type': 'mmdet.XMLDataset'},
        {**config, '_scope_': 'mmdet'},
        {'type': XMLDataset, **arguments},
        lazy,
    ):
        shared = SharedDataset(dataset)
        assert unlike_datasets(expected if dataset is lazy else build(dataset), shared) is None
    assert not lazy._fully_initialized
    assert unlike_datasets(build(listed), build(sharing({**listed, 'type': 'mmengine.ListDataset'}))) is None


def test_what_cannot_be_shared_is_named(tmp_path):
    config = xml_files(tmp_path / 'files')
    repeated = {'type': 'RepeatDataset', 'dataset': config, 'times': 2}
    for wrong, kind, words in (
        (repeated, TypeError, ['RepeatDataset', 'inside']),
        ({'type': 'ConcatDataset', 'datasets': [config]}, TypeError, ['ConcatDataset', 'inside']),
        ({'type': dict}, TypeError, ['dict', 'BaseDataset']),
        ([config], TypeError, ['list', 'config']),
        (build(repeated), TypeError, ['RepeatDataset']),
        (build(config), ValueError, ['XMLDataset', 'lazy_init']),
        (sharing(config), TypeError, ['SharedDataset', 'already']),
        ({'type': 'SharedCocoDataset'}, TypeError, ['SharedCocoDataset', 'already']),
        ({'ann_file': 'x'}, KeyError, ['type', 'ann_file']),
        ({'type': 'Unheard'}, KeyError, ['Unheard', 'custom_imports']),
    ):
        error = attempt(lambda wrong=wrong: SharedDataset(wrong))
        assert type(error) is kind and all(word in str(error) for word in words), (wrong, error)
    for arguments in ({'persist': True}, {'persist': True, 'version': 3}, {'persist': True, 'version': ''}):
        with pytest.raises(ValueError, match='version'):
            SharedDataset(config, **arguments)
    with pytest.raises(ValueError, match='persist'):
        SharedDataset(config, version='1')
    with pytest.raises(TypeError, match='unheard'):
        SharedDataset({**config, 'unheard': 1})


def test_errors_are_those_of_the_dataset(config, tmp_path):
    for broken in ({**config, 'ann_file': 'missing'}, {**config, 'unheard': 1}, {**config, 'indices': 'x'}):
        a, b, c = (attempt(lambda m=m: build(m)) for m in (broken, sharing(broken), sharing(broken)))
        assert isinstance(a, Exception) and type(a) is type(b) is type(c) and str(a) == str(b) == str(c)


def test_registered_for_all_codebases():
    assert DATASETS.get('SharedDataset') is SharedDataset and issubclass(SharedDataset, BaseDataset)
    assert OpenImagesDataset not in SharedDataset.__mro__


def test_a_stock_coco_dataset(tmp_path):
    """Whoever wants stock's own parser, once."""
    file = write(tmp_path / 'a.json', content())
    arguments = {'ann_file': file, 'metainfo': {'classes': ('cat', 'dog', 'bird')}, 'data_prefix': {'img': 'img'}}
    for _ in range(2):
        shared = build(sharing({'type': 'CocoDataset', **arguments}))
        assert unlike_datasets(stock(file), shared) is None and not isinstance(shared, SharedCocoDataset)
