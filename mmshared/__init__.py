"""mmshared: shared-memory data loading for MMDetection.

Importing it registers every component with mmengine's and mmdet's registries, so that
``custom_imports = dict(imports=['mmshared'])`` is all a config needs. Where that stack is not installed, there is
nothing to register, and what does without it (:mod:`mmshared.annotations`) still works; the loops need no mmdet.
"""

import contextlib
import os
import sys
from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']


def _runs_as_command() -> bool:
    """Whether this is the command ``mmshared``, which has no use for a stack that takes seconds to import.

    While Python imports a package for ``-m``, ``sys.argv[0]`` is '-m', and only its original arguments say of which.
    """
    arguments = getattr(sys, 'argv', [])
    if arguments[:1] == ['-m']:
        given = getattr(sys, 'orig_argv', [])  # Python >= 3.10; before, ``-m`` starts slowly
        return given[-len(arguments) :][:1] in (['mmshared'], ['-mmmshared'])
    return os.path.basename(arguments[0]) in ('mmshared', 'mmshared.exe') if arguments else False


def register_components() -> None:
    """Register all components that the installed packages allow for; torch and mmengine have to be there."""
    # What a stack has to say while it is imported (OneDL's does) is no part of a program's results.
    with contextlib.redirect_stdout(sys.stderr):
        from . import parallel  # noqa: F401
        from .engine import loops, node_memory  # noqa: F401
        from .fileio import record_backend  # noqa: F401

        if all(find_spec(name) for name in ('mmcv', 'mmdet')):
            from . import datasets, evaluation  # noqa: F401


if not _runs_as_command() and all(find_spec(name) for name in ('torch', 'mmengine')):
    register_components()
