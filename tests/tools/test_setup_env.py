"""tools/setup_env.sh: what it finds, what it refuses, and that it recovers. Nothing is downloaded here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time

import pytest


@pytest.fixture
def checkout(repo, tmp_path):
    """A copy of what the script reads."""
    shutil.copytree(repo / 'requirements', tmp_path / 'requirements')
    (tmp_path / 'tools').mkdir()
    shutil.copy(repo / 'tools' / 'setup_env.sh', tmp_path / 'tools')
    return tmp_path


def start(checkout, command='bash tools/setup_env.sh', active=False, **env):
    """Start a command in the checkout, by default on a machine where no suitable environment is active."""
    path = os.pathsep.join(['/usr/bin', '/bin'])
    if active:
        path = os.pathsep.join([os.path.dirname(sys.executable), path])
    environment = {'PATH': path, 'HOME': str(checkout), 'PIP_NO_INDEX': '1', 'PIP_CONFIG_FILE': os.devnull, **env}
    return subprocess.Popen(
        ['bash', '-c', command],
        cwd=checkout,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(*args, **kwargs):
    process = start(*args, **kwargs)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_a_suitable_active_environment_is_used(checkout):
    code, output = run(checkout, 'set -eu; source tools/setup_env.sh; echo "$PYTHON"; echo "$PYTHONPATH"', active=True)
    assert code == 0, output
    assert 'Using the active environment' in output
    assert output.splitlines()[-1] == str(checkout)
    assert not (checkout / '.venv').exists()


def test_an_unknown_stack(checkout):
    code, output = run(checkout, MMSHARED_STACK='nonsense')
    assert code != 0
    assert 'there is no requirements/stack-nonsense.txt' in output


@pytest.mark.parametrize(
    'python, reason', [('nowhere/python3', 'is not there'), ('/bin/false', 'version 3.9 to 3.13 is needed')]
)
def test_without_a_usable_python_it_says_what_is_wrong_with_each(checkout, python, reason):
    code, output = run(checkout, MMSHARED_PYTHON=python)
    assert code != 0
    assert 'no usable Python 3.9 to 3.13' in output and f'{python}: {reason}' in output
    assert not (checkout / '.venv').exists()


@pytest.mark.skipif(not os.path.exists('/usr/bin/python3'), reason='needs /usr/bin/python3 to make an environment from')
def test_a_failure_shows_the_end_of_the_log_and_the_next_run_starts_afresh(checkout):
    code, output = run(checkout)
    if 'no usable Python' in output:
        pytest.skip('/usr/bin/python3 cannot make environments here (no venv module or headers)')
    assert code != 0
    assert 'No matching distribution found' in output and 'setup.log' in output
    leftover = checkout / '.venv' / 'leftover'
    leftover.touch()
    code, output = run(checkout)
    assert code != 0
    assert 'starting afresh' in output and not leftover.exists()


@pytest.mark.skipif(not shutil.which('flock'), reason='without the flock command set-ups are not serialised')
def test_a_second_set_up_waits_for_the_first(checkout):
    folder = os.open(checkout, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        process = start(checkout)
        assert 'waiting for it' in process.stdout.readline()
        time.sleep(0.5)
        assert process.poll() is None
    finally:
        os.close(folder)
    process.communicate(timeout=120)
    assert process.returncode != 0  # it went on, and failed for want of an index
