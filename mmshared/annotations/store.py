"""The annotations of one file, mapped: the same pages of memory in every process of the node."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from .cache import hold
from .categories import read_categories
from .container import Container
from .errors import AnnotationFileError, StoreError, Violations
from .layout import COLUMNS, INDEX, OFFSETS, PATH_FIELDS
from .records import Records, id_values


class AnnotationStore:
    """A complete store, opened by path.

    It pickles to its path and opens again by itself, so that a worker started with spawn or forkserver maps what the
    others map. Copies are the same object: nothing in it ever changes.

    Args:
        path: the store's file.

    Raises:
        StoreError: the file is torn, foreign or of another version.

    Attributes:
        path: the store's file.
        source: path of the annotation file, as it was when parsed.
        num_images: distinct image ids, in order of first appearance.
        num_annotations: annotation records, those of unknown images included.
        violations: what mmdet's datasets would choke on in this file.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._hold = hold(Path(path))  # nobody prunes it while it is mapped here
        except FileNotFoundError:
            raise StoreError(
                f'{self.path}: the store is gone. Was the cache cleared while a job used it? Start the job again'
            ) from None
        self.container = Container(self.path, self._hold.fileno())
        attributes = self.container.attributes
        try:
            self.source: str = attributes['source']
            self.num_images, self.num_annotations = int(attributes['images']), int(attributes['annotations'])
            self.violations = Violations.from_json(self.source, attributes['violations'])
            self._check_shapes()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(attributes, dict) and 'archives' in attributes:
                raise StoreError(f'{self.path}: is the index of an archive, no store of annotations') from error
            raise StoreError(f'{self.path}: its header is inconsistent ({error!r})') from error

    def _check_shapes(self) -> None:
        columns, attributes = self.container.columns, self.container.attributes
        if not all(type(attributes['scales'][name]) is int for name in ('bbox', 'area')):
            raise ValueError(f'its scales are {attributes["scales"]}')
        for name, column in columns.items():
            if name.startswith('annotation.') and column.shape[0] != self.num_annotations:
                raise ValueError(f'{name} has {column.shape[0]} rows')
        if columns['index'].shape != (self.num_images + 1, len(INDEX)):
            raise ValueError(f'index has shape {columns["index"].shape}')
        if self.num_annotations > 1 and not columns['annotation.position'].strides[0]:
            raise ValueError('all annotations have one position')  # else the file's size bounds their number
        missing = [name for name in COLUMNS if name not in columns]
        if missing:
            raise ValueError(f'has no {missing[0]}')

    def check_lengths(self) -> None:
        """Checks that offsets and lengths stay within the columns; reads a few bytes an image and an annotation.

        Raises:
            StoreError: they do not.
        """
        columns, wrong = self.container.columns, []
        for name, target in OFFSETS.items():
            starts = columns['index'][:, INDEX.index(name)]
            size = columns[target].size if target else self.num_annotations
            if starts[0] < 0 or starts[-1] > size or (starts[1:] < starts[:-1]).any():
                wrong.append(f'index of {name}')
        for name, texts in (('coords', ('u16', 'i32', 'f64')), ('polygons', ('polygons',))):
            lengths = columns[f'annotation.{name}']
            if lengths.min(initial=0) < 0 or lengths.sum(dtype=float) != sum(columns[f'text.{t}'].size for t in texts):
                wrong.append(f'annotation.{name}')
        if wrong:
            raise StoreError(f'{self.path}: its offsets do not add up ({wrong[0]}). Delete it')

    def __reduce__(self) -> tuple:
        return type(self), (self.path,)

    def __copy__(self) -> AnnotationStore:
        return self

    def __deepcopy__(self, memo: dict) -> AnnotationStore:
        return self

    def __repr__(self) -> str:
        return f'{type(self).__name__}({self.path!r}: {self.num_images} images, {self.num_annotations} annotations)'

    @property
    def violation(self) -> Optional[AnnotationFileError]:
        """What mmdet's ``CocoDataset`` would choke on in this file; None if nothing."""
        return self.violations.of(PATH_FIELDS[:1])

    @property
    def top(self) -> Dict[str, Any]:
        """The members of the file's object other than ``images`` and ``annotations``."""
        columns = self.container.columns
        return {name[4:]: json.loads(column.tobytes()) for name, column in columns.items() if name.startswith('top.')}

    @property
    def categories(self) -> List[Dict[str, Any]]:
        """The file's category records.

        Raises:
            AnnotationFileError: the file has none, or something else than a list of objects with an id.
        """
        column = self.container.columns.get('top.categories')
        if column is None:
            raise AnnotationFileError(self.source, 'the file has no "categories"')
        return read_categories(column.tobytes(), self.source)

    def to_dict(self) -> Dict[str, Any]:
        """The whole file as ``json.load`` gives it (the order of keys aside). Costs its memory."""
        records, sections = Records(self.container), self.container.attributes['sections']
        parsed = self.top
        if sections['images']:
            parsed['images'] = list(records.images())
        if sections['annotations']:
            parsed['annotations'] = list(records.annotations())
        return parsed

    def cat_img_map(self) -> Dict[Any, List[Any]]:
        """Category id -> image ids of its annotations, in the order of the file: pycocotools' ``catToImgs``."""
        columns = self.container.columns
        result: Dict[Any, List[Any]] = defaultdict(list)
        if 'top.categories' not in columns:
            return result
        order = np.argsort(columns['annotation.position'], kind='stable')
        keys, coded = self._annotation_images()
        odd = columns['annotation.raw'] > 0
        records = Records(self.container) if odd.any() else None
        coded_ids, category_ids = id_values(self.container, 'image'), id_values(self.container, 'category')
        codes = columns['annotation.category'][order]
        by_category = np.argsort(codes, kind='stable')
        ends = np.searchsorted(codes[by_category], np.arange(len(category_ids) + 1))
        first = {code: by_category[ends[code]] for code in range(len(category_ids)) if ends[code] < ends[code + 1]}
        for code in sorted(first, key=first.__getitem__):
            members = order[by_category[ends[code] : ends[code + 1]]]
            ids = keys[members].tolist()
            if coded[members].any():
                ids = [coded_ids[key] if c else key for key, c in zip(ids, coded[members].tolist())]
            for i in np.flatnonzero(odd[members]).tolist():  # an equal id of another type may stand in its text
                ids[i] = records.annotation(int(members[i]))['image_id']
            result[category_ids[code]] = ids
        return result

    def _annotation_images(self) -> tuple[np.ndarray, np.ndarray]:
        """Key of each annotation's image, and whether it is coded, in stored order."""
        columns = self.container.columns
        index = columns['index']
        known = np.repeat(index[:-1, INDEX.index('id')].astype(np.int64), np.diff(index[:, 0]))
        keys = np.concatenate([known, columns['orphan.image'].astype(np.int64)])
        return keys, columns['annotation.coded'] & 2 != 0
