"""JSON -> columns: what only the process that builds a store needs."""

from .builder import build_store

__all__ = ['build_store']
