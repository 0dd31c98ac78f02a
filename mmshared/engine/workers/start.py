"""What a worker does before it loads anything."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Callable, Optional

from mmengine.dataset import worker_init_fn as mmengine_init
from torch.utils.data import get_worker_info

from .seeding import PoolSeed, seed_all

_STACK = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmshared')
_NOT_CHOSEN = ['__main__']  # Python's default


def init_worker(seed: PoolSeed, users: Optional[Callable[[int], Any]], worker: int) -> None:
    """Make ready worker number ``worker``; a ``worker_init_fn`` of the user's own has the last word."""
    end_with_parent()
    gc.freeze()  # else the first full collection writes to every inherited object, which makes a copy of its page
    is_default = isinstance(users, partial) and users.func is mmengine_init
    if users is not None and is_default:
        users(worker)  # for what it does beside seeding
    seed_all(seed.of_worker(worker), get_worker_info().dataset)
    if users is not None and not is_default:
        users(worker)


def warm_up(loader: Any) -> None:
    """If workers of ``loader`` come from a fork server that does not run yet, have it import what they need, once.

    Else each would import the whole stack, which takes seconds, and workers are started often here. A choice of
    modules that the user has made stays.
    """
    context = loader.multiprocessing_context or multiprocessing.get_context()
    server = getattr(sys.modules.get('multiprocessing.forkserver'), '_forkserver', None)
    chosen = getattr(server, '_preload_modules', _NOT_CHOSEN)
    if context.get_start_method() == 'forkserver' and chosen == _NOT_CHOSEN:
        modules = [*_STACK, type(loader.dataset).__module__]
        context.set_forkserver_preload([*_NOT_CHOSEN, *[name for name in modules if name in sys.modules]])


def end_with_parent() -> None:
    """Have this process end as soon as the one that started it has, however that came.

    A worker of PyTorch looks for its parent every five seconds while it has nothing to do, and never ends if the
    parent was killed while the pipe of results was full: it waits for somebody to read it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent.sentinel,), name='end-with-parent', daemon=True).start()


def _end_after(sentinel: Any) -> None:
    wait([sentinel])
    os._exit(1)
