"""Importing mmshared: what the stack has to say stays out of a program's results, and a part of the stack is enough."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys

class Chatty:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmdet.datasets':
            print('said by the stack')

sys.meta_path.insert(0, Chatty())
import mmshared
print('result')
"""


def test_what_a_stack_prints_goes_to_stderr(repo):
    done = subprocess.run([sys.executable, '-c', CODE], cwd=repo, capture_output=True, text=True)
    assert done.stdout == 'result\n', done.stderr
    assert 'said by the stack' in done.stderr


def test_mmengine_alone_gets_the_loops(repo):
    code = """
import sys
sys.modules['mmdet'] = sys.modules['mmcv'] = None  # not installed
import mmshared
from mmengine.registry import LOOPS
print(*(LOOPS.get(f'Lean{name}Loop').__module__.rpartition('.')[0] for name in ('Train', 'IterTrain', 'Val', 'Test')))
import mmshared.engine
"""
    done = subprocess.run([sys.executable, '-c', code], cwd=repo, capture_output=True, text=True)
    assert done.stdout.split() == ['mmshared.engine.loops'] * 4, done.stderr
