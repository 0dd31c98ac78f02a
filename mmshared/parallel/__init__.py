"""One batch is one buffer: packed by workers, copied to a device in one piece, without field by field in between."""

from .batch import PackedBatch
from .collation import packed_collate
from .data_container import DataContainer, collate, data_container_collate
from .device import to_device
from .memory import SharedMemoryError
from .prefetch import DevicePrefetcher
from .scatter import scatter, scatter_kwargs

__all__ = [
    'DataContainer',
    'DevicePrefetcher',
    'PackedBatch',
    'SharedMemoryError',
    'collate',
    'data_container_collate',
    'packed_collate',
    'scatter',
    'scatter_kwargs',
    'to_device',
]
