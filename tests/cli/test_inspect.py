"""``mmshared inspect``: what it shows, and what it says of bad stores."""

from __future__ import annotations

import json
import os
import random
import tarfile

import numpy as np
import pytest

from mmshared.annotations import AnnotationFileError, open_store, opening
from mmshared.datasets import SharedCocoDataset
from mmshared.fileio.indexing import open_index

from ..annotations.test_container import HOSTILE as HOSTILE_HEADERS
from ..annotations.test_container import reheaded, rewritten
from ..annotations.test_summary import clean
from ..annotations.test_verify import WRONG, a_bit_of_everything
from ..datasets.helpers import options, write
from .conftest import on_disk


@pytest.fixture
def odd(tmp_path):
    """A file with some of everything."""
    data = clean()
    del data['info'], data['annotations'][3]['iscrowd']
    data['annotations'][0].update(iscrowd=1, segmentation={'counts': [0, 20000], 'size': [100, 200]})
    data['annotations'][1].update(area=0, ignore=1)
    data['annotations'] += [{**data['annotations'][2], 'id': 100 + i} for i in range(9)]
    data['categories'] += [{'id': 100 + i, 'name': f'unused {i}'} for i in range(30)]
    return write(tmp_path / 'odd.json', data)


def test_a_clean_file(cli, ann, cache):
    status, out, err = cli('inspect', ann)
    assert status == 0 and err == ''
    size, store = os.path.getsize(ann), open_store(ann).path
    assert out.startswith(
        f'file         {ann}, {size} bytes\n'
        f'store        {store}, {os.path.getsize(store) / 1000:.1f} kB, built now\n'
        'images       2\n'
        'annotations  4: 4 train, 0 are crowds ("iscrowd"), 0 are ignored ("ignore")\n'
        '\n'
        'instances per image: min 2, median 2, mean 2.0, max 2\n'
    )
    assert '\nsegmentation\n  polygons  4\n\nclasses: 2\n  cat  id 1  2\n  dog  id 2  2\n' in out
    assert 'nothing that will bite was found' in out and 'estimate' in out
    assert ', from the cache\n' in cli('inspect', ann).out


def test_an_odd_file(cli, odd):
    status, out, _ = cli('inspect', odd)
    assert status == 0
    assert '13: 12 train, 1 are crowds ("iscrowd"), 1 are ignored ("ignore")' in out
    assert 'instances per image: min 2, median 6.5, mean 6.5, max 11\n' in out
    assert '   1  0\n' in out and '2-3  1  ###' in out and '8-15  1  ###' in out
    assert '  polygons                 12\n  RLE, "counts" as a list   1\n' in out
    assert 'classes: 32\n' in out and '... and 12 more: --classes' in out and 'unused 29' not in out
    assert 'unused 29' in cli('inspect', '--classes', odd).out
    assert '  error    1 x annotations without "iscrowd"\n           annotations[3] (id 13)\n' in out
    assert '  note     1 x no "info"\n' in out
    assert out.index('  error ') < out.index('  warning ') < out.index('  note ')


def test_for_programs(cli, odd):
    status, out, _ = cli('inspect', '--json', odd)
    report = json.loads(out)
    assert status == 0
    assert (report['images'], report['annotations'], report['kept'], report['crowd'], report['ignored']) == (
        *(2, 13, 12),
        *(1, 1),
    )
    assert report['instances_per_image']['max'] == 11 and len(report['classes']) == 32
    assert report['segmentation'] == {'polygons': 12, 'rle_list': 1}
    assert report['classes'][0] == {'id': 1, 'name': 'cat', 'annotations': 11}
    oddities = {oddity['name']: oddity for oddity in report['oddities']}
    assert oddities['no_iscrowd']['level'] == 'error' and oddities['no_iscrowd']['count'] == 1
    assert oddities['no_iscrowd']['examples'] == ['annotations[3] (id 13)']
    size = os.path.getsize(odd)
    assert report['source_size'] == size and report['store']['origin'] == 'built'
    assert report['stock_estimate']['memory'] == pytest.approx(7 * size)


def test_nan_in_the_file_is_no_nan_in_the_report(cli, tmp_path):
    data = clean()
    data['categories'].append({'id': float('nan'), 'name': 'x'})
    data['annotations'][0]['bbox'][0] = float('nan')
    data['annotations'][1]['id'] = float('inf')

    def refuse(name):
        raise AssertionError(name)

    json.loads(cli('inspect', '--json', write(tmp_path / 'a.json', data)).out, parse_constant=refuse)


def test_a_file_that_stock_refuses(cli, tmp_path, monkeypatch, cache):
    data = clean()
    data['annotations'][2]['id'] = 10
    path = write(tmp_path / 'a.json', data)
    for origin in ('built now', 'from the cache'):
        status, out, err = cli('inspect', path)
        assert status == 0 and err == '' and 'CocoDataset refuses this file' in out and origin in out
    assert cli('pack', path).status == 1
    monkeypatch.setattr(opening, 'build_store', None)  # the job need not read it to know
    with pytest.raises(AnnotationFileError, match='not unique'):
        SharedCocoDataset(ann_file=path, **options())


def test_a_store(cli, odd, tmp_path, cache):
    cli('pack', odd, '-o', tmp_path / 'x.mmstore')
    expected = json.loads(cli('inspect', '--json', odd).out)
    cli('cache', 'clear')
    report = json.loads(cli('inspect', '--json', tmp_path / 'x.mmstore').out)
    assert report['store']['origin'] == 'given' and on_disk(cache) == []
    assert {k: v for k, v in report.items() if k not in ('file', 'store')} == {
        k: v for k, v in expected.items() if k not in ('file', 'store')
    }
    assert f'made from    {odd}, ' in cli('inspect', tmp_path / 'x.mmstore').out
    os.remove(odd)
    out = cli('inspect', tmp_path / 'x.mmstore').out
    assert f'made from    {odd}, not there\n' in out and 'estimate' not in out
    assert json.loads(cli('inspect', '--json', tmp_path / 'x.mmstore').out)['stock_estimate'] is None


@pytest.mark.parametrize('data', [{'images': []}, {'categories': []}, {'images': [], 'annotations': []}, {}])
def test_hardly_anything(cli, tmp_path, data):
    status, out, err = cli('inspect', write(tmp_path / 'a.json', data))
    assert (status, err) == (0, '') and 'images       0\n' in out


# ---- verify
@pytest.fixture
def store(cli, odd, tmp_path):
    cli('pack', odd, '-o', tmp_path / 'x.mmstore')
    return tmp_path / 'x.mmstore'


def test_verify_a_good_one(cli, store, odd):
    status, out, err = cli('inspect', '--verify', store)
    assert status == 0 and err == '' and out.startswith(f'{store}: good, ')
    assert json.loads(cli('inspect', '--verify', '--json', store).out) == {
        'store': str(store),
        'good': True,
        'faults': [],
    }
    status, out, _ = cli('inspect', '--verify', odd)
    assert status == 0 and '.mmstore: good, ' in out


def test_verify_flipped_bytes(cli, store):
    data, rng, bad = bytearray(store.read_bytes()), random.Random(1), 0
    good = json.loads(json.dumps(open_store(store).to_dict()))
    for _ in range(60):
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        store.write_bytes(data)
        data[at] ^= bit
        status, out, err = cli('inspect', '--verify', store)
        assert (status == 0) is ('good' in out) is (err == '')
        if status == 1:
            bad += 1
            assert err.count('\n') >= 1 and 'mmshared: error: ' in err and str(store) in err
        else:
            assert json.loads(json.dumps(open_store(store).to_dict())) == good
    assert bad > 20


@pytest.mark.parametrize('size', [0, 7, 8, 43, 64, 500])
def test_verify_a_torn_one(fails, store, size):
    store.write_bytes(store.read_bytes()[:size])
    fails('inspect', '--verify', store)
    fails('inspect', store)


@pytest.mark.parametrize('name', HOSTILE_HEADERS)
def test_a_hostile_header(fails, store, name):
    store.write_bytes(reheaded(store.read_bytes(), HOSTILE_HEADERS[name]))
    fails('inspect', '--verify', store)
    fails('inspect', store)


@pytest.mark.parametrize('name', WRONG)
def test_a_hostile_store(cli, tmp_path, name):
    """Verifying reports it; inspecting shows it or refuses it, and never falls over it."""
    other = rewritten(a_bit_of_everything(tmp_path), *WRONG[name])
    status, _, err = cli('inspect', '--verify', other)
    assert status == 1 and err.startswith(f'mmshared: error: {other}: ')
    status, out, err = cli('inspect', other)
    assert (status, bool(err)) in ((0, False), (1, True)) and err.count('\n') == status


def test_verify_as_json_of_a_bad_one(cli, store):
    other = rewritten(store, 'annotation.kind', lambda a: np.full(a.shape, 9))
    status, out, _ = cli('inspect', '--verify', '--json', other)
    report = json.loads(out)
    assert status == 1 and not report['good'] and 'annotation.kind' in report['faults'][0]


@pytest.mark.parametrize('verify', [(), ('--verify',)], ids=['show', 'verify'])
def test_the_index_of_an_archive_is_no_store_of_annotations(fails, tmp_path, verify):
    with tarfile.open(tmp_path / 'images.tar', 'w') as archive:
        archive.add(__file__, '1.jpg')
    index = open_index([os.fspath(tmp_path / 'images.tar')], os.fspath(tmp_path / 'cache'))
    assert 'is the index of an archive' in fails('inspect', index.path, *verify)
