"""``mmshared pack``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from mmshared.annotations import AnnotationFileError, open_store, opening
from mmshared.cli.main import main
from mmshared.datasets import SharedCocoDataset

from ..annotations.cache.cache_helpers import needs_root, run_child
from ..annotations.test_summary import clean
from ..datasets.helpers import content, options, shared, stock, write
from ..datasets.oracle import compare_datasets
from .conftest import on_a_terminal, on_disk, process


@pytest.fixture(scope='module')
def large(tmp_path_factory):
    """A file whose packing takes a while."""
    path = tmp_path_factory.mktemp('large') / 'large.json'
    data = clean()
    one = data['annotations'].pop()
    del one['id']
    rest = json.dumps(one)[1:]
    head, tail = json.dumps({**data, 'annotations': []}).split('[]')
    records = ', '.join(f'{{"id": {i}, {rest}' for i in range(200_000))
    path.write_text(f'{head}[{records}]{tail}')
    return path


def test_a_job_does_not_parse_what_was_packed(cli, tmp_path, monkeypatch):
    path = write(tmp_path / 'a.json', content())
    status, out, err = cli('pack', path)
    assert status == 0 and re.fullmatch(r'.*a\.json: packed in [\d.]+ s, .* \(0\.\d\d of .*\): (.*\.mmstore)\n', out)
    monkeypatch.setattr(opening, 'build_store', None)
    ours = SharedCocoDataset(ann_file=path, **options())
    assert compare_datasets(stock(path), ours) is None
    assert ours._store.path == out.split()[-1]
    status, out, err = cli('pack', path)
    assert status == 0 and 'is there already' in out and out.split()[-1] == ours._store.path


def test_a_file_that_lvis_datasets_take_is_packed_once(cli, tmp_path):
    images = [{'id': i, 'coco_url': f'http://x/train2017/{i}.jpg', 'height': 4, 'width': 4} for i in (1, 2)]
    file = write(tmp_path / 'lvis.json', {'images': images, 'annotations': [], 'categories': [{'id': 1, 'name': 'a'}]})
    first, second = cli('pack', file), cli('pack', file)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert len(list((tmp_path / 'cache').glob('*.mmstore'))) == 1 and 'already' in second.out + second.err


def test_the_folder_of_a_dataset_with_cache_dir(cli, tmp_path, monkeypatch):
    path = write(tmp_path / 'a.json', content())
    cli('pack', '--cache-dir', tmp_path / 'cache of it', path)
    monkeypatch.setattr(opening, 'build_store', None)
    SharedCocoDataset(ann_file=path, cache_dir=os.fspath(tmp_path / 'cache of it'), **options())


def test_several_of_which_some_are_bad(cli, ann, tmp_path):
    (tmp_path / 'bad.json').write_text('{"images": [')
    other = write(tmp_path / 'other.json', clean())
    status, out, err = cli('pack', tmp_path / 'bad.json', ann, tmp_path / 'missing.json', other, tmp_path)
    assert status == 1
    assert [line.split(':')[0] for line in out.splitlines()] == [str(ann), other]
    assert [line.split(': ')[1:3] for line in err.splitlines()] == [
        ['error', f'{tmp_path}/bad.json'],
        ['error', f'{tmp_path}/missing.json'],
        ['error', str(tmp_path)],
    ]


BAD = {
    'missing': (lambda path: path.unlink(), 'No such file or directory'),
    'a folder': (lambda path: (path.unlink(), path.mkdir()), 'Is a directory'),
    'a pipe': (lambda path: (path.unlink(), os.mkfifo(path)), 'not a regular file'),
    'empty': (lambda path: path.write_bytes(b''), 'is empty'),
    'not JSON': (lambda path: path.write_bytes(b'\xff\xfe\0'), 'JSON'),
    'cut': (lambda path: path.write_bytes(path.read_bytes()[:300]), 'ends in the middle'),
    'a list': (lambda path: path.write_text('[]'), 'has a list at its top'),
    'deep': (lambda path: path.write_text('[' * 10**6), ''),
    'no box': (lambda path: write(path, broken(bbox=None)), "annotations\\[1\\].*'bbox'"),
    'repeated ids': (lambda path: write(path, broken(id=10)), 'not unique'),
    'a loop of links': (lambda path: (path.unlink(), path.symlink_to(path)), 'symbolic links'),
    'a long name': (lambda path: None, ''),
}


def broken(**changes):
    data = clean()
    data['annotations'][1].update(changes)
    return data


@pytest.mark.parametrize('name', BAD)
@pytest.mark.parametrize('command', ['pack', 'pack -o', 'inspect'])
def test_bad_input(fails, cli, ann, tmp_path, cache, name, command):
    change, message = BAD[name]
    change(ann)
    file = tmp_path / ('x' * 300) if name == 'a long name' else ann
    if command == 'inspect' and name in ('no box', 'repeated ids'):
        status, out, _ = cli('inspect', file)
        assert status == 0 and 'CocoDataset refuses this file' in out
        return
    arguments = [*command.split(), tmp_path / 'out' / 'x'] if command == 'pack -o' else [command]
    assert re.search(message, fails(*arguments, file))
    assert on_disk(cache) == [] and not (tmp_path / 'out').exists()


@needs_root
def test_without_permission(ann, tmp_path):
    os.chmod(ann, 0o600)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith('pytest'):
            os.chmod(folder, 0o711)

    def action():
        with contextlib.redirect_stderr(io.StringIO()) as err:
            return [main(['pack', os.fspath(ann)]), err.getvalue()]

    assert run_child(action, uid=12345) == [1, f'mmshared: error: {ann}: Permission denied\n']


def test_a_remote_file(fails):
    assert 'only local files' in fails('pack', 's3://bucket/a.json')


def test_output_to_a_file(cli, tmp_path, cache):
    path = write(tmp_path / 'a.json', content())
    target = tmp_path / 'new' / 'deep' / 'team.mmstore'
    status, out, _ = cli('pack', path, '-o', target)
    assert status == 0 and str(target) in out and not cache.exists() and os.listdir(target.parent) == ['team.mmstore']
    expected = stock(path)
    expected.ann_file = str(target)
    os.remove(path)
    assert compare_datasets(expected, shared(str(target))) is None


def test_output_to_a_folder(cli, tmp_path):
    files = [write(tmp_path / f'{name}.json', content()) for name in 'ab']
    status, out, _ = cli('pack', *files, files[0], '-o', tmp_path / 'team')
    assert status == 0 and sorted(os.listdir(tmp_path / 'team')) == ['a.mmstore', 'b.mmstore']
    assert cli('pack', files[0], '-o', f'{tmp_path}/other/').status == 0
    assert cli('pack', files[1], '-o', tmp_path / 'other').status == 0
    assert sorted(os.listdir(tmp_path / 'other')) == ['a.mmstore', 'b.mmstore']


def test_output_that_cannot_be(fails, cli, ann, tmp_path):
    (tmp_path / 'x').mkdir()
    twin = write(tmp_path / 'x' / 'ann.json', clean())
    (tmp_path / 'file').write_text('precious')
    assert 'would both go to' in fails('pack', ann, twin, '-o', tmp_path / 'out')
    assert 'is not a folder' in fails('pack', ann, twin, '-o', tmp_path / 'file')
    assert 'not a store' in fails('pack', ann, '-o', tmp_path / 'file')
    assert 'itself' in fails('pack', ann, '-o', ann, '--force')
    assert 'Not a directory' in fails('pack', ann, '-o', tmp_path / 'file' / 'x')
    assert not (tmp_path / 'out').exists() and (tmp_path / 'file').read_text() == 'precious'
    assert cli('pack', ann, '-o', tmp_path / 'file', '--force').status == 0
    assert open_store(tmp_path / 'file').num_annotations == 4
    assert cli('pack', ann, '-o', tmp_path / 'y', '--cache-dir', tmp_path).status == 2


def test_a_store_is_not_packed(fails, cli, ann, tmp_path):
    cli('pack', ann, '-o', tmp_path / 'x.mmstore')
    assert 'is a store already' in fails('pack', tmp_path / 'x.mmstore')
    assert 'is a store already' in fails('pack', tmp_path / 'x.mmstore', '-o', tmp_path / 'y.mmstore')


def test_one_bad_file_on_the_way_to_a_folder(cli, ann, tmp_path):
    (tmp_path / 'bad.json').write_text('{')
    assert cli('pack', tmp_path / 'bad.json', ann, '-o', tmp_path / 'team').status == 1
    assert os.listdir(tmp_path / 'team') == ['ann.mmstore']


@pytest.mark.parametrize('to', ['cache', 'team'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(large, tmp_path, cache, to, number):
    output = [] if to == 'cache' else ['-o', tmp_path / 'team' / 'x.mmstore']
    running = process('pack', large, *output)
    folder = cache if to == 'cache' else tmp_path / 'team'
    while not folder.exists() and running.poll() is None:
        time.sleep(0.005)
    time.sleep(0.05)
    while running.poll() is None:  # msgspec loses a KeyboardInterrupt that comes while it makes a decoder
        running.send_signal(number)
        time.sleep(0.1)
    out, err = running.communicate(timeout=60)
    assert out == b'' and b'Traceback' not in err
    left = [name for name in on_disk(folder) if not name.endswith('.lock')]  # nobody holds it: the next build takes it
    assert left == []
    if number == signal.SIGINT:
        assert running.returncode == 130 and err.endswith(b'mmshared: error: interrupted\n')
        assert on_disk(folder) == [] and (to == 'cache' or not folder.exists())


def test_progress(large):
    out, status = on_a_terminal('pack', large, env={'TERM': 'xterm'})
    assert status == 0 and 'packed in' in out


# ---- the store as annotation file
def test_a_subclass_that_needs_the_json_says_so(cli, tmp_path):
    class Own(SharedCocoDataset):
        def parse_data_info(self, raw_data_info):
            return super().parse_data_info(raw_data_info)

    path = write(tmp_path / 'a.json', content())
    cli('pack', path, '-o', tmp_path / 'x.mmstore')
    with pytest.raises(AnnotationFileError, match='is a store. Give the JSON .* because the class has its own'):
        shared(str(tmp_path / 'x.mmstore'), cls=Own)


def test_a_store_below_the_data_root(cli, tmp_path):
    path = write(tmp_path / 'a.json', content())
    cli('pack', path, '-o', tmp_path / 'annotations' / 'x.mmstore')
    ours = SharedCocoDataset(ann_file='annotations/x.mmstore', data_root=str(tmp_path), **options())
    expected = stock('a.json', data_root=str(tmp_path))
    expected.ann_file = ours.ann_file
    assert compare_datasets(expected, ours) is None


def test_a_store_in_workers(cli, tmp_path):
    from torch.utils.data import DataLoader

    path = write(tmp_path / 'a.json', content())
    cli('pack', path, '-o', tmp_path / 'x.mmstore')
    ours = shared(str(tmp_path / 'x.mmstore'))
    loader = DataLoader(ours, 4, num_workers=1, collate_fn=list, multiprocessing_context='fork')
    ids = [item['img_id'] for batch in loader for item in batch]
    assert ids == [ours.get_data_info(i)['img_id'] for i in range(len(ours))]


def test_json_of_the_result_is_whole(cli, tmp_path):
    """A store holds all of the file, also what no detector needs."""
    data = content()
    data['licenses'] = [{'id': 1, 'extra': None}]
    path = write(tmp_path / 'a.json', data)
    cli('pack', path, '-o', tmp_path / 'x.mmstore')
    assert open_store(tmp_path / 'x.mmstore').to_dict() == json.loads(Path(path).read_text())
