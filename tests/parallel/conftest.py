"""Fixtures for packed batches."""

from __future__ import annotations

import pytest


@pytest.fixture
def everything_is_packed(monkeypatch) -> None:
    """However small it is: otherwise little things own their memory in the end."""
    monkeypatch.setattr('mmshared.parallel.packing.SMALL', 0)
