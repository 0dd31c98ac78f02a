"""Fixtures of the dataset tests."""

from __future__ import annotations

import functools
from typing import Any, Iterator, Optional

import pytest
from mmengine.dataset import BaseDataset


@pytest.fixture(scope='package', autouse=True)
def copies_of_stock() -> Iterator[None]:
    """Give every copy of a dataset a memo of its own, as deepcopy does.

    Stock may keep one memo for the life of the process, by ``id``; a new object at the address of one that is gone is
    then "copied" to the other's copy: a pipeline, for example, to a dataset.
    """
    stock = BaseDataset._copy_without_annotation

    @functools.wraps(stock)
    def copy(self: BaseDataset, memo: Optional[dict] = None) -> Any:
        return stock(self, {} if memo is None else memo)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseDataset, '_copy_without_annotation', copy)
        yield
