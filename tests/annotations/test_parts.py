"""Several processes parse one file: the store must not show it."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, List, Optional, Tuple

import psutil
import pytest

from mmshared.annotations import AnnotationFileError, AnnotationStore
from mmshared.annotations.errors import Violations
from mmshared.annotations.parsing import crew
from mmshared.annotations.parsing.builder import build_store
from mmshared.annotations.parsing.part import Part

from .helpers import NAME, exact

pytestmark = pytest.mark.skipif(os.name != 'posix', reason='only there can processes be given open files')
REPO = Path(__file__).resolve().parents[2]


def content(images: int = 40, annotations: int = 300, seed: int = 0) -> dict:
    """A file whose annotations are in no order; several parts see the same values in different orders."""
    rng = random.Random(seed)
    return {
        'images': [{'id': i, 'file_name': f'{i}.jpg', 'height': 480, 'width': 640} for i in range(images)],
        'categories': [{'id': i, 'name': f'c{i}'} for i in range(9)],
        'annotations': [
            {
                'id': i,
                'image_id': rng.randrange(images),
                'category_id': rng.randrange(9),
                'bbox': [rng.randrange(99), round(rng.uniform(0, 9), 2), 10, 20.5],
                'area': rng.choice([12, 12.25, 1e-7 if i > 200 else 3]),
                'iscrowd': 0,
                'segmentation': [[round(rng.uniform(0, 640), rng.choice([1, 2, 3])) for _ in range(6)]],
            }
            for i in range(annotations)
        ],
    }


class Build:
    """A file built by one process and by several."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, monkeypatch

    def one(self, text: str, processes: int, part_bytes: int = 4000) -> Tuple[Any, Optional[Violations]]:
        """Path of the store, or the error; and what mmdet would choke on."""
        self._patch.setenv(crew.ENV, str(processes))
        source, path = self._folder / 'a.json', self._folder / f'{processes}.store'
        source.write_text(text, encoding='utf-8', errors='surrogatepass')
        with open(source, 'rb') as file, open(path, 'wb') as out:
            try:
                return path, build_store(file, NAME, out, tempfile.TemporaryFile, None, part_bytes)
            except AnnotationFileError as error:
                return str(error), None

    def equal(self, value: Any) -> Any:
        """Builds ``value`` (JSON text or an object) both ways, and compares; gives the record-wise content."""
        text = value if isinstance(value, str) else json.dumps(value)
        (serial, violation), (parallel, other) = self.one(text, 1), self.one(text, 4)
        assert str(violation) == str(other)
        if isinstance(serial, str):
            assert parallel == serial
            return serial
        stores = [AnnotationStore(path).to_dict() for path in (serial, parallel)]
        assert exact(stores[0]) == exact(stores[1])
        return stores[0]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    return Build(tmp_path, monkeypatch)


@pytest.fixture
def merged(monkeypatch: pytest.MonkeyPatch) -> List[Part]:
    """The parts that other processes parsed, and that were of use."""
    parts, take = [], crew.Crew.take

    def spy(self: crew.Crew, *args: Any) -> Optional[Part]:
        part = take(self, *args)
        if part:
            parts.append(part)
        return part

    monkeypatch.setattr(crew.Crew, 'take', spy)
    return parts


def test_the_same_bytes(build: Build, merged: List[Part]) -> None:
    text = json.dumps(content())
    assert build.one(text, 1)[0].read_bytes() == build.one(text, 4)[0].read_bytes()
    assert len(merged) >= 3


def test_pieces_and_parts(build: Build, merged: List[Part]) -> None:
    text = json.dumps(content(5000, 40_000), indent=1)  # larger than the reader's pieces
    serial, parallel = build.one(text, 1)[0], build.one(text, 3, 3_000_000)[0]
    assert serial.read_bytes() == parallel.read_bytes()
    assert len(merged) == 2


def images_last(value: dict) -> None:
    value['images'] = value.pop('images')


def ids_of_all_types(value: dict) -> None:
    for i, record in enumerate(value['annotations']):
        record['id'] = [i, f'a{i}', i + 0.5, 2**70 + i][i % 4]
        record['image_id'] = [record['image_id'], 'x', None, 2.0][i % 4]
        record['category_id'] = [record['category_id'], 'c', True, 1.0, -1.5][i % 5]
    value['images'] += [{'id': key, 'file_name': 'é', 'height': 1, 'width': 1} for key in ('x', None, 'x')]


def odd_records(value: dict) -> None:
    for i, record in enumerate(value['annotations']):
        if i % 5 == 0:
            record['area'] = [None, 'NaN', float('nan'), 10**30, [1]][i // 5 % 5]


def further_keys(value: dict) -> None:
    for i, record in enumerate(value['annotations']):
        record[f'k{i // 100}'] = {'text': 'a}, {b', 'images': [1, {}, {}]}


def nested_objects(value: dict) -> None:
    for record in value['annotations']:
        record['segments'] = [{'id': 1}, {'id': 2}, {'id': 3}] * 9


def a_key_twice(value: dict) -> None:
    value['images'] += value['images'][:7]
    value['annotations'] += copy.deepcopy(value['annotations'][:3])


def run_length(value: dict) -> None:
    for record in value['annotations'][::3]:
        record['segmentation'] = {'counts': 'a"}, {', 'size': [480, 640]}


def a_missing_key(value: dict) -> None:
    del value['annotations'][170]['image_id']


def unhashable(value: dict) -> None:
    value['annotations'][290]['category_id'] = [1]


def no_object(value: dict) -> None:
    value['annotations'][130] = 5


@pytest.mark.parametrize(
    'change',
    [images_last, ids_of_all_types, odd_records, further_keys, nested_objects, a_key_twice, run_length, a_missing_key]
    + [unhashable, no_object],
)
def test_whatever_is_in_the_file(build: Build, change: Any) -> None:
    value = content()
    change(value)
    build.equal(value)


@pytest.mark.parametrize('at', [0.3, 0.5, 0.8, 0.97])
@pytest.mark.parametrize('harm', ['truncated', 'a comma too many', 'a bad byte'])
def test_bad_files(build: Build, at: float, harm: str) -> None:
    text = json.dumps(content())
    middle = text.index('}, {', int(at * len(text))) + 1
    rest = {'truncated': '', 'a comma too many': f',{text[middle:]}', 'a bad byte': f'\udcff{text[middle:]}'}
    assert isinstance(build.equal(text[:middle] + rest[harm]), str)


def test_a_key_given_twice(build: Build) -> None:
    text = json.dumps(content())
    again = json.dumps(content(seed=1)['annotations'])
    assert len(build.equal(f'{text[:-1]}, "annotations": {again}}}')['annotations']) == 300


def test_progress_goes_on_and_ends(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.one(json.dumps(content()), 1)
    seen: List[int] = []
    monkeypatch.setenv(crew.ENV, '3')
    with open(tmp_path / 'a.json', 'rb') as file, open(tmp_path / 'store', 'wb') as out:
        size = os.fstat(file.fileno()).st_size
        build_store(file, NAME, out, tempfile.TemporaryFile, lambda done, total: seen.append(done), 4000)
    assert seen == sorted(seen)
    assert 0.9 * size < seen[-1] <= size


@pytest.mark.parametrize('value', ['0', '-1', 'many', '1.5', '²'])
def test_setting(build: Build, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(crew.ENV, value)
    with pytest.raises(ValueError, match=crew.ENV):
        crew.processes()


def test_one_process_starts_no_other(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('subprocess.Popen', None)
    assert build.one(json.dumps(content()), 1)[1].common is None


@pytest.mark.parametrize('executable', ['/bin/false', '/bin/true', '/bin/echo', '/no/such/file'])
def test_processes_that_cannot_be_had(build: Build, monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, 'executable', executable)
    build.equal(content())


def test_processes_whose_exit_status_is_lost(build: Build) -> None:
    value, before = content(), signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    unhashable(value)
    try:
        assert isinstance(build.equal(value), str)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_path_that_is_no_text(build: Build, monkeypatch: pytest.MonkeyPatch, merged: List[Part]) -> None:
    monkeypatch.setattr(sys, 'path', [*sys.path, Path('/somewhere')])
    build.equal(content())
    assert merged


def test_many_descriptors(build: Build, merged: List[Part]) -> None:
    resource = pytest.importorskip('resource')
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 1500:
        pytest.skip('this process may not open that many files')
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1500), limits[1]))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        build.equal(content())
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert merged


def test_no_descriptor_stays_open(build: Build) -> None:
    folder = Path('/proc/self/fd')
    if not folder.exists():
        pytest.skip('/proc tells which are open')
    build.equal(content())
    before = len(list(folder.iterdir()))
    build.one(json.dumps(content()), 4)
    assert len(list(folder.iterdir())) == before


CLOSED = """
import sys, tempfile
from mmshared.annotations.parsing.builder import build_store
with open(sys.argv[1], 'rb') as source, open(sys.argv[2], 'wb') as out:
    build_store(source, 'a', out, tempfile.TemporaryFile, None, 4000)
"""


def test_closed_standard_streams(build: Build, tmp_path: Path) -> None:
    expected = build.one(json.dumps(content(images=600)), 1)[0]
    code, store = tmp_path / 'build.py', tmp_path / 'closed.store'
    code.write_text(CLOSED)
    environment = {**os.environ, 'PYTHONPATH': str(REPO), crew.ENV: '3'}
    command = f'exec {sys.executable} {code} {tmp_path / "a.json"} {store} <&- >&- 2>&-'
    assert subprocess.run(['sh', '-c', command], env=environment).returncode == 0
    stores = [AnnotationStore(path).to_dict() for path in (expected, store)]
    assert exact(stores[0]) == exact(stores[1])


def test_processes_that_are_killed(build: Build) -> None:
    text, stop = json.dumps(content()), threading.Event()
    expected = build.one(text, 1)[0].read_bytes()
    before = set(psutil.Process().children())

    def kill() -> None:
        while not stop.is_set():
            for child in set(psutil.Process().children()) - before:
                child.send_signal(signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        assert build.one(text, 3)[0].read_bytes() == expected
    finally:
        stop.set()
        thread.join()
    assert set(psutil.Process().children()) <= before


SLOW = """
import sys, tempfile, time
from mmshared.annotations.parsing.builder import build_store
with open(sys.argv[1], 'rb') as source, tempfile.TemporaryFile() as out:
    build_store(source, 'a', out, tempfile.TemporaryFile, lambda *_: (print(flush=True), time.sleep(60)), 4000)
"""


@pytest.mark.parametrize('how', [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_builder(build: Build, tmp_path: Path, how: signal.Signals) -> None:
    value = content()
    images_last(value)  # so that what is told first is how far the annotations are
    build.one(json.dumps(value), 1)
    environment = {**os.environ, 'PYTHONPATH': str(REPO), crew.ENV: '3'}
    with subprocess.Popen(
        [sys.executable, '-c', SLOW, str(tmp_path / 'a.json')],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    ) as process:
        process.stdout.readline()
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        process.send_signal(how)
    assert not psutil.wait_procs(children, timeout=20)[1]
