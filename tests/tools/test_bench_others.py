"""The comparison with others runs as a user runs it, tells what is lost from what is kept, and cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is read from /proc')
FOLDER = ('tools', 'benchmarks')


@pytest.fixture
def start(repo, tmp_path):
    """Start the benchmark; its temporary files go to ``tmp_path / 'tmp'``."""
    (tmp_path / 'tmp').mkdir()

    def run(*args):
        return subprocess.Popen(
            [sys.executable, repo.joinpath(*FOLDER, 'bench_others.py'), *map(str, args)],
            text=True,
            env={**os.environ, 'TMPDIR': str(tmp_path / 'tmp')},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


@pytest.fixture
def ways(repo, monkeypatch):
    """The module of the ways."""
    monkeypatch.syspath_prepend(str(repo.joinpath(*FOLDER)))
    import ways

    return ways


@pytest.fixture
def coco_file(ways, tmp_path):
    """A file of some dozen images."""
    from coco_generator import Style, write_coco

    path = tmp_path / 'annotations.json'
    write_coco(path, 200_000, 5, Style())
    return path


def opened(ways, name, file, folder):
    """The way ``name`` of the file, ready in one process."""
    from coco_generator import CLASSES

    needs = ways.WAYS[name].needs
    if needs and not find_spec(needs):
        pytest.skip(f'{needs} is not installed')
    folder.mkdir()
    way = ways.WAYS[name](file, folder, CLASSES, 1)
    way.open(0)
    return way


NAMES = ['CocoDataset', 'shared-memory list', 'disk cache', 'lightly-train', 'SharedCocoDataset']


@pytest.mark.parametrize('name', NAMES)
def test_a_way_gives_all_polygons(ways, coco_file, tmp_path, name):
    stock = opened(ways, 'CocoDataset', coco_file, tmp_path / 'stock')
    way = opened(ways, name, coco_file, tmp_path / 'way')
    assert len(way) == len(stock) > 20
    off = ways.deviation(stock, way)
    assert off < 1e-9 if name == 'lightly-train' else off == 0
    assert way.stored() > 0


def test_every_way_is_tried(ways):
    assert list(ways.WAYS) == NAMES


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        (lambda polygons: polygons[0][0].__setitem__(0, polygons[0][0][0] + 0.25), 0.25),
        (lambda polygons: polygons[0][0].append(1.0), None),
        (lambda polygons: polygons.pop(), None),
    ],
)
def test_what_is_lost_is_seen(ways, coco_file, tmp_path, change, expected):
    class Lossy(ways.Stock):
        def polygons(self, sample, width, height):
            polygons = super().polygons(sample, width, height)
            if polygons:
                change(polygons)
            return polygons

    stock = opened(ways, 'CocoDataset', coco_file, tmp_path / 'stock')
    lossy = Lossy(coco_file, tmp_path, stock.classes, 1)
    lossy.open(0)
    off = ways.deviation(stock, lossy)
    assert off == expected if expected is None else off == pytest.approx(expected)


def test_all_is_measured_and_nothing_is_left(start, tmp_path):
    before = set(os.listdir('/dev/shm'))
    with start('--size-mb', 0.5, '--ranks', 2, '--repeats', 1) as process:
        shown, said = process.communicate()
    assert process.returncode == 0, said
    lines = shown.splitlines()
    header = next(line for line in lines if line.startswith('|'))
    names = [cell.strip() for cell in header.strip('|').split('|')][1:]
    missing = [line.split(':')[0] for line in lines if 'not measured' in line]
    assert sorted(names + missing) == sorted(NAMES)
    for title in ('first process loads, s of', 'a sample read, us of', 'kept, in sizes of the JSON'):
        values = next(line for line in lines if line.startswith(f'| {title}')).strip('|').split('|')[1:]
        assert all(float(value) > 0 for value in values)
    assert not list((tmp_path / 'tmp').iterdir())
    assert not {name for name in set(os.listdir('/dev/shm')) - before if name.startswith('torch_')}


def test_nothing_is_left_when_it_is_stopped(start, tmp_path):
    with start('--size-mb', 0.5) as process:
        said = iter(process.stderr.readline, '')
        assert any('run 1' in line for line in said)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert not list((tmp_path / 'tmp').iterdir())
