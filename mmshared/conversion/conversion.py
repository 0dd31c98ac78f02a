"""A whole config, converted in place."""

from __future__ import annotations

from mmengine.config import Config

from .report import Report
from .sharing import Sharing
from .unsharing import Unsharing


def convert(cfg: Config) -> Report:
    """Give every type of ``cfg`` that has a shared or lean counterpart that one, in place.

    Datasets, transforms and metrics are found at any depth, by what their types mean: written with a scope or without,
    as a dotted path or as a class. Any other dataset that is derived from MMEngine's ``BaseDataset`` is put inside a
    ``SharedDataset``. Loops and collate functions become those of mmshared where they are MMEngine's own, or left out.
    What has been converted before stays as it is.

    Args:
        cfg: a loaded config, whole or a part that others inherit from.

    Returns:
        What was changed, and what was left and why.
    """
    return Sharing(cfg).run()


def convert_back(cfg: Config) -> Report:
    """Give every shared or lean type of ``cfg`` the stock type that it stands in for, in place.

    Arguments that stock does not take, ``NodeMemoryHook`` and the import of mmshared are dropped. After
    :func:`convert`, the result is the config of before, but for what MMEngine takes by default and is then spelt out:
    the types of loops.

    Args:
        cfg: a loaded config.

    Returns:
        What was changed, and what was left because nothing of stock's does the same; that still needs mmshared.
    """
    return Unsharing(cfg).run()
