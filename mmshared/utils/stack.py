"""Which packages provide the modules that mmshared plugs into."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Dict

#: By import name, who may have installed it as pip knows it: OpenMMLab, or its fork OneDL, which keeps those names.
DISTRIBUTIONS = {
    'mmengine': ('mmengine', 'onedl-mmengine'),
    'mmcv': ('mmcv', 'onedl-mmcv'),
    'mmdet': ('mmdet', 'onedl-mmdetection'),
}


def stack_versions() -> Dict[str, str]:
    """The installed packages of :data:`DISTRIBUTIONS`, in its order: version by package name.

    Two packages of one module (``mmcv`` and ``onedl-mmcv``) have overwritten each other's files: such an environment
    has to be made anew.
    """
    versions = {}
    for names in DISTRIBUTIONS.values():
        for name in names:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue
    return versions
