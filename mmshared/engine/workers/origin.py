"""The main process's random state where a sampler began, for those few that draw from it."""

from __future__ import annotations

import random
from typing import Any, Dict, Tuple

import numpy as np
import torch

State = Dict[str, Any]
"""Of the global generators of Python, numpy and PyTorch (CPU), as plain values: it goes into checkpoints."""

Origin = Tuple[State, State]
"""Before the sampler was asked first, and when training began: others draw in between, as they are built."""


def capture() -> State:
    """The state now."""
    name, keys, *rest = np.random.get_state()
    return {
        'python': random.getstate(),
        'numpy': (name, keys.tobytes(), *rest),
        'torch': torch.get_rng_state().numpy().tobytes(),
    }


def restore(state: State) -> None:
    """Go back to that state."""
    version, numbers, gauss = state['python']
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = state['numpy']
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    torch.set_rng_state(torch.frombuffer(bytearray(state['torch']), dtype=torch.uint8))
