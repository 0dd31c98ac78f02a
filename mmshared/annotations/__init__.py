"""COCO JSON -> memory-mapped columns. Imports numpy and the JSON parsers only: no torch, no mm*."""

from .arrays import ArrayView
from .cache import CacheError, Fingerprint, StoreCache
from .errors import AnnotationFileError, StoreError
from .opening import find_store, has_store_magic, open_store, shared_columns, shared_rows
from .paths import COCO_PATHS, Paths
from .store import AnnotationStore
from .view import DetectionView

__all__ = [
    'COCO_PATHS',
    'AnnotationFileError',
    'AnnotationStore',
    'ArrayView',
    'CacheError',
    'DetectionView',
    'Fingerprint',
    'Paths',
    'StoreCache',
    'StoreError',
    'find_store',
    'has_store_magic',
    'open_store',
    'shared_columns',
    'shared_rows',
]
