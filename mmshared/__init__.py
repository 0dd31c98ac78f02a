"""mmshared: shared-memory data loading for MMDetection.

Importing it registers every component with mmengine's and mmdet's registries, so that
``custom_imports = dict(imports=['mmshared'])`` is all a config needs. Where that stack is not installed, there is
nothing to register, and what does without it (:mod:`mmshared.annotations`) still works.
"""

from importlib.util import find_spec

__version__ = '0.1.0'

if all(find_spec(name) for name in ('torch', 'mmengine', 'mmcv', 'mmdet')):
    from . import datasets  # noqa: F401
