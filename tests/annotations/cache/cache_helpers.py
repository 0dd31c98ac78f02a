"""Children that run in a place of their own (user, mounts), and small disks, for the tests of the cache."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORKER = Path(__file__).with_name('cache_worker.py')
needs_root = pytest.mark.skipif(
    not hasattr(os, 'geteuid') or os.geteuid() != 0, reason='needs root to mount file systems and to change the user'
)


def names(folder) -> list:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def run_child(action, uid=None, private_var_tmp=False, timeout=60):
    """``action()`` in a forked child; its JSON-able result, or ``{'error': class, 'text': ...}``.

    Args:
        uid: The user to become, without a home.
        private_var_tmp: Mount an empty tmpfs on /var/tmp, for this child alone.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(timeout)
            if private_var_tmp:
                make_private_var_tmp()
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                os.environ.pop('HOME', None)
            try:
                result = action()
            except Exception as error:
                traceback.print_exc()
                result = {'error': type(error).__name__, 'text': str(error)}
            with os.fdopen(writing, 'w') as file:
                json.dump(result, file)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f'child ended with status {status}'
    return json.loads(text)


def make_private_var_tmp() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0:  # CLONE_NEWNS
        raise OSError(ctypes.get_errno(), 'unshare')
    subprocess.run(['mount', '--make-rprivate', '/'], check=True)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'none', '/var/tmp'], check=True)


def job_key_alone() -> str:
    """job_key() in a process that need not load all of mmshared for it, which takes seconds."""
    path = ROOT / 'mmshared' / 'annotations' / 'cache' / 'job.py'
    return runpy.run_path(os.fspath(path))['job_key']()


def worker_command(*args) -> list:
    return [sys.executable, os.fspath(WORKER), *map(os.fspath, args)]


def worker_env(**extra) -> dict:
    return {**os.environ, 'PYTHONPATH': os.fspath(ROOT), **extra}


def mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    command = ['mount', '-t', 'tmpfs', '-o', f'mode=0700,{options}', 'none', os.fspath(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f'mounting is not permitted here: {result.stderr.strip()}')


def fill(folder: Path, leave_pages: int) -> None:
    """Fill the small tmpfs on ``folder`` up to so many free pages of 4096 bytes."""
    free = os.statvfs(folder).f_bavail
    with open(folder / 'filler', 'wb', buffering=0) as file:
        try:
            for _ in range(free - leave_pages):
                file.write(b'x' * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
