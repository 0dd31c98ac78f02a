"""mmshared: shared-memory data loading for MMDetection.

Importing it registers every component with mmengine's and mmdet's registries, so that
``custom_imports = dict(imports=['mmshared'])`` is all a config needs. Where that stack is not installed, there is
nothing to register, and what does without it (:mod:`mmshared.annotations`) still works.
"""

import sys
from importlib.util import find_spec

from .version import __version__

__all__ = ['__version__']


def _runs_as_command() -> bool:
    """Whether this is ``python -m mmshared``, which has no use for a stack that takes seconds to import.

    While Python imports a package for ``-m``, ``sys.argv[0]`` is '-m', and only its original arguments say of which.
    """
    given = getattr(sys, 'orig_argv', [])  # Python >= 3.10; before, the command starts slowly
    arguments = getattr(sys, 'argv', [])
    return arguments[:1] == ['-m'] and given[-len(arguments) :][:1] in (['mmshared'], ['-mmmshared'])


if not _runs_as_command() and all(find_spec(name) for name in ('torch', 'mmengine', 'mmcv', 'mmdet')):
    from . import datasets  # noqa: F401
