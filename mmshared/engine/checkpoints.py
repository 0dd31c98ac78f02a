"""Let PyTorch's safe unpickler read what MMEngine puts into a checkpoint.

Since 2.6 ``torch.load`` refuses every class it was not told about. MMEngine's checkpoints hold, besides tensors, the
message hub's ``HistoryBuffer`` and numpy numbers, so ``--resume`` fails. Naming those few keeps the protection: none of
them runs code of the file's choosing. Switching ``weights_only`` off would give it up for every checkpoint,
downloaded ones included.
"""

from __future__ import annotations

import pickle
from typing import Any, List, Tuple

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

_SCALAR_TYPES = (
    np.bool_,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.float16,
    np.float32,
    np.float64,
)


def _numpy_globals() -> List[Any]:
    """What rebuilds arrays and scalars of plain numbers, under the module names of numpy 1 and numpy 2."""
    rebuild_array = np.empty(0).__reduce__()[0]
    rebuild_scalar = np.float64(0).__reduce__()[0]
    renamed: List[Tuple[Any, str]] = []
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        renamed += [(rebuild_array, f'{module}._reconstruct'), (rebuild_scalar, f'{module}.scalar')]
    # The class of a dtype (numpy.dtypes.Float64DType) is looked up too when a dtype is rebuilt.
    dtype_classes = {type(np.dtype(scalar)) for scalar in _SCALAR_TYPES}
    return [np.ndarray, np.dtype, *renamed, *sorted(dtype_classes, key=lambda cls: cls.__name__)]


def _history_method(owner: Any, name: str) -> Any:
    """Stands in for ``getattr``, by which pickle names the methods that a ``HistoryBuffer`` keeps in its state.

    Raises:
        pickle.UnpicklingError: anything else is asked for.
    """
    if owner is not HistoryBuffer or not isinstance(name, str) or name.startswith('_'):
        raise pickle.UnpicklingError(
            f'the checkpoint wants the attribute {name!r} of {owner!r}; only the statistics '
            "methods of MMEngine's HistoryBuffer are expected in one, so it is not loaded"
        )
    return getattr(owner, name)


def allow_mmengine_checkpoints() -> None:
    """Add the types of MMEngine's checkpoints to PyTorch's list of safe globals.

    Only adds names, may be called repeatedly, and does nothing before PyTorch 2.6, whose ``torch.load`` has no such
    list or does not consult it by default.
    """
    major, minor = (int(part) for part in torch.__version__.split('.')[:2])
    if (major, minor) >= (2, 6):
        torch.serialization.add_safe_globals(
            [HistoryBuffer, (_history_method, 'builtins.getattr'), ConfigDict, *_numpy_globals()]
        )
