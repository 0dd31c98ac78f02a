"""Fixtures of the dataset tests."""

from __future__ import annotations

import logging
from typing import Callable, Iterator

import pytest
from mmengine.logging import MMLogger


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
