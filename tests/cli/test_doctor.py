"""``mmshared doctor`` on machines of all kinds: fake /proc and /sys, real small disks, a network home."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Optional, Tuple

import pytest

from mmshared.annotations.cache import filesystem, location, locks
from mmshared.annotations.cache.location import Folder
from mmshared.cli.doctor import Level, System, examine
from mmshared.cli.doctor.memory import Usage, check_memory, container_usage
from mmshared.cli.doctor.processes import check_limits, check_sockets, check_start_method
from mmshared.cli.doctor.system import Space
from mmshared.cli.doctor.versions import check_versions

from ..annotations.cache.cache_helpers import fill, mount, needs_root, run_child

GB = 10**9
GOOD = {
    'numpy': '2.2.6',
    'msgspec': '0.23.0',
    'pysimdjson': '7.0.2',
    'torch': '2.13.0+cpu',
    'mmengine': '0.10.7',
    'mmcv': '2.1.0',
    'mmdet': '3.3.0',
    'pycocotools': '2.0.11',
}
ONEDL = {
    **{name: version for name, version in GOOD.items() if not name.startswith('mm')},
    'onedl-mmengine': '0.10.12',
    'onedl-mmcv': '2.3.6',
    'onedl-mmdetection': '3.5.1',
}


@dataclasses.dataclass(frozen=True)
class Fake(System):
    """A machine that is what the test says; its files are real, below ``root``."""

    versions: Dict[str, str] = dataclasses.field(default_factory=lambda: GOOD)
    limits: Dict[str, Tuple[int, int]] = dataclasses.field(default_factory=lambda: {'NOFILE': (65535, 65535)})
    method: str = 'fork'
    python_version: str = '3.11.7'
    spaces: Optional[Space] = Space(100 * GB, 50 * GB, None)
    tmp: str = '/tmp'

    def version(self, distribution):
        return self.versions.get(distribution)

    def limit(self, name):
        return self.limits.get(name)

    def start_method(self):
        return self.method

    def temporary_folder(self):
        return self.tmp

    def python(self):
        return self.python_version

    def space(self, folder):
        return super().space(folder) if self.spaces is None else self.spaces


def tree(root: Path, files: Dict[str, str]) -> Path:
    """Make the files, and an empty dev/shm."""
    (root / 'dev/shm').mkdir(parents=True, exist_ok=True)
    for name, text in {'proc/meminfo': 'MemTotal: 100000000 kB\nMemAvailable: 90000000 kB\n', **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def root(tmp_path):
    return tree(tmp_path / 'root', {})


def by_subject(findings):
    found = {}
    for finding in findings:
        assert finding.subject not in found
        assert bool(finding.advice) is (finding.level is not Level.OK), finding
        found[finding.subject] = finding
    return found


def levels(findings):
    return {finding.subject: finding.level.value for finding in findings if finding.level is not Level.OK}


# ---- the whole
def test_a_good_machine(root, cache):
    found = by_subject(examine(Fake(root)))
    assert levels(found.values()) == {}
    assert found['cache'].text == f'stores go to {cache}' and 'local' in found['file system'].text
    assert found['/dev/shm'].text == '50.0 GB free of 100.0 GB'


def test_this_machine(cli):
    status, out, err = cli('doctor')
    report = json.loads(cli('doctor', '--json').out)
    assert err == '' and status == any(finding['level'] == 'problem' for finding in report)
    assert len([line for line in out.splitlines() if line[:1] in 'owp']) >= len(report)
    installed = {finding['subject']: finding['text'] for finding in report}
    import numpy
    import torch

    assert installed['numpy'] == numpy.__version__ and installed['torch'] == torch.__version__


def test_exit_status(cli, monkeypatch):
    monkeypatch.setattr('mmshared.cli.doctor.System', lambda: Fake(Path('/'), versions={}))
    status, out, _ = cli('doctor')
    assert status == 1 and 'problem  torch         is not installed' in out and '-> install torch >= 2' in out
    monkeypatch.setattr('mmshared.cli.doctor.System', lambda: Fake(Path('/')))
    status, out, _ = cli('doctor')
    assert status == 0, out


# ---- shared memory
@pytest.fixture
def disk():
    """A function that mounts a small tmpfs on a folder; unmounted at the end."""
    mounted = []

    def make(folder, options):
        mount(folder, options)
        mounted.append(folder)
        locks.problem.cache_clear()
        return folder

    yield make
    for folder in mounted:
        subprocess.run(['umount', '-l', os.fspath(folder)], check=True)
    locks.problem.cache_clear()


@needs_root
@pytest.mark.parametrize('options, level', [('size=64m', 'problem'), ('size=512m', 'warning'), ('size=2g', None)])
def test_a_small_shm(root, disk, options, level):
    disk(root / 'dev/shm', options)
    found = by_subject(examine(Fake(root, spaces=None)))
    assert levels(found.values()).get('/dev/shm') == level
    if level:
        assert '--shm-size' in found['/dev/shm'].advice and 'emptyDir' in found['/dev/shm'].advice
    if level == 'problem':
        assert (
            found['/dev/shm'].text.startswith('67 MB free of 67 MB, too small')
            and 'Bus error' in found['/dev/shm'].text
        )


def test_a_shm_that_is_full_or_missing(root):
    full = Fake(root, spaces=Space(10 * GB, 10**6, None))
    finding = by_subject(examine(full))['/dev/shm']
    assert finding.level is Level.PROBLEM and 'killed jobs' in finding.advice
    (root / 'dev/shm').rmdir()
    assert by_subject(examine(Fake(root)))['/dev/shm'].level is Level.WARNING


# ---- the cache
@needs_root
def test_a_full_cache_disk(root, disk, tmp_path, monkeypatch):
    folder = disk(tmp_path / 'small', 'size=240k')
    fill(folder, leave_pages=0)
    found = by_subject(examine(Fake(root, spaces=None), os.fspath(folder)))
    assert found['cache space'].level is Level.PROBLEM and found['cache space'].text.startswith('0 bytes free of ')
    assert 'mmshared cache prune' in found['cache space'].advice and 'MMSHARED_CACHE' in found['cache space'].advice
    assert sorted(os.listdir(folder)) == ['filler']


@needs_root
def test_no_file_left(root, disk, tmp_path):
    folder = disk(tmp_path / 'small', 'size=1g,nr_inodes=2')
    (folder / 'one').touch()
    finding = by_subject(examine(Fake(root, spaces=None), os.fspath(folder)))['cache space']
    assert finding.level is Level.PROBLEM and 'no further file' in finding.text


@pytest.fixture
def local(tmp_path, monkeypatch):
    """This user's folder on a local disk, in place of the one in /var/tmp."""
    folder = Folder(tmp_path / 'local', private=True)
    monkeypatch.setattr(location, 'local_folders', lambda: [folder])
    return folder.path


@needs_root
def test_a_full_home_gives_way(root, disk, tmp_path, monkeypatch, local):
    monkeypatch.delenv('MMSHARED_CACHE')
    home = disk(tmp_path / 'home', 'size=240k')
    monkeypatch.setenv('XDG_CACHE_HOME', os.fspath(home))
    found = by_subject(examine(Fake(root, spaces=None)))
    assert found['cache'].level is Level.WARNING
    assert found['cache'].text == f'{home}/mmshared is full. stores go to {local}'
    assert not found['cache space'].text.startswith('0 bytes')
    fills = disk(local, 'size=240k')
    found = by_subject(examine(Fake(root, spaces=None)))
    assert found['cache'].text == f'stores go to {home}/mmshared' and os.listdir(fills) == []
    assert found['cache space'].level is Level.PROBLEM


@needs_root
def test_a_home_on_nfs(root, disk, tmp_path, monkeypatch, local):
    """No network file system can be mounted here: tmpfs counts as one instead, told by the same system call."""
    monkeypatch.setitem(filesystem._NETWORK_MAGIC, 0x01021994, 'nfs')
    home = disk(tmp_path / 'home', 'size=4m')
    monkeypatch.delenv('MMSHARED_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', os.fspath(home))
    found = by_subject(examine(Fake(root)))
    text = f'{home}/mmshared is on a network file system (nfs). stores go to {local}'
    assert found['cache'] == (Level.OK, 'cache', text, '')
    assert found['file system'].level is Level.OK and os.listdir(home) == []
    named = by_subject(examine(Fake(root), os.fspath(home / 'named')))
    assert named['file system'].level is Level.WARNING and '(nfs)' in named['file system'].text
    assert 'MMSHARED_CACHE' in named['file system'].advice


@needs_root
def test_nowhere_to_write(root, tmp_path, monkeypatch):
    def action():
        subprocess.run(['mount', '-o', 'remount,ro', '/var/tmp'], check=True)
        monkeypatch.setattr('tempfile.tempdir', '/proc')
        found = by_subject(examine(Fake(root), '/proc/cache'))
        return [found['cache'].level.value, found['cache'].text, sorted(found)]

    level, text, subjects = run_child(action, private_var_tmp=True)
    assert level == 'problem' and '/proc/cache cannot be used' in text and 'torch' in subjects


def test_tight_space(root):
    finding = by_subject(examine(Fake(root, spaces=Space(10 * GB, 2 * GB, None))))['cache space']
    assert finding.level is Level.WARNING and '2.0 GB free of 10.0 GB' in finding.text
    finding = by_subject(examine(Fake(root, spaces=Space(10 * GB, 9 * GB, 0))))['cache space']
    assert finding.level is Level.PROBLEM


def test_without_locks(root, monkeypatch):
    def refuse(fd, shared=False):
        raise OSError(95, 'Operation not supported')

    monkeypatch.setattr(locks, 'try_lock', refuse)
    locks.problem.cache_clear()
    try:
        finding = by_subject(examine(Fake(root)))['file locks']
    finally:
        locks.problem.cache_clear()
    assert finding.level is Level.WARNING and 'Operation not supported' in finding.text and 'pack' in finding.advice


# ---- memory
V2_MOUNT = '30 25 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n'
V1_MOUNT = '35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n'
STAT_V2 = 'anon 3000000000\nfile 5000000000\nshmem 1000000000\nfile_mapped 1\n'
STAT_V1 = (
    'cache 1\nrss 2\nhierarchical_memory_limit {limit}\ntotal_cache 5000000000\ntotal_rss 3000000000\n'
    'total_shmem 1000000000\n'
)
NONE_V1 = '9223372036854771712'
MEMORY = {
    'no control groups': ({}, None),
    'v2, in a container': (
        {
            'proc/self/cgroup': '0::/\n',
            'proc/self/mountinfo': V2_MOUNT,
            'sys/fs/cgroup/memory.max': '16000000000\n',
            'sys/fs/cgroup/memory.current': '9000000000\n',
            'sys/fs/cgroup/memory.stat': STAT_V2,
        },
        Usage(16 * GB, 9 * GB, 4 * GB, 4 * GB),
    ),
    'v2, a limit of a group above': (
        {
            'proc/self/cgroup': '0::/slurm/job_1/step_0\n',
            'proc/self/mountinfo': V2_MOUNT,
            'sys/fs/cgroup/slurm/job_1/step_0/memory.max': 'max\n',
            'sys/fs/cgroup/slurm/job_1/memory.max': '16000000000\n',
            'sys/fs/cgroup/slurm/job_1/memory.current': '9000000000\n',
            'sys/fs/cgroup/slurm/job_1/memory.stat': STAT_V2,
            'sys/fs/cgroup/slurm/memory.max': '64000000000\n',
            'sys/fs/cgroup/slurm/memory.stat': 'anon 1\n',
        },
        Usage(16 * GB, 9 * GB, 4 * GB, 4 * GB),
    ),
    'v2, no limit': (
        {
            'proc/self/cgroup': '0::/\n',
            'proc/self/mountinfo': V2_MOUNT,
            'sys/fs/cgroup/memory.max': 'max\n',
            'sys/fs/cgroup/memory.stat': STAT_V2,
        },
        None,
    ),
    'v2, seen from outside its namespace': (
        {
            'proc/self/cgroup': '0::/../../other\n',
            'proc/self/mountinfo': V2_MOUNT,
            'sys/fs/cgroup/memory.max': '16000000000\n',
            'sys/fs/cgroup/memory.stat': STAT_V2,
        },
        Usage(16 * GB, None, 4 * GB, 4 * GB),
    ),
    'v1, in a container': (
        {
            'proc/self/cgroup': '4:memory:/docker/abc\n0::/docker/abc\n',
            'proc/self/mountinfo': V1_MOUNT.format(root='/docker/abc') + '41 31 0:38 / /x rw - cgroup2 cgroup2 rw\n',
            'sys/fs/cgroup/memory/memory.limit_in_bytes': '16000000000\n',
            'sys/fs/cgroup/memory/memory.usage_in_bytes': '9000000000\n',
            'sys/fs/cgroup/memory/memory.stat': STAT_V1.format(limit=16 * GB),
        },
        Usage(16 * GB, 9 * GB, 4 * GB, 4 * GB),
    ),
    'v1, a limit of a group above': (
        {
            'proc/self/cgroup': '9:cpu:/\n4:hugetlb,memory:/job/step\n',
            'proc/self/mountinfo': V1_MOUNT.format(root='/'),
            'sys/fs/cgroup/memory/job/step/memory.limit_in_bytes': NONE_V1,
            'sys/fs/cgroup/memory/job/step/memory.stat': STAT_V1.format(limit=16 * GB),
            'sys/fs/cgroup/memory/memory.limit_in_bytes': NONE_V1,
            'sys/fs/cgroup/memory/memory.stat': STAT_V1.format(limit=NONE_V1),
        },
        Usage(16 * GB, None, 4 * GB, 4 * GB),
    ),
    'v1, no limit': (
        {
            'proc/self/cgroup': '4:memory:/\n',
            'proc/self/mountinfo': V1_MOUNT.format(root='/'),
            'sys/fs/cgroup/memory/memory.limit_in_bytes': NONE_V1,
            'sys/fs/cgroup/memory/memory.stat': STAT_V1.format(limit=NONE_V1),
        },
        None,
    ),
    'beyond the machine': (
        {
            'proc/self/cgroup': '0::/\n',
            'proc/self/mountinfo': V2_MOUNT,
            'sys/fs/cgroup/memory.max': '900000000000\n',
            'sys/fs/cgroup/memory.stat': STAT_V2,
        },
        None,
    ),
    'nonsense': (
        {
            'proc/self/cgroup': ':::\n0\n\n4:memory\n',
            'proc/self/mountinfo': '- - -\n\n1 2 - cgroup2\n' + V2_MOUNT,
            'proc/meminfo': 'MemTotal: many kB\n',
            'sys/fs/cgroup/memory.max': '-5\n',
            'sys/fs/cgroup/memory.stat': 'anon\nfile x\n\xff\n',
        },
        None,
    ),
}


@pytest.mark.parametrize('name', MEMORY)
def test_container_memory(tmp_path, name):
    files, usage = MEMORY[name]
    system = Fake(tree(tmp_path / 'root', files))
    assert container_usage(system) == usage
    finding = by_subject(check_memory(system))['memory limit']
    if usage is None:
        assert finding.text == 'none is set for this container'
    else:
        assert finding.text.startswith('16.0 GB for this container; ') and finding.level is Level.OK
        assert '4.0 GB anonymous, 4.0 GB of files, which the system evicts when needed' in finding.text


def test_memory_that_is_nearly_used_up(tmp_path):
    files = dict(MEMORY['v2, in a container'][0])
    files['sys/fs/cgroup/memory.stat'] = 'anon 15000000000\nfile 100\nshmem 0\n'
    files['proc/meminfo'] = 'MemTotal: 100000000 kB\nMemAvailable: 1000000 kB\n'
    found = by_subject(check_memory(Fake(tree(tmp_path / 'root', files))))
    assert levels(found.values()) == {'memory': 'warning', 'memory limit': 'warning'}
    assert 'kills' in found['memory limit'].advice


# ---- processes
@pytest.mark.parametrize('method, level', [('fork', None), ('spawn', 'warning'), ('forkserver', 'warning')])
def test_start_methods(method, level):
    assert levels(check_start_method(Fake(method=method))).get('start method') == level


@pytest.mark.parametrize('soft, level', [(256, 'problem'), (1024, 'warning'), (65535, None), (-1, None)])
def test_open_files(soft, level):
    found = list(check_limits(Fake(limits={'NOFILE': (soft, 1 << 20)})))
    assert levels(found).get('open files') == level
    if level:
        assert 'ulimit -n 1048576' in found[0].advice and 'file_system' in found[0].advice


def test_other_limits():
    limits = {'NOFILE': (65535, 65535), 'AS': (10 * GB, -1), 'FSIZE': (GB, GB)}
    found = by_subject(check_limits(Fake(limits=limits)))
    assert levels(found.values()) == {'address space': 'warning', 'size of a file': 'warning'}
    assert 'ulimit -v' in found['address space'].advice
    assert list(check_limits(Fake(limits={}))) == []  # as on Windows


def test_limits_of_this_process():
    import resource

    assert System().limit('NOFILE')[0] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert System().limit('NO_SUCH') is None


# ---- versions
def versions(installed, **more):
    return by_subject(check_versions(Fake(versions=installed, **more)))


def test_both_stacks():
    assert levels(versions(GOOD).values()) == levels(versions(ONEDL).values()) == {}
    assert versions(ONEDL)['mmdet'].text == '3.5.1 (onedl-mmdetection)' and versions(GOOD)['mmdet'].text == '3.3.0'


@pytest.mark.parametrize(
    'changes, found',
    [
        ({'torch': None}, {'torch': 'problem'}),
        ({'torch': '1.13.1'}, {'torch': 'warning'}),
        ({'mmengine': '0.10.6'}, {'mmengine': 'warning'}),
        ({'mmengine': '0.10.10'}, {}),
        ({'mmdet': '3.3'}, {}),
        ({'mmdet': 'unknown'}, {'mmdet': 'warning'}),
        ({'mmcv': None, 'mmcv-lite': '2.1.0'}, {'mmcv': 'problem'}),
        ({'mmcv-lite': '2.1.0'}, {'mmcv': 'problem'}),
        ({'mmengine': None, 'mmengine-lite': '0.10.7'}, {}),
        ({'onedl-mmcv': '2.3.6'}, {'mmcv': 'problem'}),
        ({'mmcv': None, 'onedl-mmcv': '2.3.6'}, {'stack': 'problem'}),
    ],
)
def test_versions_that_will_not_do(changes, found):
    installed = {name: version for name, version in {**GOOD, **changes}.items() if version is not None}
    assert levels(versions(installed).values()) == found


def test_an_old_python():
    assert versions(GOOD, python_version='3.8.10')['python'].level is Level.PROBLEM
    assert versions(GOOD, python_version='3.14.0rc1')['python'].level is Level.OK


LISTEN = 'from multiprocessing.connection import Listener; Listener(family="AF_UNIX").close()'


@pytest.mark.parametrize('length, fits', [(75, True), (76, False)])
def test_the_name_of_a_socket_has_room(length, fits):
    """As multiprocessing finds out for itself, in a real folder; newer Pythons take another folder by themselves."""
    with tempfile.TemporaryDirectory(dir='/tmp') as base:
        folder = f'{base}/{"a" * (length - len(base) - 1)}'
        os.mkdir(folder)
        done = subprocess.run([sys.executable, '-c', LISTEN], env={**os.environ, 'TMPDIR': folder}, capture_output=True)
        (finding,) = check_sockets(Fake(tmp=folder))
    assert (finding.level is Level.OK) is fits
    assert done.returncode == 0 or not fits
    if sys.version_info < (3, 12):
        assert (done.returncode == 0) is fits
