"""tools/setup_env.sh: what it finds, what it refuses, and that it recovers. Nothing is downloaded here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time

import pytest

from mmshared.utils.stack import stack_versions

STACKS = ('openmmlab', 'onedl')
MINE = 'onedl' if 'onedl-mmengine' in stack_versions() else 'openmmlab'
OTHER = STACKS[MINE == 'openmmlab']
FOLDERS = {'openmmlab': '.venv', 'onedl': '.venv-onedl'}
PACKAGES = {'openmmlab': 'mmengine', 'onedl': 'onedl-mmengine'}


@pytest.fixture
def checkout(repo, tmp_path):
    """A copy of what the script reads."""
    shutil.copytree(repo / 'requirements', tmp_path / 'requirements')
    (tmp_path / 'tools').mkdir()
    for name in ('setup_env.sh', 'check_env.py'):
        shutil.copy(repo / 'tools' / name, tmp_path / 'tools')
    return tmp_path


@pytest.fixture
def also_installed(tmp_path):
    """A function that makes pip see a package ``name`` in a folder for PYTHONPATH, which it returns."""

    def install(name):
        info = tmp_path / 'more' / f'{name.replace("-", "_")}-0.1.dist-info'
        info.mkdir(parents=True)
        (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n')
        return str(info.parent)

    return install


@pytest.fixture
def complete(checkout):
    """The checkout's own environment for the stack that is installed here, as far as the script can see."""
    state = checkout / FOLDERS[MINE] / '.mmshared'
    (state.parent / 'bin').mkdir(parents=True)
    state.mkdir()
    for step in ('torch', 'mmcv', 'stack', 'self', 'check'):
        (state / f'done-{step}').touch()
    key = subprocess.check_output('cat requirements/*.txt | cksum', shell=True, text=True, cwd=checkout)
    (state / 'key').write_text(key)
    python = state.parent / 'bin' / 'python'
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return state.parent


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
    command = 'set -eu; source tools/setup_env.sh; echo "$PYTHON"; echo "$PYTHONPATH"'
    code, output = run(checkout, command, active=True, MMSHARED_STACK=MINE)
    assert code == 0, output
    assert 'Using the active environment' in output
    assert output.splitlines()[-1] == str(checkout)
    assert not list(checkout.glob('.venv*'))


def test_openmmlab_is_the_default_stack(checkout):
    for env in ({}, {'MMSHARED_STACK': ''}):
        _, output = run(checkout, active=True, MMSHARED_PYTHON='nowhere/python3', **env)
        assert ('Using the active environment' in output) is (MINE == 'openmmlab'), output


def test_an_active_environment_with_the_other_stack_is_not_used(checkout):
    code, output = run(checkout, active=True, MMSHARED_STACK=OTHER, MMSHARED_PYTHON='nowhere/python3')
    assert code != 0
    assert f'Not using the active Python for MMSHARED_STACK={OTHER}: {os.path.dirname(sys.executable)}' in output
    assert PACKAGES[MINE] in output and f'of MMSHARED_STACK={MINE}' in output
    assert 'no usable Python' in output  # so it set out to make one


def test_an_active_environment_with_both_stacks_is_not_used(checkout, also_installed):
    env = {'MMSHARED_STACK': MINE, 'PYTHONPATH': also_installed(PACKAGES[OTHER])}
    code, output = run(checkout, active=True, MMSHARED_PYTHON='nowhere/python3', **env)
    assert code != 0
    assert f'has {PACKAGES[OTHER]}, of MMSHARED_STACK={OTHER}' in output


def test_an_active_environment_without_compiled_operators_is_not_used(checkout, tmp_path):
    (tmp_path / 'more' / 'mmcv').mkdir(parents=True)
    (tmp_path / 'more' / 'mmcv' / '__init__.py').touch()
    env = {'MMSHARED_STACK': MINE, 'PYTHONPATH': str(tmp_path / 'more')}
    code, output = run(checkout, active=True, MMSHARED_PYTHON='nowhere/python3', **env)
    assert code != 0
    assert 'has mmcv without its compiled operators' in output


def test_an_active_environment_that_cannot_be_looked_into_is_not_used(checkout, tmp_path):
    (tmp_path / 'more').mkdir()
    (tmp_path / 'more' / 're.py').write_text('raise RuntimeError')
    code, output = run(checkout, MMSHARED_PYTHON='nowhere/python3', PYTHONPATH=str(tmp_path / 'more'))
    assert code != 0
    assert 'python3 does not work' in output


def test_a_complete_environment_of_its_own_is_used(checkout, complete):
    command = 'set -eu; source tools/setup_env.sh; echo "$PYTHON"'
    code, output = run(checkout, command, MMSHARED_STACK=MINE)
    assert code == 0, output
    assert output.splitlines()[-2:] == [f'[set-up] Using {complete}', str(complete / 'bin' / 'python')]


def test_another_stack_in_its_own_environment_is_an_error(checkout, complete, also_installed):
    code, output = run(checkout, MMSHARED_STACK=MINE, PYTHONPATH=also_installed(PACKAGES[OTHER]))
    assert code != 0
    assert f'error: {complete}/bin/python has {PACKAGES[OTHER]}, of MMSHARED_STACK={OTHER}' in output
    assert f'remove {complete}' in output


@pytest.mark.parametrize('name', ['nonsense', '../stack-onedl', 'one dl'])
def test_an_unknown_stack(checkout, name):
    code, output = run(checkout, MMSHARED_STACK=name)
    assert code != 0
    assert f'MMSHARED_STACK={name} is not among the choices: onedl openmmlab' in output


@pytest.mark.parametrize('stack, lowest', [('openmmlab', '3.9'), ('onedl', '3.10')])
def test_without_a_usable_python_it_says_what_is_wrong_with_each(checkout, stack, lowest):
    pythons = {'nowhere/python3': 'is not there', '/bin/false': f'version {lowest} to 3.13 is needed'}
    code, output = run(checkout, MMSHARED_STACK=stack, MMSHARED_PYTHON=' '.join(pythons))
    assert code != 0
    assert f'no usable Python {lowest} to 3.13' in output
    assert all(f'{python}: {reason}' in output for python, reason in pythons.items())
    assert not list(checkout.glob('.venv*'))


@pytest.mark.skipif(not os.path.exists('/usr/bin/python3'), reason='needs /usr/bin/python3 to make an environment from')
def test_a_failure_shows_the_end_of_the_log_and_the_next_run_starts_afresh(checkout):
    code, output = run(checkout, MMSHARED_STACK=MINE)
    if 'no usable Python' in output:
        pytest.skip('/usr/bin/python3 cannot make environments here (no venv module or headers)')
    assert code != 0
    assert 'No matching distribution found' in output and 'setup.log' in output
    leftover = checkout / FOLDERS[MINE] / 'leftover'
    leftover.touch()
    code, output = run(checkout, MMSHARED_STACK=MINE)
    assert code != 0
    assert 'starting afresh' in output and not leftover.exists()
    assert [path.name for path in checkout.glob('.venv*')] == [FOLDERS[MINE]]


@pytest.mark.skipif(not shutil.which('flock'), reason='without the flock command set-ups are not serialised')
def test_a_second_set_up_waits_for_the_first(checkout):
    folder = os.open(checkout, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        process = start(checkout, MMSHARED_PYTHON='nowhere/python3')
        assert any('waiting for it' in line for line in iter(process.stdout.readline, ''))
        time.sleep(0.5)
        assert process.poll() is None
    finally:
        os.close(folder)
    output, _ = process.communicate(timeout=120)
    assert 'no usable Python' in output  # it went on, as far as it could here
