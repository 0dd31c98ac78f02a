"""What is said to be installed is what gets imported, and installing mmshared brings no stack along."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from mmshared.utils.stack import DISTRIBUTIONS, stack_versions

STACK = {name for names in DISTRIBUTIONS.values() for name in names}


@pytest.mark.parametrize('module', DISTRIBUTIONS)
def test_the_version_is_that_of_the_imported_module(module):
    versions = stack_versions()
    (name,) = set(DISTRIBUTIONS[module]) & set(versions)
    assert versions[name] == importlib.import_module(module).__version__


def test_a_package_that_is_not_installed_is_left_out():
    code = 'import sys; sys.path = sys.argv[1:]; from mmshared.utils import stack; print(stack.stack_versions())'
    paths = [path for path in sys.path if path and 'site-packages' not in path]  # the stack is in site-packages
    done = subprocess.run([sys.executable, '-c', code, *paths], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ('{}\n', '')


def test_the_package_requires_no_stack_and_an_extra_one_only(repo, tmp_path):
    subprocess.run([sys.executable, 'setup.py', '-q', 'egg_info', '-e', tmp_path], cwd=repo, check=True)
    sections, extra = {None: set()}, None
    for line in (tmp_path / 'mmshared.egg-info' / 'requires.txt').read_text().split():
        if line.startswith('['):
            extra = line.strip('[]')
            sections[extra] = set()
        else:
            sections[extra].add(re.match('[a-z-]+', line)[0])
    assert not sections[None] & STACK
    assert sections['mm'] & STACK == {'mmengine', 'mmcv', 'mmdet'}
    assert sections['onedl'] & STACK == {'onedl-mmengine', 'onedl-mmcv', 'onedl-mmdetection'}
