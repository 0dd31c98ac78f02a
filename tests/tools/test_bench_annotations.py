"""The benchmark of annotation loading runs as a user runs it, tells real differences, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')
POSITIVE = {'first_load_s', 'first_load_mb_s', 'peak_anonymous_mb', 'later_load_s', 'store_ratio', 'get_data_info_us'}
SIGNED = {f'{who}_{unit}_mb' for who in ('rank', 'worker') for unit in ('anonymous', 'uss', 'pss')} | {
    'left_anonymous_mb',
    'node_pss_mb',
    'node_heap_mb',
    'node_store_mb',
}


@pytest.fixture
def start(repo, tmp_path):
    """Start the benchmark; its temporary files go to ``tmp_path / 'tmp'``."""
    (tmp_path / 'tmp').mkdir()

    def run(*args):
        return subprocess.Popen(
            [sys.executable, repo.joinpath(*FOLDER, 'bench_annotations.py'), *map(str, args)],
            text=True,
            env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
        )

    return run


@pytest.fixture
def modules(repo, monkeypatch):
    """The modules beside the benchmark can be imported."""
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))


def test_every_measurement_is_taken(start, tmp_path):
    with start('--size-mb', 1, '--ranks', 1, '--workers', 1, '--repeats', 1, '--out', tmp_path / 'out') as process:
        shown, said = process.communicate()
    assert process.returncode == 0, said
    results = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert set(results) == {'machine', 'data', 'options', 'results'}
    rows = results['results']
    assert set(rows) == POSITIVE | SIGNED
    assert all(rows[name][kind] > 0 for name in POSITIVE for kind in ('stock', 'shared'))
    assert rows['node_store_mb']['shared'] > 0
    assert 0.9 < results['data']['json_mb'] < 1.1
    assert shown == (tmp_path / 'out' / 'table.md').read_text()
    assert all(row['title'] in shown for row in rows.values())
    assert not list((tmp_path / 'tmp').iterdir())


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_stopped(start, tmp_path, number):
    with start('--size-mb', 1, '--only', 'first-load') as process:
        said = iter(process.stderr.readline, '')
        assert any('first load' in line for line in said)  # from here on there are measured processes
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    assert not list((tmp_path / 'tmp').iterdir())
    for _ in range(200):  # a killed process takes a moment to go
        commands = [' '.join(p.info['cmdline'] or []) for p in psutil.process_iter(['cmdline'])]
        left = [command for command in commands if str(tmp_path) in command]
        if not left:
            break
        time.sleep(0.1)
    assert not left


def test_a_bad_file_is_named(start, tmp_path):
    bad = tmp_path / 'bad.json'
    bad.write_text('{"images": [{"id": 1}], "annotations": []}')
    with start('--json', bad) as process:
        shown, said = process.communicate()
    assert process.returncode == 1
    assert str(bad) in said
    assert not shown
    assert not list((tmp_path / 'tmp').iterdir())


@pytest.mark.parametrize('spaced', [True, False])
def test_the_generated_file(modules, tmp_path, spaced):
    from coco_generator import Style, write_coco

    paths = tmp_path / 'a.json', tmp_path / 'b.json'
    for path in paths:
        images, annotations = write_coco(path, 10**6, 10, Style(spaced))
    text = paths[0].read_text()
    assert text == paths[1].read_text()
    assert abs(len(text) - 10**6) < 10**5
    content = json.loads(text)
    assert text == Style(spaced).dumps(content)
    assert (len(content['images']), len(content['annotations'])) == (images, annotations)
    polygons = [a['segmentation'][0] for a in content['annotations'] if not a['iscrowd']]
    assert {len(polygon) // 2 for polygon in polygons} == set(range(8, 31))
    crowds = [a['segmentation'] for a in content['annotations'] if a['iscrowd']]
    assert len(crowds) == annotations // 100
    assert all(sum(crowd['counts']) == crowd['size'][0] * crowd['size'][1] for crowd in crowds)


def test_a_digest_sees_types_and_the_order_of_keys(modules):
    from tasks import digest

    class Samples(list):
        get_data_info = list.__getitem__

    samples = ({'a': 1, 'b': 2.0}, {'b': 2.0, 'a': 1}, {'a': 1.0, 'b': 2.0}, {'a': 1, 'b': 2.0000000000000004})
    assert len({digest(Samples([sample])) for sample in samples}) == len(samples)
    assert digest(Samples(samples[:1])) == digest(Samples([dict(samples[0])]))
