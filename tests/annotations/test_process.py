"""What only a process of its own can show: imports and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

BLOCKED = ('torch', 'mmengine', 'mmcv', 'mmdet', 'cv2', 'pycocotools', 'fcntl')
IMPORT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None                 # importing it raises ImportError
import json, os, tempfile
import mmshared.annotations as a
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, 'a.json')
    with open(path, 'w') as file:
        json.dump({{'images': [{{'id': 1, 'file_name': 'x', 'height': 2, 'width': 3}}], 'annotations': []}}, file)
    store = a.open_store(path, cache_dir=os.path.join(folder, 'cache'))
    info = a.DetectionView(store, []).data_info(0, 'p')
    assert info['img_id'] == 1 and info['instances'] == [], info
"""

BUILD = """
import sys, tempfile, threading
import numpy, msgspec, simdjson
from mmshared.annotations.parsing.builder import build_store

def anonymous():
    with open('/proc/self/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Anonymous')) // 1024

peak, before = [0], anonymous()

def progress(done, size):
    peak[0] = max(peak[0], anonymous())

done = threading.Event()
def sample():
    while not done.wait(0.02):
        progress(0, 0)

thread = threading.Thread(target=sample)
thread.start()
with open(sys.argv[1], 'rb') as source, tempfile.TemporaryFile() as out:
    build_store(source, sys.argv[1], out, tempfile.TemporaryFile, progress)
done.set()
thread.join()
print(peak[0] - before)
"""


def run(code: str, *args: str) -> str:
    environment = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    done = subprocess.run(
        [sys.executable, '-c', code, *args], cwd=REPO, env=environment, text=True, timeout=120, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize('blocked', [BLOCKED[:-1], BLOCKED[-1:]])
def test_works_without(blocked: tuple) -> None:
    run(IMPORT.format(blocked=blocked))


def big_file(path: Path, megabytes: int) -> str:
    """A file of polygons that are not grouped by image."""
    polygon = [round(0.37 * i % 640, 2) for i in range(40)]
    record = json.dumps(
        {'category_id': 1, 'bbox': [1.5, 2.5, 30.25, 40.75], 'area': 512.5, 'iscrowd': 0, 'segmentation': [polygon]}
    )
    count = megabytes * (1 << 20) // (len(record) + 35)
    with open(path, 'w', encoding='utf-8') as file:
        file.write(
            '{"images": ['
            + ', '.join(
                json.dumps({'id': i, 'file_name': f'{i}.jpg', 'height': 480, 'width': 640}) for i in range(count // 10)
            )
        )
        file.write('], "categories": [{"id": 1, "name": "a"}], "annotations": [')
        for i in range(count):
            file.write(f'{", " if i else ""}{{"id": {i}, "image_id": {i * 7919 % (count // 10)}, {record[1:]}')
        file.write(']}')
    return str(path)


@pytest.mark.skipif(not Path('/proc/self/smaps_rollup').exists(), reason='needs Linux to tell anonymous memory apart')
def test_memory_of_a_build_does_not_follow_the_file(tmp_path: Path) -> None:
    once, twice = (int(run(BUILD, big_file(tmp_path / f'{size}.json', size))) for size in (30, 60))
    assert 0 < once < 120
    assert twice < once + 30
