"""Where stores live: built once per node, published whole, removed only when nobody uses them."""

from .data_cache import DataCache, distrust, leave
from .errors import SPACE_ERRNOS, BuildFailedError, CacheAccessError, CacheError, CacheSpaceError, SourceChangedError
from .holds import Hold, hold
from .source import Fingerprint
from .store_cache import StoreCache
from .workplace import tempfiles_in

__all__ = [
    'SPACE_ERRNOS',
    'BuildFailedError',
    'CacheAccessError',
    'CacheError',
    'CacheSpaceError',
    'DataCache',
    'Fingerprint',
    'Hold',
    'SourceChangedError',
    'StoreCache',
    'distrust',
    'hold',
    'leave',
    'tempfiles_in',
]
