"""Where in its data a job is: checkpoints say it, and a job that is resumed goes on there.

MMEngine's checkpoints have the epoch and the iteration. That is not enough: a sampler's seed may not be the run's, an
epoch may not be over, and the sampler of the resumed job was built before the seed was restored.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import numpy as np
from mmengine.dist import all_gather_object, get_world_size
from mmengine.logging import print_log

from .workers import Origin, Workers, capture

KEY = 'mmshared_position'
"""Under which the message hub has it."""


class Position(NamedTuple):
    """A place between two batches.

    Attributes:
        epoch, iteration: of the training that are over.
        batch: how many batches of the epoch (without epochs: of the run) are over.
        fingerprint: of those that the sampler gave rank 0 since it began; None if not known.
        seeds: of the samplers, the outer one's first; None for one without.
        origins: for samplers that draw from the main process's random state: it, where they began, of every rank, or
            one for all.
        job: ``world_size``, ``batch_size`` and ``dataset_length``: without these the place means nothing.
    """

    epoch: int
    iteration: int
    batch: int
    fingerprint: Optional[int]
    seeds: List[Optional[int]]
    origins: List[Origin]
    job: Dict[str, Any]

    def note(self, runner: Any) -> Dict[str, Any]:
        """Have it saved with checkpoints that are made from now on; returns what the message hub then has."""
        noted = self._asdict()
        runner.message_hub.update_info(KEY, noted, resumed=True)
        return noted

    @staticmethod
    def is_noted(runner: Any, noted: Any) -> bool:
        """Whether the message hub has what :meth:`note` returned, and not what a checkpoint says."""
        return noted is not None and runner.message_hub.get_info(KEY) is noted

    @classmethod
    def noted(cls, runner: Any, loader: Any, by_epoch: bool) -> Optional[Position]:
        """What the checkpoint that ``runner`` has resumed from says; None if it does not apply, with a warning."""
        saved = runner.message_hub.get_info(KEY)
        position = cls._understood(saved)
        if saved is not None and position is None:
            reason = 'says it in a way that this version of mmshared does not understand'
        elif position is None or position.iteration != runner.iter or (by_epoch and position.epoch != runner.epoch):
            reason = 'does not say it, as it was not made with a lean loop'
        else:
            now = job_of(loader)
            changes = [
                f'{name} {position.job.get(name)}, now {now[name]}'
                for name in now
                if position.job.get(name) != now[name]
            ]
            if not changes:
                return position
            reason = f'was made with {" and ".join(changes)}'
        print_log(
            f"Where in its data this job was is not known: the checkpoint {reason}. It goes on as with MMEngine's "
            'loops, so the order of samples is not the one of a run without interruption.',
            logger='current',
            level=logging.WARNING,
        )
        return None

    @classmethod
    def _understood(cls, saved: Any) -> Optional[Position]:
        """What was saved, if it is complete and of the right types."""
        try:
            position = cls(*(saved[name] for name in cls._fields))
        except (KeyError, TypeError):
            return None
        numbers = position.epoch, position.iteration, position.batch
        kinds = (position.seeds, list), (position.origins, list), (position.job, dict)
        is_right = all(isinstance(number, int) for number in numbers) and all(isinstance(*pair) for pair in kinds)
        return position if is_right else None

    def check(self, fingerprint: Optional[int]) -> None:
        """Warn if other batches were skipped than those the job had before the checkpoint. For rank 0."""
        if None not in (self.fingerprint, fingerprint) and self.fingerprint != fingerprint:
            print_log(
                f'The sampler has not given the same {self.batch} batches as before the checkpoint, so the order of '
                'samples is not the one of a run without interruption. Has the annotation file changed, or the filter '
                'of images? A sampler that draws random numbers from elsewhere than its own seed needs '
                'randomness=dict(seed=...) in the config.',
                logger='current',
                level=logging.WARNING,
            )


def samplers_of(loader: Any) -> List[Any]:
    """The batch sampler and the samplers inside it, from the outside in."""
    outer, inner = getattr(loader, 'batch_sampler', None), getattr(loader, 'sampler', None)
    chain, one = [], inner if outer is None else outer
    while one is not None and not any(one is other for other in chain):
        chain.append(one)
        one = getattr(one, 'sampler', None)
    return chain


def seeds_of(loader: Any) -> List[Optional[int]]:
    """Seeds of :func:`samplers_of`, where they have one that is a number."""
    seeds = [getattr(sampler, 'seed', None) for sampler in samplers_of(loader)]
    return [int(seed) if isinstance(seed, (int, np.integer)) else None for seed in seeds]


def restore_seeds(loader: Any, seeds: List[Optional[int]]) -> None:
    """Give samplers that have not begun the seeds of an earlier job."""
    for sampler, seed in zip(samplers_of(loader), seeds):
        if seed is not None and getattr(sampler, 'seed', None) != seed:
            sampler.seed = seed


def job_of(loader: Any) -> Dict[str, Any]:
    """What ``Position.job`` is for this job; None for what nobody can tell."""
    batch_size = getattr(loader, 'batch_size', None)
    if batch_size is None:
        batch_size = getattr(getattr(loader, 'batch_sampler', None), 'batch_size', None)
    try:
        length = len(loader.dataset)
    except TypeError:
        length = None
    return {
        'world_size': get_world_size(),
        'batch_size': batch_size if batch_size is None else str(batch_size),  # a sampler of several sources has several
        'dataset_length': length,
    }


def origins_of(workers: Workers) -> List[Origin]:
    """``Position.origins`` of a job in which training begins now; each rank has to call it if one does."""
    if workers.origin is None:
        return []
    origins = all_gather_object((workers.origin, capture()))
    return origins[:1] if all(one == origins[0] for one in origins) else origins


def told(skipped: Iterator[None], total: int, every: float = 5.0) -> int:
    """Count ``skipped``, and say how far it is if it takes longer than a second."""
    count, due = 0, time.monotonic() + 1
    for count, _ in enumerate(skipped, 1):
        if time.monotonic() >= due:
            print_log(f'Moving the sampler forward: {count:,} of {total:,} batches', logger='current')
            due = time.monotonic() + every
    return count
