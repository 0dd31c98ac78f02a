"""Loading that draws random numbers moves the generators of the process that loads, and of no other.

In a stock job all ranks have one seed, all load, and all generators end up in the same state. It stays so: whoever
takes over what was loaded, and has its generators where the loading process had them before, moves them as it did.
"""

from __future__ import annotations

import random
from typing import Any, Dict, Tuple

import numpy as np
import torch

from .content import Digester

_GENERATORS = {
    'random': (random.getstate, random.setstate),
    'numpy': (np.random.get_state, np.random.set_state),
    'torch': (lambda: torch.get_rng_state().numpy().tobytes(), lambda state: torch.set_rng_state(_tensor(state))),
}

Moves = Dict[str, Tuple[bytes, Any]]


def states() -> Dict[str, Any]:
    """The states of this process's generators: Python's, NumPy's, and PyTorch's of the CPU."""
    return {name: get() for name, (get, _) in _GENERATORS.items()}


def moves(before: Dict[str, Any], after: Dict[str, Any]) -> Moves:
    """Of the generators that were moved: digest of the state before, state after."""
    digests = {name: Digester()(state) for name, state in before.items()}
    return {name: (digest, after[name]) for name, digest in digests.items() if Digester()(after[name]) != digest}


def move(moves: Moves) -> None:
    """Move this process's generators in the same way, where they are in the same state."""
    for name, (before, after) in moves.items():
        get, set_ = _GENERATORS[name]
        if Digester()(get()) == before:
            set_(after)


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
