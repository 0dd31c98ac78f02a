"""The text of a config: it loads as what it was made of, or an error says what cannot be written."""

from __future__ import annotations

import os
import re

import pytest
from mmdet.datasets import CocoDataset
from mmengine.config import Config
from mmengine.dataset import default_collate

from mmshared.conversion.writing import as_text, differences


def reloaded(cfg):
    return Config.fromstring(as_text(cfg), '.py')


@pytest.mark.parametrize(
    'value',
    [
        dict(a=(1,), b=[], c=(), d={}, e=None),
        {'with space': 1, 'a.b': dict(c=2), 3: 4},
        ["it's", '"quoted"', 'a\nb', 'ü\u202e\\', ''],
        [1e-300, -0.5, 10**30, True],
        [dict(a=[(1, [2])])],
    ],
    ids=['containers', 'keys', 'texts', 'numbers', 'nested'],
)
def test_it_loads_as_it_was(value):
    cfg = Config(dict(value=value))
    assert not list(differences(reloaded(cfg).to_dict(), dict(value=value)))


def test_classes_and_functions_are_named():
    cfg = Config(dict(a=dict(type=CocoDataset), b=[default_collate]))
    assert reloaded(cfg).to_dict() == dict(
        a=dict(type='mmdet.datasets.coco.CocoDataset'), b=['mmengine.dataset.utils.default_collate']
    )


@pytest.mark.parametrize(
    'value, where',
    [
        (dict(a=float('inf')), ''),
        (dict(a=[lambda: 1]), 'value.a.0 is '),
        (dict(a=dict(b=object())), ''),
        (dict(a='{{ fileBasename }}'), 'value.a '),
    ],
    ids=['infinity', 'function', 'object', 'substituted'],
)
def test_what_cannot_be_written(value, where, tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', os.fspath(tmp_path))
    with pytest.raises(ValueError, match=f'cannot be written as a config file: .*{re.escape(where)}'):
        as_text(Config(dict(value=value)))
    assert not list(tmp_path.iterdir())


def test_differences():
    one = dict(a=1, b=[1, dict(c=(1, 2))], d=1.0)
    assert list(differences(one, one)) == []
    assert list(differences(one, dict(a=1, b=[1, dict(c=(1, 3))], d=1))) == ['b.1.c.1', 'd']
    assert list(differences(one, dict(a=1, b=(1,), e=2))) == ['b', 'd', 'e']
    assert list(differences([1], [1, 2])) == ['']
