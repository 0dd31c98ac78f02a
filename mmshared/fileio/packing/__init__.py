"""Folders of images into archives. Imports neither torch nor mm*."""

from .packing import Packed, pack_images

__all__ = ['Packed', 'pack_images']
