"""Which categories of a file a dataset trains on, said aloud where that is not all of them."""

from __future__ import annotations

import logging
from typing import Any, Iterable, List, Sequence

from mmengine.logging import print_log

from mmshared.annotations import AnnotationFileError

MAX_NAMES = 10
MAX_NAME = 40


def match_categories(file: str, categories: List[dict], classes: Sequence[str], coco_api: Any) -> List[Any]:
    """Return what :func:`category_ids` does, and say so where file and ``classes`` differ.

    Stock then drops annotations without a word.
    """
    cat_ids = category_ids(file, categories, classes, coco_api)
    _say_what_is_unused(file, categories, classes, len(cat_ids))
    return cat_ids


def category_ids(file: str, categories: List[dict], classes: Sequence[str], coco_api: Any) -> List[Any]:
    """Return the ids, in file order, of the categories whose name is in ``classes`` (empty: all).

    Args:
        file: the annotation file, for messages.
        categories: its category records.
        classes: ``metainfo['classes']``.
        coco_api: a COCO class; it does the matching, so that odd ``classes`` mean what they mean in stock.

    Raises:
        AnnotationFileError: a category without a name.
    """
    coco = coco_api()
    coco.dataset = {'categories': categories}
    try:
        return coco.get_cat_ids(cat_names=classes)
    except KeyError as error:
        field = error.args[0]
        position, category = next((i, c) for i, c in enumerate(categories) if field not in c)
        record = f'categories[{position}] (id {category.get("id")!r})'
        raise AnnotationFileError(file, 'is missing', record, field) from None


def _say_what_is_unused(file: str, categories: List[dict], classes: Any, used: int) -> None:
    """Log where file and ``classes`` differ: a class that the file lacks is a warning, a subset of its own is not."""
    wanted = classes if hasattr(classes, '__len__') else [classes]  # as pycocotools reads it
    known = [category.get('name') for category in categories]
    absent = [] if isinstance(wanted, str) else [name for name in wanted if name not in known]
    unused = [name for name in known if name not in wanted] if len(wanted) else []
    if not absent and not unused:
        return
    message = f'{file}: {used or "none"} of its {len(categories)} categories are among metainfo["classes"]'
    if unused:
        message += f'; annotations of the others are not used: {names(unused)}'
    message += f'. Classes: {names(wanted)}'
    if absent:
        message += f', of which no category of the file: {names(absent)}'
    print_log(message, logger='current', level=logging.WARNING if absent or not used else logging.INFO)


def names(values: Iterable[Any]) -> str:
    """Return a list of names for a message, cut where it gets long."""
    values = [values] if isinstance(values, str) else values
    values = [repr(v) if len(repr(v)) <= MAX_NAME else repr(v)[: MAX_NAME - 3] + '...' for v in values]
    more = f' and {len(values) - MAX_NAMES} more' if len(values) > MAX_NAMES else ''
    return ', '.join(values[:MAX_NAMES]) + more if values else '(none)'
