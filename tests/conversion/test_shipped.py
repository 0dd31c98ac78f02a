"""Every config that mmdet ships: converted, written, loaded, converted back; its training data built."""

from __future__ import annotations

import importlib.util
import zlib

import pytest
from mmengine.registry import init_default_scope

from mmshared.conversion.counterparts import TABLE, Counterparts

from ..conftest import REPO

_WRITTEN = 4  # one of so many is written and loaded: that takes most of the time. tools/analysis does it with all


def _tool():
    path = REPO / 'tools' / 'analysis' / 'shipped_configs.py'
    spec = importlib.util.spec_from_file_location('shipped_configs', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
NAMES = TOOL.shipped()
FOLDERS = sorted({name.rpartition('/')[0] for name in NAMES})


def test_every_line_of_the_table_is_registered():
    assert Counterparts().swaps == TABLE


def test_every_line_of_the_table_is_documented(documented):
    for swap in TABLE:
        for name in (swap.stock, swap.shared):
            assert f'`{name.partition(".")[2]}`' in documented


def test_there_are_hundreds():
    assert len(NAMES) > 800 and len(FOLDERS) > 100


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return TOOL.SmallData(tmp_path_factory.mktemp('small'))


@pytest.fixture(scope='module')
def documented():
    return (REPO / 'docs' / 'swaps.md').read_text(encoding='utf-8')


class Folders:
    """What is tested of each folder."""

    def test_all_that_load_are_converted_and_back(self, folder, data, documented):
        init_default_scope('mmdet')
        surprises = {}
        for name in NAMES:
            if name.rpartition('/')[0] == folder:
                verdict = TOOL.judge(name, data, write=zlib.crc32(name.encode()) % _WRITTEN == 0)
                if verdict.problem is not None and not _is_expected(verdict.problem, name, documented):
                    surprises[name] = verdict.problem
        assert not surprises


def _is_expected(problem, name, documented):
    """Whether the tables say of that config that this is not done, or stock cannot do it without a package either."""
    what, why = problem
    if why.startswith('nor are they without converting') and 'install' in why:
        return True
    return any(row.startswith(f'| {what} |') and f'`{name}`' in row for row in documented.splitlines())


# Two classes, so that two processes can share the work.
@pytest.mark.parametrize('folder', FOLDERS[::2])
class TestOneHalf(Folders):
    pass


@pytest.mark.parametrize('folder', FOLDERS[1::2])
class TestTheOtherHalf(Folders):
    pass
