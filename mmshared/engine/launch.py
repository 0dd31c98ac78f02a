"""From a config to a runner that works on this machine."""

from __future__ import annotations

from mmengine.config import Config
from mmengine.runner import Runner

from mmshared.engine.checkpoints import allow_mmengine_checkpoints
from mmshared.engine.cpu import CPURunnerMixin, has_accelerator


def runner_class(cfg: Config) -> type:
    """The runner's class: ``cfg.runner_type`` or ``Runner``, adapted where there is no accelerator.

    Raises:
        KeyError: ``cfg.runner_type`` names no registered runner.
    """
    base = Runner
    if 'runner_type' in cfg:
        from mmdet.registry import RUNNERS  # here: all else in this package does without mmdet

        base = RUNNERS.get(cfg.runner_type)
        if base is None:
            raise KeyError(
                f'runner_type={cfg.runner_type!r} is not registered. Is the module that defines it in custom_imports?'
            )
    if has_accelerator() or not issubclass(base, Runner):
        return base
    return type(f'CPU{base.__name__}', (CPURunnerMixin, base), {})


def build_runner(cfg: Config) -> Runner:
    """A runner for ``cfg``, able to load and resume MMEngine's checkpoints.

    With an accelerator it is exactly the runner that mmdet's own tools build.
    """
    allow_mmengine_checkpoints()
    return runner_class(cfg).from_cfg(cfg)
