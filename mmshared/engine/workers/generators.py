"""Random generators that datasets and transforms have of their own.

Workers are copies of the main process, and so are these generators: unless each is seeded anew, all workers draw the
same numbers. (Albumentations from 1.4.21 on has them in ``Compose``.)
"""

from __future__ import annotations

import random
import warnings
from typing import Any, Callable, Dict

import numpy as np
import torch

from ..transforms import walk


def reseed(dataset: Any, source: np.random.SeedSequence) -> None:
    """Seed every generator found in ``dataset`` and its transforms, each differently.

    One that does not let itself be seeded is warned about: it may draw the same numbers in all workers.
    """
    for thing in walk(dataset):
        seed_it = _way_to_seed(thing)
        if seed_it is None:
            continue
        try:
            seed_it(source.spawn(1)[0])
        except Exception as error:  # it may be anything's
            warnings.warn(
                f'{type(thing).__name__} in the transforms cannot be seeded ({type(error).__name__}: {error}), so all '
                'workers may draw the same numbers from it, and draw them again in every epoch. Seed it in a '
                'worker_init_fn of your own.',
                stacklevel=2,
            )


def _way_to_seed(thing: Any) -> Any:
    if isinstance(thing, random.SystemRandom):  # it has no seed
        return None
    for kind, seed_it in _SEED.items():
        if isinstance(thing, kind):
            return lambda source: seed_it(thing, source)
    if callable(getattr(thing, 'set_random_seed', None)):
        return lambda source: thing.set_random_seed(_integer(source))
    return None


def _integer(source: np.random.SeedSequence) -> int:
    return int(source.generate_state(1)[0])


def _seed_generator(generator: np.random.Generator, source: np.random.SeedSequence) -> None:
    generator.bit_generator.state = type(generator.bit_generator)(source).state


_SEED: Dict[type, Callable[[Any, np.random.SeedSequence], Any]] = {
    random.Random: lambda thing, source: thing.seed(_integer(source)),
    np.random.RandomState: lambda thing, source: thing.seed(_integer(source)),
    np.random.Generator: _seed_generator,
    torch.Generator: lambda thing, source: thing.manual_seed(_integer(source)),
}
