"""Once per node, with real processes and real kills."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
from cache_helpers import ROOT, WORKER, names, worker_command, worker_env
from fake_store import Builder, check, decode, encode

from mmshared.annotations.cache import StoreCache
from mmshared.annotations.cache.holds import exclusive, hold
from mmshared.annotations.cache.publish import Draft

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='file locks and /proc of Linux')


@pytest.fixture
def source(tmp_path):
    path = tmp_path / 'a.json'
    path.write_bytes(b'{"images": [1, 2, 3]}' * 1000)
    return path


class Job:
    """A few workers that start together; whatever happens, none outlives the test."""

    def __init__(self, *args, count=1):
        self.processes = [
            subprocess.Popen(
                worker_command(*args, 'go'),
                env=worker_env(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        for process in self.processes:
            assert process.stdout.readline() == 'READY\n', process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def go(self):
        for process in self.processes:
            process.stdin.write('\n')
            process.stdin.flush()

    def ends(self):
        """The lines of all workers, and what they wrote to stderr."""
        outputs = [process.communicate(timeout=60) for process in self.processes]
        return [line for out, _ in outputs for line in out.splitlines()], '\n'.join(err for _, err in outputs)


def content(source):
    return 'OK ' + hashlib.sha256(source.read_bytes()).hexdigest()


def test_eight_at_once_build_once(source, tmp_path):
    with Job(source, tmp_path / 'cache', '3', count=8) as job:
        job.go()
        lines, log = job.ends()
    assert sum(line.startswith('BUILD') for line in lines) == 1, lines
    assert lines.count(content(source)) == 8
    builder = next(line.split()[1] for line in lines if line.startswith('BUILD'))
    assert log.count(f'waiting for process {builder} on ') == 7, log  # visible without any logging set-up
    assert '% of 100 MB (waited 2 s)' in log
    assert len(names(tmp_path / 'cache')) == 1


def test_torchrun(source, tmp_path):
    pytest.importorskip('torch')
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'torch.distributed.run',
            '--standalone',
            '--nproc-per-node=8',
            WORKER,
            source,
            tmp_path / 'cache',
            '1',
        ],
        env=worker_env(OMP_NUM_THREADS='1'),
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('BUILD') == 1 and done.stdout.count(content(source)) == 8
    assert len(names(tmp_path / 'cache')) == 1


def test_two_files_and_two_jobs(source, tmp_path):
    other = tmp_path / 'b.json'
    other.write_bytes(b'other')
    with Job(source, tmp_path / 'cache', '1', count=2) as one, Job(other, tmp_path / 'cache', '1', count=2) as two:
        one.go()
        two.go()
        lines, _ = one.ends()
        more, _ = two.ends()
    assert lines.count(content(source)) == 2 and more.count(content(other)) == 2
    assert len(names(tmp_path / 'cache')) == 2


def test_a_failure_is_everybodys(source, tmp_path):
    source.write_bytes(b'{} bad')
    with Job(source, tmp_path / 'cache', '1', count=4) as job:
        job.go()
        lines, _ = job.ends()
    assert lines.count('FAILED record 7: bad') == 4
    assert sum(line.startswith('BUILD') for line in lines) == 1, lines
    assert names(tmp_path / 'cache') == []
    with Job(source, tmp_path / 'cache', '0') as late:  # newcomers try afresh
        late.go()
        assert [line.split()[0] for line in late.ends()[0]] == ['BUILD', 'FAILED']


def test_killed_builder_is_succeeded(source, tmp_path):
    with Job(source, tmp_path / 'cache', '2') as first, Job(source, tmp_path / 'cache', '2', count=3) as others:
        first.go()
        assert first.processes[0].stdout.readline().startswith('BUILD')
        others.go()
        time.sleep(0.5)
        first.processes[0].kill()
        lines, _ = others.ends()
    assert sum(line.startswith('BUILD') for line in lines) == 1
    assert lines.count(content(source)) == 3
    assert len(names(tmp_path / 'cache')) == 1


def test_killed_at_random_moments(source, tmp_path):
    cache = StoreCache(tmp_path / 'cache', version=1)
    dice = random.Random(0)
    for _ in range(8):
        with Job(source, tmp_path / 'cache', '0.1') as job:
            job.go()
            time.sleep(dice.uniform(0, 0.25))
            job.processes[0].kill()
        left = [name for name in names(tmp_path / 'cache') if not name.endswith('.lock')]
        assert all(check(tmp_path / 'cache' / name) for name in left) and len(left) <= 1
        assert decode(cache.get(source, Builder(), check)) == source.read_bytes()
        assert len(names(tmp_path / 'cache')) == 1
        cache.clear()


@pytest.mark.parametrize('nameless', [True, False])
def test_killed_at_every_line(source, tmp_path, monkeypatch, nameless):
    """SIGKILL at each line of this package's code that a build runs: nothing half is ever seen, nothing stays."""
    if not nameless:  # as on file systems without O_TMPFILE
        monkeypatch.setattr('mmshared.annotations.cache.publish._open_nameless', lambda folder: None)
    package = os.fspath(ROOT / 'mmshared' / 'annotations')
    folder = tmp_path / 'cache'
    cache = StoreCache(folder, version=1)
    stride, step, survived, kinds = 11, 1, False, set()
    while not survived:
        child = os.fork()
        if child == 0:
            left = step

            def count(frame, event, arg):
                nonlocal left
                if not frame.f_code.co_filename.startswith(package):
                    return None
                if event == 'line':
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return count

            try:
                sys.settrace(count)
                cache.get(source, Builder(), check)
                sys.settrace(None)
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        survived = status == 0
        assert survived or os.WIFSIGNALED(status)
        left = names(folder)
        kinds.add(tuple(name.rpartition('.')[2] for name in left))
        assert all(check(folder / name) for name in left if name.endswith('.mmstore'))
        if nameless:
            assert not any(name.endswith('.draft') for name in left)
        assert decode(cache.get(source, Builder(), check)) == source.read_bytes()
        if any(name.endswith('.draft') for name in left):
            cache.prune()
        assert names(folder) == [cache.list()[0].path.name]
        cache.clear()
        step += stride
    assert step > 20 * stride and {(), ('lock',), ('mmstore',)} <= kinds  # the kills did hit all phases


def test_a_forked_child_does_not_keep_the_lock(source, tmp_path):
    """A helper that the builder has forked, and that outlives it, must not block the others."""
    cache = StoreCache(tmp_path / 'cache', version=1)
    reading, writing = os.pipe()
    builder = os.fork()
    if builder == 0:

        def build(*args):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            os.write(writing, b'%d' % child)
            time.sleep(60)

        try:
            cache.get(source, build, check)
        finally:
            os._exit(1)
    orphan = int(os.read(reading, 20))
    try:
        os.kill(builder, signal.SIGKILL)
        os.waitpid(builder, 0)
        with Job(source, tmp_path / 'cache', '0') as job:
            job.go()
            assert job.ends()[0][-1] == content(source)
        os.kill(orphan, 0)  # still there
    finally:
        os.kill(orphan, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_a_lock_removed_by_hand_while_others_wait(source, tmp_path):
    with Job(source, tmp_path / 'cache', '1') as first, Job(source, tmp_path / 'cache', '1', count=2) as others:
        first.go()
        first.processes[0].stdout.readline()
        others.go()
        time.sleep(0.3)
        for name in names(tmp_path / 'cache'):
            os.unlink(tmp_path / 'cache' / name)
        lines = first.ends()[0] + others.ends()[0]
    assert lines.count(content(source)) == 3
    assert len(names(tmp_path / 'cache')) == 1


def test_held_in_another_process_until_it_dies(source, tmp_path):
    cache = StoreCache(tmp_path / 'cache', version=1)
    with Job(source, tmp_path / 'cache', '0', 'hold') as job:
        job.go()
        assert job.processes[0].stdout.readline().startswith('BUILD')
        assert job.processes[0].stdout.readline().startswith('OK')
        assert cache.list()[0].in_use
        assert cache.clear() == []
        job.processes[0].kill()
        job.processes[0].wait()
        assert len(cache.clear()) == 1


def test_a_forked_worker_keeps_the_hold(source, tmp_path):
    cache = StoreCache(tmp_path / 'cache', version=1)
    held = cache.acquire(source, Builder(), check)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    held.close()
    assert cache.clear() == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(cache.clear()) == 1


def test_opening_while_somebody_clears(source, tmp_path):
    """Whoever acquires has the file it names, however often the cache is cleared."""
    cache = StoreCache(tmp_path / 'cache', version=1)
    child = os.fork()
    if child == 0:
        while True:
            cache.clear()
            time.sleep(0.002)
    try:
        builder = Builder()
        for _ in range(40):
            with cache.acquire(source, builder, check) as held:
                assert os.path.samestat(os.fstat(held.fileno()), os.stat(held.path))
                assert decode(held.path) == source.read_bytes()
        assert builder.calls > 5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_draft_with_a_name_is_swept_only_when_its_owner_is_dead(tmp_path):
    folder = tmp_path / 'cache'
    folder.mkdir(mode=0o700)
    cache = StoreCache(folder)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        draft = Draft(folder, nameless=False)
        os.write(writing, b'x')
        time.sleep(60)
        draft.close()
        os._exit(0)
    os.read(reading, 1)
    try:
        cache.prune()
        assert len(names(folder)) == 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    cache.prune()
    assert names(folder) == []
    os.close(reading)
    os.close(writing)


def test_a_bar_on_a_terminal(source, tmp_path):
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        worker_command(source, tmp_path / 'cache', '3'), env=worker_env(), stdout=subprocess.DEVNULL, stderr=terminal
    )
    os.close(terminal)
    text = b''
    while select.select([leader], [], [], 30)[0]:
        try:
            text += os.read(leader, 4096)
        except OSError:  # how a terminal ends
            break
    assert process.wait(30) == 0
    os.close(leader)
    assert b'\ra.json [###' in text and b'MB/s' in text and b'\r\033[K' in text, text


def test_lines_are_visible_next_to_mmengines_logger(source, tmp_path):
    pytest.importorskip('mmengine')
    code = (
        'from mmengine.logging import MMLogger; MMLogger.get_instance("mmengine", log_level="INFO")\n'
        'from mmshared.annotations.cache.messages import say; say("%d %%", 40)\n'
        'import logging; logging.getLogger("mmshared").setLevel("WARNING"); say("%d %%", 41)\n'
        'logging.getLogger("mmshared").setLevel("INFO"); logging.basicConfig(format="root: %(message)s", force=True)\n'
        'say("%d %%", 42); logging.getLogger("mmshared").setLevel("NOTSET"); say("%d %%", 43)\n'
        'logging.getLogger().setLevel("ERROR"); say("%d %%", 44)'
    )
    shown = subprocess.run([sys.executable, '-c', code], env=worker_env(), capture_output=True, text=True, cwd=ROOT)
    first = [line for line in shown.stderr.splitlines() if '40 %' in line]  # its form is lvis's, if that is installed
    assert len(first) == 1 and 'mmshared' in first[0] and 'INFO' in first[0], shown.stderr
    assert '41 %' not in shown.stderr and shown.stderr.count('root: 42 %') == 1
    assert shown.stderr.count('root: 43 %') == 1, 'the level of the root is the usual one: nobody has chosen it'
    assert '44 %' not in shown.stderr


def test_hold_follows_a_replaced_file(tmp_path):
    path = tmp_path / 's.mmstore'
    path.write_bytes(encode(b'1'))
    with hold(path):
        os.unlink(path)
        with pytest.raises(FileNotFoundError):
            hold(path)
        path.write_bytes(encode(b'2'))
        with hold(path) as new:
            assert os.path.samestat(os.fstat(new.fileno()), os.stat(path))


def test_hold_against_a_removal_under_way(tmp_path):
    """Opened while somebody is about to remove it: the hold must be one on the file that has the name afterwards."""
    path = tmp_path / 's.mmstore'
    path.write_bytes(encode(b'1'))
    held = []
    thread = threading.Thread(target=lambda: held.append(hold(path)))
    with exclusive(path) as free:
        assert free
        thread.start()
        time.sleep(0.2)
        assert not held
        os.unlink(path)
        path.write_bytes(encode(b'2'))
    thread.join(30)
    assert os.path.samestat(os.fstat(held[0].fileno()), os.stat(path))
