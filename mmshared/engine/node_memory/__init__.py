"""How much memory of its node a job takes, and for what. :mod:`.hook` tells when it is looked at and where it goes."""

from .hook import NodeMemoryHook
from .look import Look

__all__ = ['Look', 'NodeMemoryHook']
