"""Workers that die or fail, in each phase: the job ends soon, says for which phase they loaded, and leaves nobody."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.context
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mmengine.dataset import pseudo_collate

from mmshared.engine.workers import LoadingError

from .lean_jobs import Draw, Mark, Numbers, children, is_worker, loader, train

SOON = 40.0  # seconds, on a busy machine too


class Fault:
    """A transform that fails as soon as a file is there, if one is named; ``log`` gets the times."""

    def __init__(self, kind, log, path=None):
        self.kind, self.log, self.path = kind, log, path

    def __call__(self, results):
        if self.path is None or Path(self.path).exists():
            with open(self.log, 'a') as file:
                print(time.time(), file=file)
            if self.kind == 'killed':
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kind == 'exits':
                os._exit(3)
            if self.kind == 'raises':
                raise FileNotFoundError(f'no image {results["index"]}')
            results['bad'] = self.kind
        return results


class Touch:
    """Makes the file."""

    def __init__(self, path):
        self.path = path

    def __call__(self, results):
        Path(self.path).touch()
        return results


def collate(samples):
    """Fails as a transform of the first sample wants it."""
    kind = samples[0].pop('bad', None)
    if kind == 'killed in collate':
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == 'raises in collate':
        raise ValueError('sizes differ: 3, 4')
    return pseudo_collate(samples)


KINDS = {
    'killed': r'worker \d+ was killed by SIGKILL\. Linux does so when memory is used up',
    'exits': r'worker \d+ ended by itself with exit code 3\.',
    'raises': r'FileNotFoundError: no image \d+',
    'killed in collate': r'worker \d+ was killed by SIGKILL\.',
    'raises in collate': r'ValueError: sizes differ: 3, 4',
}
PHASES = {
    'training': r'Loading data for training failed \(workers of epoch 1, from iteration 1 on, rank 0\)',
    'validation': r'Loading data for validation failed \(workers of epoch \d, from iteration \d on, rank 0\)',
    'warm start': r'Loading data for training failed \(workers of epoch [12], from iteration 7 on, rank 0\)',
}


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('phase', PHASES)
def test_a_worker_that_fails(tmp_path, phase, kind):
    by_epoch = kind != 'exits'
    flag, log = str(tmp_path / 'flag'), str(tmp_path / 'faults')
    pipelines = dict(train=[Mark(), Draw()], val=[Mark(), Draw()])
    if phase == 'training':
        pipelines['train'].append(Fault(kind, log))
    elif phase == 'validation':
        pipelines['val'].append(Fault(kind, log))
    else:  # when validation has begun
        pipelines['val'].append(Touch(flag))
        pipelines['train'].append(Fault(kind, log, flag))
    endless = {} if by_epoch else dict(sampler=dict(type='InfiniteSampler', shuffle=True))
    before = children()
    with pytest.raises(LoadingError, match=PHASES[phase] + ': ' + KINDS[kind]) as caught:
        train(
            tmp_path,
            True,
            by_epoch,
            delay=1.0,
            train_cfg=dict(max_epochs=3) if by_epoch else dict(max_iters=12, val_interval=6),
            train=loader(True, pipeline=pipelines['train'], collate_fn=collate, **endless),
            val=loader(False, size=6, pipeline=pipelines['val'], collate_fn=collate),
        )
    seconds = time.time() - float(Path(log).read_text().split()[0])
    print(f'{phase}, {kind}: {seconds:.2f} s from the fault to the error')  # shown by: pytest -rP
    assert children() == before
    assert caught.value.__cause__ is not None
    assert seconds < SOON


class NoMoreForks(multiprocessing.context.ForkContext):
    """Processes can be forked a number of times. (A limit on processes does not bind an administrator.)"""

    def __init__(self, forks):
        super().__init__()
        self.left = forks

    def Process(self, *args, **kwargs):
        process = multiprocessing.get_context('fork').Process(*args, **kwargs)
        start = process.start

        def limited():
            if not self.left:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self.left -= 1
            start()

        process.start = limited
        return process


@pytest.mark.parametrize('by_epoch', [True, False], ids=['epochs', 'iterations'])
@pytest.mark.parametrize('phase', ['training', 'validation', 'warm start'])
def test_a_fork_that_fails(tmp_path, phase, by_epoch):
    """One worker of the two is there already."""
    endless = {} if by_epoch else dict(sampler=dict(type='InfiniteSampler', shuffle=True))
    forks = dict(train={'training': 1, 'warm start': 3}.get(phase, 9), val=1 if phase == 'validation' else 9)
    before, begin = children(), time.monotonic()
    name = 'validation' if phase == 'validation' else 'training'
    with pytest.raises(LoadingError, match=f'Loading data for {name} failed.*: BlockingIOError: .*temporarily'):
        train(
            tmp_path,
            True,
            by_epoch,
            train=loader(True, multiprocessing_context=NoMoreForks(forks['train']), **endless),
            val=loader(False, size=6, multiprocessing_context=NoMoreForks(forks['val'])),
        )
    assert children() == before
    assert time.monotonic() - begin < SOON


class PickledOnce(Numbers):
    """Can be sent to one worker."""

    sent = 0

    def __getstate__(self):
        type(self).sent += 1
        if type(self).sent > 1:
            raise pickle.PicklingError('the second time')
        return self.__dict__


def test_a_dataset_that_cannot_be_pickled_in_the_third_generation(tmp_path):
    """Started with spawn: training, validation, and then training fails to start."""
    data = {
        **loader(True, workers=1, multiprocessing_context='spawn'),
        'dataset': PickledOnce(size=4, pipeline=[Mark(), Draw()]),
    }
    before = children()
    with pytest.raises(LoadingError, match='Loading data for training failed .*: PicklingError: the second time'):
        train(tmp_path, True, train=data, val=loader(False, workers=1, size=2))
    assert children() == before


JOB = """
import sys, time
from pathlib import Path
from tests.engine.lean_jobs import *

class Big:
    def __call__(self, results):
        return dict(results, big=bytes(1 << 20))

class Say(Count):
    def compute_metrics(self, results):
        print('validated', flush=True)
        time.sleep(60 if sys.argv[2] == 'metric' else 0)
        return dict(count=1)

class Slow(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 7:
            print('training', flush=True)
            time.sleep(60)

endless = dict(type='InfiniteSampler', shuffle=True)
train(Path(sys.argv[1]), True, False, custom_hooks=[Slow()], val_evaluator=[Say()],
      train_cfg=dict(max_iters=1000, val_interval=4),
      train=loader(True, sampler=endless, pipeline=[Mark(), Draw(), Big()], prefetch_factor=4))
"""


@pytest.mark.parametrize(
    'number, when',
    [(signal.SIGINT, 'metric'), (signal.SIGTERM, 'training'), (signal.SIGKILL, 'metric')],
    ids=['Ctrl-C', 'SIGTERM', 'SIGKILL'],
)
def test_signals_leave_no_process_behind(tmp_path, repo, number, when):
    """While workers are full of samples that nobody will read."""
    job = subprocess.Popen(
        [sys.executable, '-c', JOB, str(tmp_path / 'work'), when],
        cwd=repo,
        env={**os.environ, 'PYTHONPATH': str(repo), 'OMP_NUM_THREADS': '1'},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell ignores it
    )
    try:
        for line in job.stdout:
            if ('validated' if when == 'metric' else 'training') in line:
                break
        time.sleep(1)  # until their pipe is full
        workers = children(job.pid)
        assert len(workers) == 2
        if number == signal.SIGINT:
            os.killpg(job.pid, number)  # as a terminal does
        else:
            os.kill(job.pid, number)
        begin = time.monotonic()
        _, errors = job.communicate(timeout=60)
        while any(map(is_worker, workers)) and time.monotonic() - begin < 30:
            time.sleep(0.05)
        assert not any(map(is_worker, workers))
        assert time.monotonic() - begin < SOON
        assert job.returncode != 0
        if number == signal.SIGINT:
            assert errors.rstrip().endswith('KeyboardInterrupt')
    finally:
        for pid in (job.pid, *workers):
            if is_worker(pid):
                os.kill(pid, signal.SIGKILL)
