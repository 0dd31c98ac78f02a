"""What pass one writes of each record, in the order of the file: its numbers, and the lengths of its texts."""

from __future__ import annotations

import numpy as np

ANNOTATION_ROW = np.dtype(
    [
        ('id', '<i8'),
        ('image', '<i8'),
        ('area', '<f8'),
        ('bbox', '<f8', 4),
        ('category', '<i4'),
        ('base', '<i4'),
        ('coords', '<u4'),
        ('polygons', '<u4'),
        ('bits', '<u4'),
        ('rle', '<u4'),
        ('extra', '<u4'),
        ('raw', '<u4'),
        ('code', 'u1'),
        ('flags', 'u1'),
        ('types', 'u1'),
        ('kind', 'u1'),
        ('coded', 'u1'),
    ]
)
IMAGE_ROW = np.dtype(
    [
        ('id', '<i8'),
        ('height', '<i4'),
        ('width', '<i4'),
        ('name', '<u4'),
        ('extra', '<u4'),
        ('raw', '<u4'),
        ('coded', 'u1'),
        ('paths', 'u1'),  # bit k: the record has a string for PATH_FIELDS[k]
    ]
)
