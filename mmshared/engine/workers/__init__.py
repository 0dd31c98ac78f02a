"""Workers that live only while they are needed. :mod:`.lifetimes` tells when that is."""

from .errors import LoadingError
from .lifetimes import Lifetimes, Workers
from .origin import Origin, capture
from .receiver import Receiver
from .seeding import PoolSeed

__all__ = ['Lifetimes', 'LoadingError', 'Origin', 'PoolSeed', 'Receiver', 'Workers', 'capture']
