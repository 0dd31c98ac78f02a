"""MMEngine's loops with one pool of workers alive at a time. When that is, :mod:`..workers.lifetimes` tells."""

from .evaluation import LeanTestLoop, LeanValLoop
from .training import LeanIterTrainLoop, LeanTrainLoop

__all__ = ['LeanIterTrainLoop', 'LeanTestLoop', 'LeanTrainLoop', 'LeanValLoop']
