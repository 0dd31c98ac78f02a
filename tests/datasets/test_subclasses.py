"""Classes and arguments that take the fast path, and those that get stock's loading in full."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mmdet.datasets import CityscapesDataset, CocoDataset
from mmdet.datasets.api_wrappers import COCO
from mmdet.registry import DATASETS

from mmshared.datasets import SharedCocoDataset

from .helpers import CLASSES, content, shared, stock, write
from .oracle import attempt, compare_datasets, difference


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / 'annotations.json', content())


def is_fast(dataset) -> bool:
    return dataset._samples is not None


def both(body, *extra):
    """Make a class out of ``body`` on top of each of the two datasets."""
    return [type('Custom', (*extra, base), dict(body)) for base in (CocoDataset, SharedCocoDataset)]


def load(self):
    data = super(type(self), self).load_data_list()
    self.trace.append(('load', len(data), type(data), sorted(self.cat2label)))
    return data[::-1]


def parse(self, raw):
    self.trace.append(('parse', raw['raw_img_info']['img_id'], len(self.coco.imgs), self.cat_ids[:]))
    raw['raw_img_info']['file_name'] = 'renamed.jpg'
    info = super(type(self), self).parse_data_info(raw)
    return {**info, 'extra': len(raw['raw_ann_info'])}


def keep(self):
    kept = super(type(self), self).filter_data()
    self.trace.append(('filter', len(kept), len(self.data_list), hasattr(self, 'coco')))
    return kept[2:]


class OtherApi(COCO):
    def load_anns(self, ids):
        return super().load_anns(ids)[:1]


OVERRIDES = {
    'load_data_list': {'load_data_list': load},
    'parse_data_info': {'parse_data_info': parse},
    'filter_data': {'filter_data': keep},
    'all three': {'load_data_list': load, 'parse_data_info': parse, 'filter_data': keep},
    'COCOAPI': {'COCOAPI': OtherApi},
    'ANN_ID_UNIQUE': {'ANN_ID_UNIQUE': False},
}


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('name', OVERRIDES)
def test_overridden_loading_is_that_of_stock(name, serialize, file, caplog):
    more = {'serialize_data': serialize, 'filter_cfg': {'filter_empty_gt': True}, 'indices': 8}
    results = []
    for cls, build in zip(both({**OVERRIDES[name], 'trace': []}), (stock, shared)):
        cls.trace = []
        results.append(build(file, cls=cls, **more))
    a, b = results
    assert not is_fast(b)
    assert type(a).trace == type(b).trace
    assert compare_datasets(a, b) is None
    assert compare_datasets(a.get_subset(3), b.get_subset(3)) is None
    assert compare_datasets(a, pickle.loads(_pickle(b))) is None
    assert difference(a.data_list, list(b.data_list)) is None


def _pickle(dataset):
    """Pickle a dataset whose class was made in a test."""
    globals()['Custom'] = type(dataset)
    type(dataset).__module__ = __name__
    return pickle.dumps(dataset)


@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('name', OVERRIDES)
def test_overridden_loading_is_done_once(name, serialize, file, messages, monkeypatch):
    """The next process of the job gets what the first one has loaded, and maps it; nothing to complain about."""
    more = {'serialize_data': serialize, 'filter_cfg': {'filter_empty_gt': True}, 'indices': 8}
    old, new = both({**OVERRIDES[name], 'trace': []})
    monkeypatch.setitem(globals(), 'Custom', new)  # so that it counts by its name
    expected = stock(file, cls=old, **more)
    parses, parse = [], COCO.__init__
    monkeypatch.setattr(COCO, '__init__', lambda self, *args: (parses.append(args), parse(self, *args))[1])
    datasets = [shared(file, cls=new, **more) for _ in range(3)]
    assert parses == [(file,)] and 'memory' not in messages()
    for dataset in datasets:
        assert compare_datasets(expected, dataset) is None
        assert type(dataset.data_bytes if serialize else dataset.data_list).__name__ in ('MappedArray', 'PickledList')
    shared(file, cls=new, **{**more, 'indices': 7})
    assert parses == [(file,)] * 2


def test_where_it_cannot_be_shared_the_cost_is_said(file, messages):
    class Opened(SharedCocoDataset):
        def load_data_list(self):
            self.handle = open(self.ann_file)  # noqa: SIM115
            return super().load_data_list()

    dataset = shared(file, cls=Opened)
    text = messages()
    assert all(word in text for word in ('Opened', file, "'handle'", 'memory'))
    dataset.handle.close()
    assert compare_datasets(stock(file), dataset) is None


def test_repeated_ids_where_the_class_allows_them(tmp_path):
    data = content()
    data['annotations'][20]['id'] = data['annotations'][4]['id']
    file = write(tmp_path / 'annotations.json', data)
    a, b = (f(file, cls=c) for f, c in zip((stock, shared), both({'ANN_ID_UNIQUE': False})))
    assert compare_datasets(a, b) is None


def test_metainfo_of_a_subclass_keeps_the_fast_path(file):
    a, b = (
        f(file, cls=c, metainfo={'palette': [(1, 2, 3)]})
        for f, c in zip((stock, shared), both({'METAINFO': {'classes': ('dog', 'bird'), 'palette': []}}))
    )
    assert is_fast(b)
    assert a.metainfo['classes'] == ('dog', 'bird')
    assert compare_datasets(a, b) is None


def test_other_overrides_keep_the_fast_path(file):
    """``get_cat_ids`` has to go through the class's own ``get_data_info``."""

    def get_data_info(self, idx):
        info = super(type(self), self).get_data_info(idx)
        info['instances'] = info['instances'][:1]
        return info

    def full_init(self):
        super(type(self), self).full_init()
        self.after = len(self)

    a, b = (
        f(file, cls=c, lazy_init=True)
        for f, c in zip((stock, shared), both({'get_data_info': get_data_info, 'full_init': full_init}))
    )
    assert max(len(a.get_cat_ids(i)) for i in range(12)) == max(len(b.get_cat_ids(i)) for i in range(12)) == 1
    assert compare_datasets(a, b) is None
    assert is_fast(b) and b.after == a.after == 12


def test_a_stock_class_mixed_in(tmp_path):
    """Cityscapes filters in its own way."""
    file = write(tmp_path / 'annotations.json', content(annotations=6))
    more = {'filter_cfg': {'filter_empty_gt': True}}
    a = stock(file, cls=CityscapesDataset, **more)
    b = shared(file, cls=type('Mixed', (SharedCocoDataset, CityscapesDataset), {}), **more)
    assert not is_fast(b)
    assert compare_datasets(a, b) is None


def test_a_method_set_on_the_instance(file):
    results = []
    for build in (stock, shared):
        dataset = build(file, lazy_init=True)
        dataset.filter_data = lambda d=dataset: d.data_list[:2]
        dataset.full_init()
        results.append(dataset)
    assert len(results[0]) == len(results[1]) == 2


def test_proposals(file, tmp_path):
    proposals = {f'img/{i}.jpg': {'bboxes': np.full((1, 4), i), 'scores': np.ones(1)} for i in range(12)}
    (tmp_path / 'p.pkl').write_bytes(pickle.dumps(proposals))
    a, b = (f(file, proposal_file='p.pkl', data_root=str(tmp_path)) for f in (stock, shared))
    for i in range(12):
        x, y = a.get_data_info(i), b.get_data_info(i)
        assert np.array_equal(x.pop('proposals')['bboxes'], y.pop('proposals')['bboxes'])
        assert difference(x, y) is None
    assert not is_fast(b)
    assert shared(file, proposal_file='p.pkl', data_root=str(tmp_path)).data_bytes._column == b.data_bytes._column


@pytest.mark.parametrize('caption_prompt', [None, {'cat': {'prefix': 'a ', 'name': 'cat'}}])
@pytest.mark.parametrize('serialize', [True, False])
@pytest.mark.parametrize('classes', [CLASSES, list(CLASSES)])
def test_class_texts(file, caption_prompt, serialize, classes):
    more = {'return_classes': True, 'caption_prompt': caption_prompt, 'serialize_data': serialize}
    a, b = (f(file, metainfo={'classes': classes}, **more) for f in (stock, shared))
    assert compare_datasets(a, b) is None
    b.get_data_info(0)['caption_prompt'] = b.get_data_info(0)['text'] = None
    if caption_prompt:
        b.get_data_info(0)['caption_prompt']['cat']['prefix'] = 'changed'
    assert compare_datasets(a, b) is None


def test_later_changes_of_attributes_do_not_reach_the_samples(file):
    a, b = stock(file), shared(file)
    for dataset in (a, b):
        dataset.data_prefix['img'] = 'later'
        dataset.seg_map_suffix = '.later'
        dataset.return_classes = True
        dataset.cat_ids.reverse()
        dataset.cat2label.clear()
    assert compare_datasets(a, b) is None


def test_lazy_init(file):
    a, b = stock(file, lazy_init=True), shared(file, lazy_init=True)
    for dataset in (a, b):
        assert not dataset._fully_initialized and dataset.metainfo['classes'] == CLASSES
        assert not hasattr(dataset, 'cat_ids') and not hasattr(dataset, 'cat_img_map') and dataset.data_list == []
        assert isinstance(attempt(lambda d=dataset: d.data_bytes), AttributeError)
    assert difference(a.get_data_info(-1), b.get_data_info(-1)) is None
    assert compare_datasets(a, b) is None
    for call in (len, lambda d: d.get_subset(2).get_data_info(0), lambda d: d.get_cat_ids(3), lambda d: d[4]):
        assert difference(*(call(f(file, lazy_init=True)) for f in (stock, shared))) is None


def test_the_pipeline_gets_the_sample(file):
    for test_mode in (True, False):
        a, b = (f(file, pipeline=[lambda x: {**x, 'seen': 1}], test_mode=test_mode) for f in (stock, shared))
        assert difference([a[i] for i in range(12)], [b[i] for i in range(12)]) is None


def test_registry_and_arguments(file, tmp_path):
    config = {
        'type': 'SharedCocoDataset',
        'ann_file': 'annotations.json',
        'data_root': str(tmp_path),
        'data_prefix': {'img': 'x/'},
        'metainfo': {'classes': CLASSES},
        'cache_dir': str(tmp_path / 'cache'),
        'backend_args': None,
    }
    a = stock(file, data_root=str(tmp_path), data_prefix={'img': 'x/'})
    assert compare_datasets(a, DATASETS.build(config)) is None
    positional = SharedCocoDataset(
        file, {'classes': CLASSES}, str(tmp_path), {'img': 'x/'}, cache_dir=str(tmp_path / 'cache')
    )
    assert compare_datasets(a, positional) is None
    assert isinstance(attempt(lambda: shared(file, caption_prompt={'cat': {}})), AssertionError)
    assert isinstance(attempt(lambda: shared(file, file_client_args={})), RuntimeError)
    assert isinstance(attempt(lambda: shared(file, unknown=1)), TypeError)


def test_which_classes_match_is_said(file, messages):
    shared(file, metainfo={'classes': ('dog', 'cat', 'bird', 'other')})
    assert 'categories' not in messages()
    shared(file, metainfo={'classes': ('dog', 'cat', 'bird', 'other', 'more')})
    assert "no category of the file: 'more'" in messages()
    shared(file, metainfo={'classes': ('dog', 'fish')})
    text = messages()
    assert all(name in text for name in ("'dog'", "'fish'", "'other'", "'bird'", '1 of its 4')) and file in text
    shared(file, metainfo={'classes': ('fish', 'Dog')})
    text = messages()
    assert all(name in text for name in ("'Dog'", "'fish'", "'dog'", "'cat'", 'none of its 4'))
    shared(file, metainfo={'classes': tuple(f'class {i} ' + 'x' * 500 for i in range(1000))})
    assert len(messages()) < 2000


def test_unusual_classes_mean_what_they_mean_in_stock(file):
    for classes in ('dog and cat', 'dog', [], {'dog': 1}, None):
        a, b = (attempt(lambda f=f, c=classes: f(file, metainfo={'classes': c})) for f in (stock, shared))
        assert isinstance(b, Exception) if isinstance(a, Exception) else compare_datasets(a, b) is None
    data = content()
    data['categories'] *= 2
    repeated = write(Path(file).with_name('repeated.json'), data)
    assert compare_datasets(stock(repeated), shared(repeated)) is None


def test_other_locales(file, tmp_path):
    """Stock opens the file in the locale's encoding; JSON is UTF-8, always."""
    data = content()
    data['images'][0]['file_name'] = 'schön 猫.jpg'
    path = tmp_path / 'raw.json'
    path.write_bytes(json.dumps(data, ensure_ascii=False).encode('utf-8'))
    code = (
        'import sys; from mmshared.datasets import SharedCocoDataset as D;'
        f'd = D({str(path)!r}, dict(classes=("cat",)), data_prefix=dict(img=""), cache_dir={str(tmp_path / "c")!r});'
        'print(ascii(d.get_data_info(0)["img_path"]))'
    )
    env = {
        'LC_ALL': 'C',
        'PYTHONCOERCECLOCALE': '0',
        'PYTHONPATH': os.pathsep.join(p for p in sys.path if p),
        'HOME': str(tmp_path),
    }
    out = subprocess.run(
        [sys.executable, '-X', 'utf8=0', '-c', code], env=env, capture_output=True, text=True, timeout=120
    )
    assert ascii('schön 猫.jpg') in out.stdout, out.stderr
