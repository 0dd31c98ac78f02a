"""Random numbers of workers.

MMEngine's ``worker_init_fn`` seeds a worker with ``num_workers * rank + worker + seed``: the same each time workers
start, so that workers that are not persistent repeat their augmentations in every epoch. Here the seed also depends on
when the pool started.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch

from .generators import reseed


class PoolSeed(NamedTuple):
    """What the random numbers of a pool's workers follow from.

    Attributes:
        seed: of the run.
        rank: of the main process.
        phase: name of what they load for.
        epoch, iteration: of the training when the pool starts.
    """

    seed: int
    rank: int
    phase: str
    epoch: int
    iteration: int

    def of_worker(self, worker: int) -> np.random.SeedSequence:
        """The source for worker number ``worker``: of nearby seeds ``SeedSequence`` makes independent numbers."""
        phase = int.from_bytes(self.phase.encode(), 'little')
        numbers = self.seed, self.rank, phase, self.epoch, self.iteration, worker
        return np.random.SeedSequence([number % (1 << 128) for number in numbers])

    @property
    def of_loader(self) -> int:
        """For the ``DataLoader``, which gives each worker a seed before ``worker_init_fn`` is called."""
        return int(self.of_worker(-1).generate_state(1)[0])


def seed_all(source: np.random.SeedSequence, dataset: Any) -> None:
    """Seed the generators of numpy, Python and PyTorch, and those that transforms of ``dataset`` have."""
    numpy_seed, python_seed, torch_seed, transforms_seed = source.spawn(4)
    np.random.seed(numpy_seed.generate_state(8))
    random.seed(int.from_bytes(python_seed.generate_state(8).tobytes(), 'little'))
    torch.manual_seed(int(torch_seed.generate_state(1, np.uint64)[0]) >> 1)
    reseed(dataset, transforms_seed)
