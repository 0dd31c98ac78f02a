"""What an examination says."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Level(str, Enum):
    """How bad it is."""

    OK = 'ok'
    WARNING = 'warning'
    PROBLEM = 'problem'


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        level: how bad it is.
        subject: what was looked at.
        text: what there is.
        advice: what to change; empty where nothing.
    """

    level: Level
    subject: str
    text: str
    advice: str = ''


def ok(subject: str, text: str) -> Finding:
    """Nothing to change."""
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, advice: str) -> Finding:
    """A job runs, but worse than it could."""
    return Finding(Level.WARNING, subject, text, advice)


def problem(subject: str, text: str, advice: str) -> Finding:
    """A job is likely to fail."""
    return Finding(Level.PROBLEM, subject, text, advice)
