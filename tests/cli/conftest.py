"""The command in this process, and as a real one."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest

from mmshared.cli.main import main

from ..annotations.test_summary import clean
from ..datasets.helpers import write

ROOT = Path(__file__).resolve().parents[2]


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """This test's cache folder."""
    folder = tmp_path / 'cache'
    monkeypatch.setenv('MMSHARED_CACHE', os.fspath(folder))
    return folder


@pytest.fixture
def cli(capsys) -> Callable[..., Outcome]:
    """Run the command in this process."""

    def run(*arguments: Any) -> Outcome:
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as error:  # argparse
            status = error.code
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def fails(cli) -> Callable[..., str]:
    """Run the command, which must fail with one line on stderr: the line."""

    def run(*arguments: Any) -> str:
        status, _, err = cli(*arguments)
        assert status == 1 and err.startswith('mmshared: error: ') and err.count('\n') == 1 and err.endswith('\n'), err
        assert len(err) < 1700
        return err

    return run


def process(*arguments: Any, env: dict | None = None, **options: Any) -> subprocess.Popen:
    """The command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, '-m', 'mmshared', *map(os.fspath, arguments)],
        env={**os.environ, 'PYTHONPATH': os.fspath(ROOT), **(env or {})},
        **{
            'stdout': subprocess.PIPE,
            'stderr': subprocess.PIPE,
            'preexec_fn': lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
            **options,
        },
    )


@pytest.fixture
def ann(tmp_path) -> Path:
    """A small annotation file."""
    return Path(write(tmp_path / 'ann.json', clean()))


def on_disk(folder: Path) -> list:
    """What lies in a folder, which need not be there."""
    return sorted(os.listdir(folder)) if folder.exists() else []


def on_a_terminal(*arguments: Any, env: dict) -> tuple:
    """Output and exit status of the command on a terminal."""
    controller, terminal = pty.openpty()
    running = process(*arguments, env=env, stdout=terminal, stderr=terminal)
    os.close(terminal)
    parts = []
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:  # Linux: the last one who had it open is gone
            break
        if not part:
            break
        parts.append(part)
    os.close(controller)
    return b''.join(parts).decode(), running.wait()
