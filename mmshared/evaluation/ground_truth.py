"""What there is to find, as arrays: from an annotation store, or from the samples themselves.

pycocotools holds a dict per annotation, in every rank, for the whole job. Here a few numbers per annotation are read
when an evaluation begins, in the rank that evaluates, and masks are read one by one when they are compared.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Optional, Tuple

import numpy as np

from mmshared.annotations import AnnotationFileError, AnnotationStore
from mmshared.annotations.errors import shorten
from mmshared.annotations.layout import FLAG_FORMS, INDEX, Trait
from mmshared.annotations.records import Records, Texts, decimals, id_values

#: Bits of ``usable``: which fields of a record pycocotools can work with.
BOX, AREA, CROWD = 1, 2, 4
FIELDS = {BOX: 'bbox', AREA: 'area', CROWD: 'iscrowd'}
_CROWD = np.array([{0: 0.0, 1: 1.0}.get(form, np.nan) for form in (*FLAG_FORMS, None, None)])
_IGNORE = np.array([form in (1, True) for form in (*FLAG_FORMS, None, None)])


class Objects:
    """N annotations, those of one image in the order of the file.

    Attributes:
        image: int64, shape (N,): number of the image, -1 for an unknown one.
        category: int64, shape (N,): code of the category.
        position: int64, shape (N,): place in the file's ``annotations``.
        box: float64, shape (N, 4): x, y, width, height in pixels.
        area: float64, shape (N,), in square pixels.
        crowd: float64, shape (N,): ``iscrowd`` as a number.
        ignore: bool, shape (N,): ``ignore`` is true.
        usable: uint8, shape (N,): see :data:`FIELDS`; values of the others mean nothing.
        resolved: int64, shape (N,): the last annotation with an equal id, which is the one that pycocotools gives for
            it.
        zero_id: bool, shape (N,): the id is 0, which pycocotools cannot tell from "matches nothing".
    """

    def __init__(self, count: int) -> None:
        self.image, self.category, self.position = (np.zeros(count, np.int64) for _ in range(3))
        self.box, self.area, self.crowd = np.zeros((count, 4)), np.zeros(count), np.zeros(count)
        self.ignore, self.usable = np.zeros(count, bool), np.full(count, BOX | AREA | CROWD, np.uint8)
        self.resolved, self.zero_id = np.arange(count), np.zeros(count, bool)

    def __len__(self) -> int:
        return self.image.size

    def fill(self, row: int, record: Dict[str, Any]) -> None:
        """Put what a record says into ``row``."""
        box, area, crowd = _numbers(record.get('bbox')), _real(record.get('area')), _flag(record.get('iscrowd'))
        self.box[row] = np.nan if box is None else box
        self.area[row] = np.nan if area is None else area
        self.crowd[row] = np.nan if crowd is None else crowd
        self.ignore[row] = bool(record.get('ignore', False))
        self.usable[row] = sum(bit for bit, value in ((BOX, box), (AREA, area), (CROWD, crowd)) if value is not None)


class GroundTruth:
    """The annotations of an evaluation.

    Attributes:
        source: what it comes from, for people.
        image_ids: the images, in order of first appearance.
        categories: the category records.
        category_ids: by code.
        objects: the annotations.
    """

    source: str
    image_ids: List[Any]
    categories: List[Dict[str, Any]]
    category_ids: List[Any]
    objects: Objects

    def record(self, row: int) -> Dict[str, Any]:
        """The annotation in ``row`` as it was written."""
        raise NotImplementedError

    def records(self, rows: np.ndarray) -> List[Dict[str, Any]]:
        """The annotations in ``rows`` (int64, shape (M,))."""
        return [self.record(row) for row in rows.tolist()]

    def size(self, image: int) -> Tuple[Any, Any]:
        """Height and width of an image. Raises ``KeyError`` if they are not known."""
        raise NotImplementedError

    def error(self, row: int, problem: str, field: str) -> AnnotationFileError:
        """The error about the annotation in ``row``."""
        name = f'annotations[{int(self.objects.position[row])}] (id {shorten(self.record(row).get("id"), 40)})'
        return AnnotationFileError(self.source, problem, name, field)

    def check(self, rows: np.ndarray, bits: np.ndarray) -> None:
        """See that the annotations ``rows`` can be evaluated.

        Args:
            rows: int64, shape (M,).
            bits: uint8, shape (M,): the fields that each needs; see :data:`FIELDS`.

        Raises:
            AnnotationFileError: one cannot; names it and the field.
        """
        lacking = bits & ~self.objects.usable[rows]
        wrong = np.flatnonzero(lacking)
        if not wrong.size:
            return
        first = int(wrong[np.argmin(self.objects.position[rows[wrong]])])
        row = int(rows[first])
        bit = next(bit for bit in FIELDS if lacking[first] & bit)
        field, record = FIELDS[bit], self.record(row)
        wanted = {BOX: 'four numbers: x, y, width, height', AREA: 'a number', CROWD: '0 or 1'}[bit]
        problem = f'is {shorten(record[field])}, should be {wanted}' if field in record else f'is missing: {wanted}'
        raise self.error(row, problem, field)


class StoredTruth(GroundTruth):
    """Of an annotation file.

    Args:
        store: the file's store.

    Raises:
        AnnotationFileError: the file has no usable ``categories`` or ``images``.
    """

    def __init__(self, store: AnnotationStore) -> None:
        store.check_lengths()
        self._store, self._container = store, store.container
        self._records: Optional[Records] = None
        self._image_sizes: Optional[List[List[int]]] = None
        self.source = store.source
        self.categories = store.categories
        if not self._container.attributes['sections'].get('images'):
            raise AnnotationFileError(self.source, 'the file has no list of "images"')
        columns = self._container.columns
        self.category_ids = id_values(self._container, 'category')
        self._traits = columns['index'][:-1, INDEX.index('traits')]
        self.image_ids = self._ids()
        self.objects = self._read(columns)

    def _ids(self) -> List[Any]:
        ids = self._container.columns['index'][:-1, INDEX.index('id')].tolist()
        coded = np.flatnonzero(self._traits & Trait.CODED).tolist()
        if coded:
            values = id_values(self._container, 'image')
            for i in coded:
                ids[i] = values[ids[i]]
        return ids

    def _read(self, columns: Dict[str, np.ndarray]) -> Objects:
        found = Objects(self._store.num_annotations)
        starts = columns['index'][:, 0]
        found.image[: int(starts[-1])] = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        found.image[int(starts[-1]) :] = -1
        found.category[:], found.position[:] = columns['annotation.category'], columns['annotation.position']
        found.box, found.area = decimals(self._container, 'bbox'), decimals(self._container, 'area')
        flags, coded = columns['annotation.flags'], columns['annotation.coded'] & 1 != 0
        found.crowd, found.ignore = _CROWD[flags & 7], _IGNORE[flags >> 3 & 7]
        found.usable[np.isnan(found.crowd)] &= ~np.uint8(CROWD)
        odd = np.flatnonzero(columns['annotation.raw'])
        if odd.size:
            texts = Texts(columns['text.raw'], columns['annotation.raw'])
            for row in odd.tolist():
                found.fill(row, json.loads(texts[row]))
        keys = columns['annotation.id'].astype(np.int64)
        found.zero_id = (keys == 0) & ~coded
        for row in np.flatnonzero(coded).tolist():
            found.zero_id[row] = _is_zero(self._annotation_id(int(keys[row])))
        found.resolved = _last_with_id(keys, coded, found.position)
        return found

    def _annotation_id(self, code: int) -> Any:
        if not hasattr(self, '_coded_ids'):
            self._coded_ids = id_values(self._container, 'annotation')
        return self._coded_ids[code]

    def _reader(self) -> Records:
        if self._records is None:
            self._records = Records(self._container)
        return self._records

    def record(self, row: int) -> Dict[str, Any]:
        """See the parent."""
        return self._reader().annotation(row)

    def records(self, rows: np.ndarray) -> List[Dict[str, Any]]:
        """See the parent."""
        return self._reader().at(rows)

    def size(self, image: int) -> Tuple[Any, Any]:
        """See the parent."""
        if self._traits[image] & Trait.ODD:
            record = self._reader().image(image)
            return record['height'], record['width']
        if self._image_sizes is None:
            at = [INDEX.index('height'), INDEX.index('width')]
            self._image_sizes = self._container.columns['index'][:-1][:, at].tolist()
        height, width = self._image_sizes[image]
        return height, width


class SampleTruth(GroundTruth):
    """Of the samples of a dataset: what mmdet writes into a file, and pycocotools reads from it.

    Args:
        ids: the images' ids.
        texts: size and instances of each, as :class:`~.predictions.Predictions` keeps them.
        classes: names of the classes.
    """

    def __init__(self, ids: List[Any], texts: Iterable[bytes], classes: Iterable[str]) -> None:
        self.source = 'the samples of the dataset (there is no ann_file)'
        self.categories = [{'id': i, 'name': name} for i, name in enumerate(classes)]
        self._images = [json.loads(text) for text in texts]
        numbers: Dict[Any, int] = {}
        self._last: Dict[int, int] = {}
        for i, key in enumerate(ids):
            self._last[numbers.setdefault(key, len(numbers))] = i  # of equal ids the last image's size counts
        self.image_ids = list(numbers)
        rows = [(numbers[key], i, k) for i, key in enumerate(ids) for k in range(len(self._images[i]['anns']))]
        self._places = [place for _, *place in sorted(rows)]
        records = [self._images[i]['anns'][k] for i, k in self._places]
        codes: Dict[Any, int] = {}
        self.objects = found = Objects(len(records))
        first = np.cumsum([0, *(len(image['anns']) for image in self._images)])
        for row, (record, (i, k)) in enumerate(zip(records, self._places)):
            found.fill(row, record)
            found.image[row], found.position[row] = numbers[ids[i]], first[i] + k
            found.category[row] = codes.setdefault(record['category_id'], len(codes))
        self.category_ids = list(codes)
        self._ids = ids

    def record(self, row: int) -> Dict[str, Any]:
        """See the parent."""
        i, k = self._places[row]
        number = int(self.objects.position[row]) + 1
        return {'id': number, 'image_id': self._ids[i], **self._images[i]['anns'][k]}

    def size(self, image: int) -> Tuple[Any, Any]:
        """See the parent."""
        record = self._images[self._last[image]]
        return record['height'], record['width']

    def to_dict(self) -> Dict[str, Any]:
        """The file that mmdet writes, but for its ``info``."""
        images = [
            {'id': key, 'width': image['width'], 'height': image['height'], 'file_name': ''}
            for key, image in zip(self._ids, self._images)
        ]
        whole: Dict[str, Any] = {'images': images, 'categories': self.categories, 'licenses': None}
        if len(self.objects):
            whole['annotations'] = [self.record(row) for row in np.argsort(self.objects.position).tolist()]
        return whole


def _last_with_id(keys: np.ndarray, coded: np.ndarray, position: np.ndarray) -> np.ndarray:
    """For each annotation the one with an equal id that comes last in the file."""
    order = np.lexsort((position, keys, coded))
    keys, coded = keys[order], coded[order]
    ends = np.flatnonzero(np.append((keys[1:] != keys[:-1]) | (coded[1:] != coded[:-1]), True))
    resolved = np.empty(order.size, np.int64)
    if order.size:
        resolved[order] = np.repeat(order[ends], np.diff(ends, prepend=-1))
    return resolved


def _is_zero(key: Any) -> bool:
    try:
        return float(key) == 0
    except (TypeError, ValueError, OverflowError):
        return False


def _numbers(box: Any) -> Optional[np.ndarray]:
    """A box as pycocotools reads it, which takes any list of four that numpy makes numbers of."""
    if not isinstance(box, list) or len(box) != 4:
        return None
    try:
        values = np.array(box, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return values if values.shape == (4,) else None


def _real(value: Any) -> Optional[float]:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:  # an integer beyond all doubles
        return np.inf if value > 0 else -np.inf


def _flag(value: Any) -> Optional[float]:
    """``iscrowd`` as pycocotools reads it: ``int(value)``."""
    try:
        int(value)
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
