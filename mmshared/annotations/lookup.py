"""Which annotation has an id, and which belong to an image: arrays worked out once per node, and mapped.

Ids are what Python's ``==`` and ``hash`` take for the same: 1, 1.0, ``True`` and ``numpy.int64(1)`` are one id.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from functools import cached_property
from typing import Any, Dict, Optional, Tuple, Union

import numpy as np

from .columns import narrow
from .container import Container
from .layout import INDEX, Trait
from .opening import shared_columns
from .ragged import Texts
from .records import CODED_ID, CODED_IMAGE
from .store import AnnotationStore

Rows = Union[range, np.ndarray]
_ID, _TRAITS = INDEX.index('id'), INDEX.index('traits')
_KEY = 'lookup'


class IdIndex:
    """Numbers by id.

    Args:
        keys: the ids that are integers, ascending, each once.
        numbers: the number of each; None if it is its place in ``keys``.
        coded: the number of each coded id, by code; -1 for codes that are not in use.
        values: the coded ids, by code.
    """

    def __init__(self, keys: np.ndarray, numbers: Optional[np.ndarray], coded: np.ndarray, values: Texts) -> None:
        self._keys, self._numbers, self._coded, self._values = memoryview(keys), numbers, coded, values

    def __len__(self) -> int:
        return len(self._keys) + int(np.count_nonzero(self._coded >= 0))

    @cached_property
    def _codes(self) -> Dict[Any, int]:
        return {json.loads(self._values[i]): i for i in range(len(self._values))}

    def find(self, value: Any) -> Optional[int]:
        """The number of what has the id ``value``, None if nothing has.

        Raises:
            TypeError: ``value`` is not hashable.
        """
        if self._coded.size:
            code = self._codes.get(value)
            if code is not None:
                number = int(self._coded[code])
                return None if number < 0 else number
        integer = _as_integer(value)
        if integer is None:
            return None
        place = bisect_left(self._keys, integer)
        if place == len(self._keys) or self._keys[place] != integer:
            return None
        return place if self._numbers is None else int(self._numbers[place])


class Lookup:
    """What a store knows by id and by image. It pickles to the store; copies are the same object.

    The arrays are made when something is looked up first: by one process of the node, for all (``shared_columns``).

    Images have numbers: those with a record as in the store, then image ids that only annotations name, in the order of
    their keys. Annotations are known by their row in the store, where they are grouped by image.

    Args:
        store: the store.
        cache_dir: as for :func:`~.opening.open_store`.
    """

    def __init__(self, store: AnnotationStore, cache_dir: Optional[str] = None) -> None:
        self.store, self.cache_dir = store, cache_dir
        self._column = store.container.columns

    def __reduce__(self) -> tuple:
        return type(self), (self.store, self.cache_dir)

    def __copy__(self) -> Lookup:
        return self

    def __deepcopy__(self, memo: dict) -> Lookup:
        return self

    # --- by id
    def annotation(self, value: Any) -> Optional[int]:
        """The row of the annotation with id ``value``: the last one of the file, where several have it."""
        return self._annotation_ids.find(value)

    def image(self, value: Any) -> Optional[int]:
        """The number of the image with id ``value``, be there a record of it or only annotations."""
        return self._image_ids.find(value)

    @property
    def num_ids(self) -> int:
        """How many different ids annotations have."""
        return len(self._annotation_ids)

    # --- by image
    @property
    def num_images(self) -> int:
        """How many image ids there are, those that only annotations name included."""
        return self.store.num_images + self._shared['orphan.starts'].size - 1

    def rows_of(self, image: int) -> Rows:
        """Rows of the annotations of the ``image``-th image, in the order of the file."""
        orphan = image - self.store.num_images
        if orphan < 0:
            return range(self._starts[image], self._starts[image + 1])
        return self._shared['orphan.rows'][slice(*self._shared['orphan.starts'][orphan : orphan + 2].tolist())]

    def annotated_images(self) -> Tuple[np.ndarray, np.ndarray]:
        """Images that have annotations in the order in which the file's annotations name them, and the first of each.

        Returns:
            Their numbers and rows, both int64, shape (N,).
        """
        starts = np.asarray(self._starts, np.int64)
        known = np.flatnonzero(starts[1:] > starts[:-1])
        orphans = self._shared['orphan.rows'][self._shared['orphan.starts'][:-1]].astype(np.int64)
        images = np.concatenate([known, self.store.num_images + np.arange(orphans.size)])
        rows = np.concatenate([starts[known], orphans])
        order = np.argsort(self._column['annotation.position'][rows], kind='stable')
        return images[order], rows[order]

    # --- all
    @property
    def rows(self) -> Rows:
        """All rows, in the order of the file."""
        order = self._shared['order']
        return order if order.size else range(self.store.num_annotations)

    def first_rows(self) -> Rows:
        """As :attr:`rows`, but of several annotations with one id only the first."""
        if self.num_ids == self.store.num_annotations:
            return self.rows
        rows = np.asarray(self.rows, np.int64)
        coded = self._column['annotation.coded'][rows] & CODED_ID
        pairs = np.stack([self._column['annotation.id'][rows].astype(np.int64), coded.astype(np.int64)])
        first = np.unique(pairs, axis=1, return_index=True)[1]
        return rows[np.sort(first)]

    # --- the arrays
    @cached_property
    def _shared(self) -> Dict[str, np.ndarray]:
        return shared_columns(self.store, _KEY, lambda: _compute(self.store.container), self.cache_dir)

    @cached_property
    def _starts(self) -> memoryview:
        return memoryview(np.ascontiguousarray(self._column['index'][:, 0]))

    @cached_property
    def _annotation_ids(self) -> IdIndex:
        return self._ids('annotation')

    @cached_property
    def _image_ids(self) -> IdIndex:
        return self._ids('image')

    def _ids(self, name: str) -> IdIndex:
        keys, numbers, coded = (self._shared[f'{name}.{part}'] for part in ('keys', 'numbers', 'coded'))
        values = Texts(self._column[f'text.{name}_ids'], self._column[f'length.{name}_ids'])
        return IdIndex(keys, numbers if numbers.size == keys.size else None, coded, values)


def _as_integer(value: Any) -> Optional[int]:
    """The integer that ``value`` equals, None if there is none of 64 bits."""
    if type(value) is not int:
        hash(value)  # a TypeError, where a dict would raise it
        if isinstance(value, (str, bytes, tuple)):
            return None
        try:
            integer = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
        if integer != value:
            return None
        value = integer
    return value if -1 << 63 <= value < 1 << 63 else None


def _compute(container: Container) -> Dict[str, np.ndarray]:
    """The arrays of :class:`Lookup`, each in the smallest type that holds it."""
    column = container.columns
    position, coded = column['annotation.position'], column['annotation.coded']
    order = np.zeros(0, np.int64)
    if (position[1:] < position[:-1]).any():
        order = np.argsort(position, kind='stable')
    rows = order if order.size else np.arange(position.size)
    arrays = {'order': order}

    orphans = column['orphan.image'].astype(np.int64)
    known = position.size - orphans.size
    orphan_coded = coded[known:] & CODED_IMAGE != 0
    by_image = np.lexsort((orphans, orphan_coded))
    orphans, orphan_coded = orphans[by_image], orphan_coded[by_image]
    new = np.ones(orphans.size, bool)
    new[1:] = (orphans[1:] != orphans[:-1]) | (orphan_coded[1:] != orphan_coded[:-1])
    arrays['orphan.rows'] = known + by_image
    arrays['orphan.starts'] = np.append(np.flatnonzero(new), orphans.size)

    index = column['index'][:-1]
    image_keys = np.concatenate([index[:, _ID].astype(np.int64), orphans[new]])
    image_coded = np.concatenate([index[:, _TRAITS] & int(Trait.CODED) != 0, orphan_coded[new]])
    for name, keys, is_coded, numbers in (
        ('annotation', column['annotation.id'][rows], coded[rows] & CODED_ID != 0, rows),
        ('image', image_keys, image_coded, np.arange(image_keys.size)),
    ):
        codes = column[f'length.{name}_ids'].size
        for part, array in _by_key(keys, is_coded, numbers, codes).items():
            arrays[f'{name}.{part}'] = array
    return {name: narrow(array) for name, array in arrays.items()}


def _by_key(keys: np.ndarray, coded: np.ndarray, numbers: np.ndarray, codes: int) -> Dict[str, np.ndarray]:
    """What an :class:`IdIndex` takes; of equal keys the last one counts."""
    by_code = np.full(codes, -1, np.int64)
    if coded.any():
        by_code[keys[coded]] = numbers[coded]  # in order, so the last one stays
        keys, numbers = keys[~coded], numbers[~coded]
    if (keys[1:] <= keys[:-1]).any():
        order = np.argsort(keys, kind='stable')
        keys = keys[order]
        last = np.append(keys[1:] != keys[:-1], True)[: keys.size]
        keys, numbers = keys[last], numbers[order][last]
    if (numbers == np.arange(numbers.size)).all():
        numbers = np.zeros(0, np.int64)
    return {'keys': keys, 'numbers': numbers, 'coded': by_code}
