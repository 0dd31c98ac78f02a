"""torch.load with its safety on: MMEngine's checkpoints load, anything else is still refused."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer, MessageHub

from mmshared.engine import allow_mmengine_checkpoints
from mmshared.engine.checkpoints import _history_method

VERSION = tuple(int(part) for part in torch.__version__.split('.')[:2])
pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason='torch.load has no safe default before PyTorch 2.6')


@pytest.fixture(autouse=True)
def allowed():
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    allow_mmengine_checkpoints()
    yield
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(before)


def round_trip(value, path):
    torch.save(value, path)
    return torch.load(path)


def test_a_message_hub_comes_back(tmp_path):
    hub = MessageHub.get_instance('test_a_message_hub_comes_back')
    for value in (1.0, 2.5, 4.0):
        hub.update_scalar('train/loss', value)
    hub.update_info('best_score', np.float64(0.25), resumed=True)
    hub.update_info('iter', np.int64(7), resumed=True)
    loaded = round_trip(hub.state_dict(), tmp_path / 'hub.pth')
    buffer = loaded['log_scalars']['train/loss']
    assert isinstance(buffer, HistoryBuffer)
    assert buffer.data[0].tolist() == [1.0, 2.5, 4.0]
    assert buffer.statistics('max') == 4.0
    assert loaded['runtime_info']['best_score'] == 0.25
    assert loaded['runtime_info']['iter'] == 7


@pytest.mark.parametrize('dtype', ['?', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8'])
def test_numbers_of_numpy(tmp_path, dtype):
    array = np.arange(3).astype(dtype)
    loaded = round_trip({'array': array, 'scalar': array[1]}, tmp_path / 'numbers.pth')
    assert loaded['array'].dtype == array.dtype and loaded['array'].tolist() == array.tolist()
    assert loaded['scalar'] == array[1] and loaded['scalar'].dtype == array.dtype


@pytest.mark.parametrize('module', ['numpy.core.multiarray', 'numpy._core.multiarray'])
def test_the_names_of_either_numpy(module):
    names = {entry[1] for entry in torch.serialization.get_safe_globals() if isinstance(entry, tuple)}
    assert {f'{module}._reconstruct', f'{module}.scalar'} <= names


def test_config_dicts_in_dataset_meta(tmp_path):
    loaded = round_trip({'dataset_meta': ConfigDict(classes=('a', 'b'), nested=dict(x=1))}, tmp_path / 'meta.pth')
    assert loaded['dataset_meta'] == dict(classes=('a', 'b'), nested=dict(x=1))


class Evil:
    """What an attacker would put into a checkpoint."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    'evil',
    [
        Evil(subprocess.call, ['true']),
        Evil(getattr, HistoryBuffer, '__init__'),
        Evil(getattr, ConfigDict, 'pop'),
        Evil(eval, '1'),
    ],
    ids=['function of a module', 'dunder of HistoryBuffer', 'method of another class', 'builtin'],
)
def test_everything_else_is_refused(tmp_path, evil):
    with pytest.raises(pickle.UnpicklingError):
        round_trip({'state_dict': evil}, tmp_path / 'evil.pth')


def test_the_refusal_says_what_was_asked_for():
    with pytest.raises(pickle.UnpicklingError, match=r"attribute 'pop' of .*ConfigDict"):
        _history_method(ConfigDict, 'pop')


def test_importing_the_package_allows_nothing():
    code = """
import torch, mmengine.runner, mmdet.registry
before = torch.serialization.get_safe_globals()
import mmshared, mmshared.engine
assert torch.serialization.get_safe_globals() == before
"""
    subprocess.run([sys.executable, '-c', code], check=True)
