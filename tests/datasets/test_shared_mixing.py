"""Datasets that look alike and are not: they must not get each other's samples."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from mmdet.registry import DATASETS
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DefaultScope

from mmshared.conversion import convert


class FromDatabase(BaseDataset):
    def __init__(self, file: str, **kwargs: Any) -> None:
        self.database = sqlite3.connect(file)
        super().__init__(**kwargs)

    def load_data_list(self) -> list:
        return [{'name': row[0]} for row in self.database.execute('select name from samples')]


class FromOpenFile(BaseDataset):
    def __init__(self, file: str, **kwargs: Any) -> None:
        self.file = open(file)  # noqa: SIM115
        super().__init__(**kwargs)

    def load_data_list(self) -> list:
        return [{'name': line.strip()} for line in self.file]


class FromGenerator(BaseDataset):
    def __init__(self, file: str, **kwargs: Any) -> None:
        self.lines = (line for line in Path(file).read_text().split())
        super().__init__(**kwargs)

    def load_data_list(self) -> list:
        return [{'name': line} for line in self.lines]


class OfSplit(BaseDataset):
    SPLIT = 'train'

    def load_data_list(self) -> list:
        return [{'name': self.SPLIT}]


class Plain(BaseDataset):
    def load_data_list(self) -> list:
        return [{'name': 'x'}]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('MMSHARED_CACHE', str(tmp_path / 'cache'))
    for kind in (FromDatabase, FromOpenFile, FromGenerator, OfSplit, Plain):
        monkeypatch.setitem(DATASETS.module_dict, kind.__name__, kind)
    return tmp_path / 'cache'


def names(dataset: BaseDataset) -> list:
    return [dataset.get_data_info(i)['name'] for i in range(len(dataset))]


@pytest.mark.parametrize('more', [{}, {'persist': True, 'version': '1'}], ids=['job', 'persist'])
@pytest.mark.parametrize('kind', ['FromDatabase', 'FromOpenFile', 'FromGenerator'])
def test_what_cannot_be_looked_into(tmp_path: Path, cache: Path, messages: Any, kind: str, more: dict) -> None:
    built = []
    for name in ('train', 'val'):
        file = tmp_path / name
        if kind == 'FromDatabase':
            with sqlite3.connect(file) as database:
                database.execute('create table samples (name text)')
                database.executemany('insert into samples values (?)', [(f'{name} {i}',) for i in range(3)])
            database.close()
        else:
            file.write_text(''.join(f'{name}{i}\n' for i in range(3)))
        built.append(DATASETS.build(dict(type='SharedDataset', dataset=dict(type=kind, file=str(file)), **more)))
    assert len(names(built[0])) == 3 and set(names(built[0])).isdisjoint(names(built[1]))
    said = messages()
    assert 'every process loads it in full' in said and 'cannot be compared' in said


def test_class_attributes_count(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dict(type='SharedDataset', dataset=dict(type='OfSplit'))
    assert names(DATASETS.build(config)) == ['train']
    monkeypatch.setattr(OfSplit, 'SPLIT', 'val')
    assert names(DATASETS.build(config)) == ['val']


def test_the_scope_of_the_dataset_within(cache: Path) -> None:
    inner = dict(type='Plain', _scope_='mmdet', pipeline=[dict(type='PackDetInputs')])
    cfg = Config(dict(default_scope='mmengine', train_dataloader=dict(dataset=inner)))
    convert(cfg)
    assert cfg.train_dataloader.dataset.type == 'mmdet.SharedDataset'
    with DefaultScope.overwrite_default_scope('mmengine'):
        assert isinstance(DATASETS.build(cfg.train_dataloader.dataset), Plain)


@pytest.mark.parametrize(
    ('config', 'said'),
    [
        ({'ann_file': 'a.json'}, "dataset=dict(type=..., ...)): 'ann_file' belong into the inner dict"),
        ({'dataset': {'type': 'Plain'}, 'pipeline': []}, "'pipeline' belong into the inner dict"),
        ({}, 'SharedDataset is put around a dataset'),
    ],
    ids=['flat', 'beside', 'empty'],
)
def test_how_it_is_meant(cache: Path, config: dict, said: str) -> None:
    with pytest.raises(TypeError) as error:
        DATASETS.build({'type': 'SharedDataset', **config})
    assert said in str(error.value)


def test_a_version_is_a_text(cache: Path) -> None:
    with pytest.raises(ValueError, match="Write version='1'"):
        DATASETS.build(dict(type='SharedDataset', dataset=dict(type='Plain'), persist=True, version=1))
