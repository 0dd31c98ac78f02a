"""Whether the workers of the next phase may start before that phase does.

Hooks run in between. Workers copy the dataset and the sampler when they start, so one that changes either must have run
before: a hook that is not known to leave them alone makes the workers wait for their phase.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

from mmengine.hooks import Hook

#: Hooks that leave datasets and samplers alone, by name: not every version of the stack has each.
_HARMLESS = {
    'CheckpointHook',
    'DistSamplerSeedHook',  # what it does is done here
    'EMAHook',
    'EarlyStoppingHook',
    'EmptyCacheHook',
    'IterTimerHook',
    'LoggerHook',
    'MeanTeacherHook',
    'MemoryProfilerHook',
    'NodeMemoryHook',
    'NPUProfilerHook',
    'NumClassCheckHook',
    'ParamSchedulerHook',
    'ProfilerHook',
    'RuntimeInfoHook',
    'SetEpochInfoHook',
    'SyncBuffersHook',
    'SyncNormHook',
}
_STACK = {'mmengine', 'mmdet', 'mmshared'}
#: What runs between the last batch of one phase and the first of the next. What hooks do after each iteration does not
#: count: they are many, and those that change data do it by epochs.
_BEFORE_EPOCH = ('after_val_epoch', 'after_val', '_after_epoch', 'before_train_epoch', '_before_epoch')
_BEFORE_VALIDATION = ('after_train_epoch', '_after_epoch', 'before_val', 'before_val_epoch', '_before_epoch')


def may_train_early(runner: Any) -> bool:
    """Whether nothing that runs before the first batch of epoch ``runner.epoch`` changes what its workers see."""
    return not any(_touches_next_epoch(hook, runner) for hook in runner.hooks)


def may_validate_early(runner: Any) -> bool:
    """Whether nothing that runs before the first batch of a validation changes what its workers see."""
    return not any(_touches_data(hook, _BEFORE_VALIDATION) for hook in runner.hooks)


def set_epoch(loader: Any, runner: Any) -> None:
    """Tell the sampler the epoch that begins next, where MMEngine's ``DistSamplerSeedHook`` will: it does no harm."""
    names = [_origin(hook, 'before_train_epoch') for hook in runner.hooks]
    if ('mmengine', 'DistSamplerSeedHook') in names:
        tell_epoch(loader, runner.epoch)


def tell_epoch(loader: Any, epoch: int) -> None:
    """Tell the sampler the epoch that it begins next, if it wants to know."""
    if hasattr(getattr(loader, 'sampler', None), 'set_epoch'):
        loader.sampler.set_epoch(epoch)
    elif hasattr(getattr(getattr(loader, 'batch_sampler', None), 'sampler', None), 'set_epoch'):
        loader.batch_sampler.sampler.set_epoch(epoch)


def _touches_next_epoch(hook: Hook, runner: Any) -> bool:
    if not _touches_data(hook, _BEFORE_EPOCH):
        return False
    _, name = _origin(hook, 'before_train_epoch') or ('', '')
    if name == 'PipelineSwitchHook':
        return runner.epoch >= hook.switch_epoch and not hook._has_switched
    if name == 'YOLOXModeSwitchHook':
        return runner.epoch + 1 >= runner.max_epochs - hook.num_last_epochs and not hook._has_switched
    return True


def _touches_data(hook: Hook, points: Tuple[str, ...]) -> bool:
    """Whether ``hook`` does something at one of ``points`` that is not known to be harmless."""
    origins = [_origin(hook, point) for point in points]
    return any(origin and not (origin[0] in _STACK and origin[1] in _HARMLESS) for origin in origins)


def _origin(hook: Hook, point: str) -> Optional[Tuple[str, str]]:
    """Package and class that define what ``hook`` does at ``point``; None if that is nothing."""
    method = getattr(type(hook), point, None)
    if method is None or method is getattr(Hook, point, None):
        return None
    return method.__module__.split('.')[0], method.__qualname__.split('.')[0]
