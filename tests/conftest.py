"""Fixtures: a handful of small images, and a config that trains on them in seconds on a CPU."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Callable, Iterator

# The tests run several processes at a time: threads of each would wait for each other. (Before PyTorch is imported.)
os.environ.setdefault('OMP_NUM_THREADS', '1')

import pytest
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope

REPO = Path(__file__).resolve().parents[1]


def _load_tool(name: str):
    """Import ``tools/<name>.py``, which is not part of a package."""
    spec = importlib.util.spec_from_file_location(name, REPO / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_LONG = ('tools', 'engine')


def pytest_collection_modifyitems(items: list) -> None:
    """Let the files that take longest come first, so that two processes end together."""
    items.sort(key=lambda item: (*_LONG, item.path.parent.name).index(item.path.parent.name))


@pytest.fixture(autouse=True)
def default_scope(monkeypatch) -> None:
    """Forget the default scope that a test sets (every runner does): the next one's types are those of its own."""
    monkeypatch.setattr(DefaultScope, '_instance_dict', DefaultScope._instance_dict.copy())


@pytest.fixture(scope='session')
def load_tool():
    """A function that imports ``tools/<name>.py``."""
    return _load_tool


@pytest.fixture(scope='session')
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope='session')
def shapes(tmp_path_factory) -> Path:
    """A folder with 8 training and 4 validation images of 64 pixels, made by the demo's own script."""
    folder = tmp_path_factory.mktemp('shapes')
    make_split = _load_tool('make_demo_data').make_split
    make_split(folder, 'train', 8, 64, seed=0)
    make_split(folder, 'val', 4, 64, seed=1)
    return folder


@pytest.fixture(scope='session')
def run_tool(tmp_path_factory):
    """Run a command of ``tools/`` for real: ``run_tool('dist_train.sh', *args)`` -> its combined output."""
    cache = str(tmp_path_factory.mktemp('cache'))

    def run(script: str, *args: object, cwd: Path = REPO, fail: bool = False, **env: str) -> str:
        interpreter = 'bash' if script.endswith('.sh') else sys.executable
        own = {'PYTHON': sys.executable, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1', 'MMSHARED_CACHE': cache}
        environment = {**os.environ, **own, **env}
        done = subprocess.run(
            [interpreter, str(REPO / 'tools' / script), *map(str, args)],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert (done.returncode != 0) is fail, f'exit status {done.returncode} of {script}:\n{done.stdout[-6000:]}'
        return done.stdout

    return run


@pytest.fixture(scope='session')
def unused_port_factory():
    """A function that gives a TCP port (as text) of this machine that was free a moment ago."""

    def unused() -> str:
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            return str(probe.getsockname()[1])

    return unused


@pytest.fixture
def unused_port(unused_port_factory) -> str:
    """One such port."""
    return unused_port_factory()


@pytest.fixture
def messages() -> Iterator[Callable[[], str]]:
    """What mmengine's current logger was given since the last call (its loggers are not in ``logging``'s tree)."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)

    def read() -> str:
        text = '\n'.join(records)
        records.clear()
        return text

    yield read
    logger.removeHandler(handler)
