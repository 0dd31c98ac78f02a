"""Configs to convert."""

from __future__ import annotations

import copy
from typing import Any

from mmengine.config import Config

from mmshared.conversion import Report, convert, convert_back


def loaded(**keys: Any) -> Config:
    """A config of mmdet's scope."""
    return Config({'default_scope': 'mmdet', **keys})


def loader(**dataset: Any) -> dict:
    return dict(batch_size=2, num_workers=0, dataset=dataset)


def swapped(cfg: Config) -> Report:
    """Convert ``cfg``; a second time changes nothing, and back again it is as before."""
    before = copy.deepcopy(cfg.to_dict())
    report = convert(cfg)
    after = copy.deepcopy(cfg.to_dict())
    again = convert(cfg)
    assert not again.changed and cfg.to_dict() == after
    # Where each is may be another place by now: inside a SharedDataset.
    assert [(c.old, c.reason) for c in again.left] == [(c.old, c.reason) for c in report.left]
    copied = copy.deepcopy(cfg)
    convert_back(copied)
    assert copied.to_dict() == before
    return report


def changes(report: Report) -> dict:
    """What was changed, by key."""
    return {change.path: (change.old, change.new) for change in report.changed}


def left(report: Report) -> dict:
    """What was left and why, by key."""
    return {change.path: (change.old, change.reason) for change in report.left}
