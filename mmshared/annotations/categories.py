"""The file's categories."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from .errors import AnnotationFileError, shorten


def read_categories(text: bytes, file: str) -> List[Dict[str, Any]]:
    """The category records of the JSON value ``text``, as far as pycocotools' ``COCO`` takes them.

    Raises:
        AnnotationFileError: it is no list of objects that have an ``id`` which can serve as a key.
    """
    categories = json.loads(text)
    if categories in ({}, ''):  # what can be iterated, and holds nothing, is as good as an empty list
        return []
    if not isinstance(categories, list):
        raise AnnotationFileError(file, f'is {shorten(categories)}, should be a list of objects', 'categories')
    for i, category in enumerate(categories):
        record = f'categories[{i}]'
        if not isinstance(category, dict):
            raise AnnotationFileError(file, f'is {shorten(category)}, should be an object', record)
        if 'id' not in category:
            raise AnnotationFileError(file, 'is missing', record, 'id')
        if isinstance(category['id'], (list, dict)):
            raise AnnotationFileError(file, f'is {shorten(category["id"])}, cannot serve as a key', record, 'id')
    return categories
