"""Errors of an evaluation."""

from __future__ import annotations


class RankError(RuntimeError):
    """Something went wrong in another rank; says in which, and what."""


def text_of(failure: BaseException) -> str:
    """Type and message, for another rank."""
    return f'{type(failure).__name__}: {failure}'
