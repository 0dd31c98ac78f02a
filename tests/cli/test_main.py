"""The command as a whole: how it starts, what it says when something is wrong, and to whom it talks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import mmshared
from mmshared.annotations.cache.messages import printable
from mmshared.cli.text import columns, width_of

from ..annotations.test_summary import clean
from ..datasets.helpers import write
from .conftest import ROOT, on_a_terminal, process


# ---- starting
@pytest.mark.parametrize('way', ['module', 'script'])
def test_it_does_not_import_the_stack(way, ann, cache, tmp_path):
    if sys.version_info < (3, 10) and way == 'module':
        pytest.skip('Python 3.9 does not tell which module it was started with')
    script = tmp_path / 'mmshared'  # as pip makes one
    script.write_text('import sys\nfrom mmshared.__main__ import start\nsys.exit(start())\n')
    command = ['-m', 'mmshared'] if way == 'module' else [os.fspath(script)]
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', *command, 'inspect', os.fspath(ann)],
        cwd=ROOT,
        env={**os.environ, 'PYTHONPATH': os.fspath(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and 'annotations  4' in done.stdout
    imported = {line.rpartition('|')[2].strip().partition('.')[0] for line in done.stderr.splitlines()}
    assert 'numpy' in imported and not imported & {'torch', 'mmengine', 'mmcv', 'mmdet', 'cv2', 'pycocotools'}


@pytest.mark.parametrize(
    'arguments, given, command',
    [
        (['-m', 'pack', 'x'], ['python', '-m', 'mmshared', 'pack', 'x'], True),
        (['-m'], ['python', '-X', 'dev', '-mmmshared'], True),
        (['-m'], ['python', '-m', 'my.training'], False),
        (['-m', 'mmshared'], ['python', '-m', 'my.training', 'mmshared'], False),
        (['train.py', 'mmshared'], ['python', 'train.py', 'mmshared'], False),
        (['/usr/bin/mmshared', 'pack'], ['python', '/usr/bin/mmshared', 'pack'], True),
        (['train-mmshared', 'mmshared'], ['python', 'train-mmshared', 'mmshared'], False),
        (['-c'], ['python', '-c', 'import mmshared'], False),
        ([''], ['python'], False),
        ([], [], False),
    ],
)
def test_only_the_command_itself_goes_without_the_stack(arguments, given, command, monkeypatch):
    monkeypatch.setattr(sys, 'argv', arguments)
    monkeypatch.setattr(sys, 'orig_argv', given, raising=False)
    assert mmshared._runs_as_command() is command


def test_an_installed_one(tmp_path, ann):
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'pip', 'install', '--no-deps', '--no-build-isolation', '--no-index', '-q'),
            *('--target', tmp_path / 'site', tmp_path / 'copy'),
        ]
        if _copied(tmp_path / 'copy')
        else [],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    script = tmp_path / 'site' / 'bin' / 'mmshared'
    environment = {**os.environ, 'PYTHONPATH': os.fspath(tmp_path / 'site')}
    shown = subprocess.run([script, 'inspect', '--json', ann], capture_output=True, text=True, env=environment)
    assert json.loads(shown.stdout)['annotations'] == 4
    version = subprocess.run([script, '--version'], capture_output=True, text=True, env=environment)
    assert version.stdout == f'mmshared {mmshared.__version__}\n'


def _copied(folder) -> bool:
    """Whether what the package is made from was copied: building leaves folders behind."""
    import shutil

    for name in ('mmshared', 'requirements'):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('setup.py', 'README.md', 'pyproject.toml'):
        shutil.copy(ROOT / name, folder)
    return True


@pytest.mark.parametrize('number', range(4))
def test_interrupted_while_it_starts(ann, number):
    running = process('inspect', ann)
    time.sleep(0.1 + 0.15 * number)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    # It may come before Python has even begun with the module; an editable install has its name in what starts Python.
    assert b'Traceback' not in err or b'mmshared' not in err or b'Failed to import the site module' in err, err


def test_something_is_not_installed(tmp_path):
    (tmp_path / 'msgspec.py').write_text('raise ModuleNotFoundError(name="msgspec")')
    running = process('cache', 'list', env={'PYTHONPATH': f'{tmp_path}:{ROOT}'})
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1 and err == b'mmshared: error: msgspec is not installed. Install mmshared with pip\n'


@pytest.mark.parametrize(
    'arguments',
    [
        [],
        ['nonsense'],
        ['pack'],
        ['pack-images', 'x'],
        ['cache'],
        ['inspect'],
        ['inspect', '--no', 'x'],
        ['convert-config'],
    ],
)
def test_wrong_arguments(cli, arguments):
    status, out, err = cli(*arguments)
    assert status == 2 and out == '' and err.startswith('usage: mmshared')


@pytest.mark.parametrize(
    'arguments',
    [[], ['pack'], ['pack-images'], ['cache'], ['cache', 'prune'], ['inspect'], ['doctor'], ['convert-config']],
)
def test_help(cli, arguments):
    status, out, _ = cli(*arguments, '--help')
    assert status == 0 and out.startswith('usage: mmshared')


# ---- output
def test_a_reader_that_goes_away(tmp_path, ann):
    reading, writing = os.pipe()
    os.close(reading)
    for arguments in (['inspect', ann], ['cache', 'list', '--json']):
        running = process(*arguments, stdout=writing)
        _, err = running.communicate(timeout=60)
        assert running.returncode == 141 and b'Traceback' not in err and b'Exception' not in err
    os.close(writing)


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='needs /dev/full of Linux')
def test_output_to_a_full_disk(ann):
    with open('/dev/full', 'w') as full:
        running = process('inspect', ann, stdout=full)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 1 and err == b'mmshared: error: the output: No space left on device\n'


def test_closed_output(ann):
    running = process('inspect', ann, stdout=None, preexec_fn=lambda: os.close(1))
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0 and err == b''


HOSTILE = 'a\x1b[2J\x1b]0;pwned\x07\nb\r\u202ec\u200b\ud800鸟é\u0301' + 'x' * 10**6


@pytest.fixture
def hostile(tmp_path):
    """A file whose names and ids want to steer the terminal."""
    data = clean()
    data['categories'][0]['name'] = HOSTILE
    data['categories'].append({'id': HOSTILE, 'name': HOSTILE + '2'})
    data['annotations'][1]['id'] = HOSTILE
    data['annotations'][2]['category_id'] = HOSTILE + '3'
    return write(tmp_path / 'hos\x1b[31m\ntile.json', data)


def harmless(text):
    return all(c == '\n' or c.isprintable() for c in text)


@pytest.mark.parametrize(
    'encoding, env',
    [
        ('utf-8', {'LC_ALL': 'C'}),
        ('ascii', {'LC_ALL': 'C', 'PYTHONCOERCECLOCALE': '0', 'PYTHONUTF8': '0', 'PYTHONIOENCODING': 'ascii'}),
        ('latin-1', {'PYTHONIOENCODING': 'latin-1'}),
    ],
)
def test_names_that_steer_the_terminal(hostile, encoding, env):
    running = process('inspect', hostile, env={'COLUMNS': '60', **env})
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and err == b'' and len(out) < 20_000
    assert harmless(out.decode(encoding)) and b'classes: 3' in out


def test_such_names_in_the_other_commands(cli, hostile):
    for arguments in (['inspect', '--json', hostile], ['pack', hostile], ['cache', 'list'], ['pack', hostile + '2']):
        status, out, err = cli(*arguments)
        assert status == (arguments[-1] != hostile and arguments[0] == 'pack'), err
        assert harmless(out) and harmless(err) and out + err


def test_a_class_name_is_shown_in_its_own_script(cli, tmp_path):
    data = clean()
    data['categories'][0]['name'], data['categories'][1]['name'] = '鸟', 'café'
    out = cli('inspect', write(tmp_path / 'a.json', data)).out
    assert '  鸟    id 1  2\n  café  id 2  2\n' in out


@pytest.mark.parametrize('width', [1, 40, 80, 500])
def test_narrow_terminals(cli, ann, width, monkeypatch):
    monkeypatch.setenv('COLUMNS', str(width))
    for arguments in (['inspect', ann], ['doctor']):
        status, out, _ = cli(*arguments)
        assert out and all(len(word) < 200 for word in out.split())


def test_colours(tmp_path):
    data = clean()
    data['annotations'][0]['area'] = 0
    path = write(tmp_path / 'a.json', data)
    environment = {'TERM': 'xterm', 'NO_COLOR': ''}
    assert '\x1b[33mwarning\x1b[0m  1 x' in on_a_terminal('inspect', path, env=environment)[0]
    for off in ({'NO_COLOR': '1'}, {'TERM': 'dumb'}):
        assert '\x1b' not in on_a_terminal('inspect', path, env={**environment, **off})[0]


# ---- text
@pytest.mark.parametrize(
    'text, shown',
    [
        ('plain, 鸟é', 'plain, 鸟é'),
        ('a\nb\tc\x1b', 'a\\nb\\tc\\x1b'),
        ('\u202e\u200b\ud800', '\\u202e\\u200b\\ud800'),
        (5, '5'),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown


def test_printable_is_cut():
    assert printable('a' * 10**7, 10) == 'aaaaaaa...' and printable('\x1b' * 100, 10) == '\\x1b\\x1...'
    assert printable('abc', 3) == 'abc'


def test_columns_of_wide_and_combining_characters():
    assert columns([('鸟', '1'), ('e\u0301', '10'), ('abc', '100')], right=(1,)) == [
        '鸟     1',
        'e\u0301     10',
        'abc  100',
    ]
    assert width_of('鸟e\u0301a') == 4
