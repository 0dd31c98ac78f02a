"""Importing mmshared: what the stack below has to say stays out of a program's results."""

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
