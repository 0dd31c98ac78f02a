"""Fixtures of the dataset tests."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable, Iterator, Optional

import pytest
from mmengine.dataset import BaseDataset
from mmengine.logging import MMLogger


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


@pytest.fixture
def messages() -> Iterator[Callable[[], str]]:
    """What mmengine's current logger was given since the last call (its loggers are not in ``logging``'s tree)."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)

    def read() -> str:
        text = '\n'.join(records)
        records.clear()
        return text

    yield read
    logger.removeHandler(handler)
