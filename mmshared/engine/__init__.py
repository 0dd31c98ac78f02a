"""Running MMEngine jobs: where there is no accelerator, with a PyTorch that loads weights only, with lean loops.

Importing this package changes nothing anywhere; ``tools/train.py`` and ``tools/test.py`` call it. :mod:`.loops`, which
``import mmshared`` imports, registers the lean loops.
"""

from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from mmshared.engine.cpu import CPURunnerMixin, has_accelerator, init_cpu_process_group
from mmshared.engine.launch import build_runner

__all__ = ['CPURunnerMixin', 'allow_mmengine_checkpoints', 'build_runner', 'has_accelerator', 'init_cpu_process_group']
