"""What mmdet's ``CocoDataset`` makes of a store, image by image."""

from __future__ import annotations

import json
import os.path as osp
import re
import struct
from itertools import accumulate, chain, islice
from typing import Any, Dict, List, Optional, Sequence, Tuple

import msgspec
import numpy as np

from .columns import SCALES, decode_coordinates
from .errors import AnnotationFileError, shorten
from .layout import COORDS_INT, COORDS_MIXED, FLAG_FORMS, INDEX, KEPT, RUN_LENGTH, Trait
from .paths import COCO_PATHS, Paths
from .records import as_written, id_values
from .store import AnnotationStore

_UNUSUAL = int(Trait.INTEGERS | Trait.NO_POLYGONS | Trait.DROPPED | Trait.ODD)
_ODD, _CODED, _VARIED_OR_ODD = int(Trait.ODD), int(Trait.CODED), int(Trait.VARIED | Trait.ODD)
_INTEGERS, _NO_POLYGONS, _BASED = int(Trait.INTEGERS), int(Trait.NO_POLYGONS), int(Trait.BASED)
#: Below so many boxes Python's arithmetic takes less time than two more calls of numpy.
_FEW = 32
_BITS, _RLE, _RAW, _IMAGE_RAW = map(INDEX.index, ('bits', 'rle', 'raw', 'image_raw'))
#: ``ignore_flag`` by the row's flags.
CROWD = [int(bool((*FLAG_FORMS, None, None)[flags & 7] in (1, True))) for flags in range(256)]


class DetectionView:
    """The data infos of the images of a store, for one choice of categories.

    It pickles to the store's path and the category ids; copies are the same object.

    Args:
        store: the store.
        cat_ids: ids of the categories asked for; an annotation's label is the index of its category here.
        paths: where the images are.
    """

    def __init__(self, store: AnnotationStore, cat_ids: Sequence[Any], paths: Paths = COCO_PATHS) -> None:
        self.store, self.cat_ids, self.paths = store, list(cat_ids), paths
        self._in_extra = paths.field != COCO_PATHS.field
        store.check_lengths()
        column = store.container.columns
        label_of = {cat_id: label for label, cat_id in enumerate(self.cat_ids)}
        labels = [label_of.get(value, -1) for value in id_values(store.container, 'category')]
        self._labels = [*labels, -1]  # by category code; the last is for code -1, an unusable one
        self._label = np.array(self._labels, np.int64)
        self._all_labels = min(labels, default=0) >= 0
        index = np.ascontiguousarray(column['index'])
        self._index, self._row_size = memoryview(index).cast('B'), index.itemsize * len(INDEX)
        wide = index.itemsize == 8
        self._unpack = struct.Struct(f'<{2 * len(INDEX)}{"q" if wide else "i"}').unpack_from
        self._unpack_header = _some_fields(wide, ('name', 'id', 'height', 'width', 'traits'), ('name',)).unpack_from
        self._unpack_extra = _some_fields(wide, ('image_extra',), ('image_extra',)).unpack_from
        places = ('annotation', 'polygons', 'u16')
        self._unpack_place = _some_fields(wide, (*places, 'traits'), places).unpack_from
        self._names, self._extras = memoryview(column['text.image_name']), memoryview(column['text.image_extra'])
        self._category, self._flags = column['annotation.category'], column['annotation.flags']
        self._bbox = column['annotation.bbox']
        self._bbox_scale = float(store.container.attributes['scales']['bbox'])  # numpy takes twice as long for an int
        self._base, self._coords = column['annotation.base'], column['annotation.coords']
        self._polygons, self._lengths = column['annotation.polygons'], column['text.polygons']
        self._u16 = column['text.u16']
        self._scale = [float(scale) for scale in SCALES]
        self._coded_ids = id_values(store.container, 'image')
        self._first_ids = self._ids_of_superseded()

    def __len__(self) -> int:
        return self.store.num_images

    def __reduce__(self) -> tuple:
        return type(self), (self.store, self.cat_ids, self.paths)

    def __copy__(self) -> DetectionView:
        return self

    def __deepcopy__(self, memo: dict) -> DetectionView:
        return self

    def _ids_of_superseded(self) -> Dict[int, Any]:
        """Image -> id of the first of several records with equal ids: it is the key that stock goes by."""
        columns = self.store.container.columns
        groups = columns['superseded.group'].tolist()
        if not groups:
            return {}
        ends = np.cumsum(columns['length.superseded'], dtype=np.int64).tolist()
        text = columns['text.superseded'].tobytes()
        ids: Dict[int, Any] = {}
        for group, start, end in zip(groups, [0, *ends], ends):
            ids.setdefault(group, json.loads(text[start:end])['id'])
        return ids

    def labels(self, row: int) -> List[int]:
        """The labels of the instances that :meth:`data_info` gives, read from the label column only."""
        fields = self._fields(row)
        start, stop = fields[0], fields[len(INDEX)]
        labels = self._label[self._category[start:stop]]
        return labels[(labels >= 0) & (self._flags[start:stop] & KEPT != 0)].tolist()

    def _fields(self, row: int) -> tuple:
        """The image's row of the index, and the next one's."""
        return self._unpack(self._index, row * self._row_size)

    def data_info(
        self, row: int, img_prefix: str, seg_prefix: Optional[str] = None, seg_map_suffix: str = '.png'
    ) -> Dict[str, Any]:
        """What ``CocoDataset.parse_data_info`` gives for image ``row``, in fresh objects.

        Returns:
            dict: :meth:`header`, and :meth:`instances` as ``instances``.
        """
        info = self.header(row, img_prefix, seg_prefix, seg_map_suffix)
        info['instances'] = self.instances(row)
        return info

    def header(
        self, row: int, img_prefix: str, seg_prefix: Optional[str] = None, seg_map_suffix: str = '.png'
    ) -> Dict[str, Any]:
        """What :meth:`data_info` says of the image itself.

        Returns:
            dict of ``img_path``, ``img_id``, ``seg_map_path``, ``height`` and ``width``.
        """
        file_name, key, height, width = self._image(row)
        return {
            'img_path': _join(img_prefix, file_name),
            'img_id': self._first_ids.get(row, key),
            'seg_map_path': osp.join(seg_prefix, file_name.rsplit('.', 1)[0] + seg_map_suffix) if seg_prefix else None,
            'height': height,
            'width': width,
        }

    def path(self, row: int) -> str:
        """Where image ``row`` is, without a prefix."""
        return self._image(row)[0]

    def _image(self, row: int) -> Tuple[str, Any, Any, Any]:
        """Path, id, height and width of image ``row``."""
        name, key, height, width, traits, name_stop = self._unpack_header(self._index, row * self._row_size)
        record = self._image_text(row) if traits & _ODD else None
        if record is not None:
            path, key, height, width = (record[field] for field in (self.paths.field, 'id', 'height', 'width'))
        else:
            path = self._extra_path(row) if self._in_extra else str(self._names[name:name_stop], 'utf-8')
            key = self._coded_ids[key] if traits & _CODED else key
        return path if self.paths.change is None else self.paths.change(path), key, height, width

    def _extra_path(self, row: int) -> str:
        start, stop = self._unpack_extra(self._index, row * self._row_size)
        return _json(self._extras[start:stop])[self.paths.field]

    def _image_text(self, row: int) -> Optional[Dict[str, Any]]:
        """The record of image ``row`` if that is kept as text, else None."""
        fields = self._fields(row)
        text = self.store.container.columns['text.image_raw'][fields[_IMAGE_RAW] : fields[len(INDEX) + _IMAGE_RAW]]
        return json.loads(text.tobytes()) if text.size else None

    def instances(self, row: int) -> List[Dict[str, Any]]:
        """The instances of image ``row`` that mmdet keeps, in fresh objects.

        Returns:
            list of dicts of ``ignore_flag``, ``bbox`` (x1, y1, x2, y2), ``bbox_label`` and, where there is one,
            ``mask`` (polygons or RLE).
        """
        place = self._unpack_place(self._index, row * self._row_size)
        start, polygon, _, traits, stop, polygon_stop, _ = place
        if start == stop:
            return []
        values = self._coordinates(row, place).tolist()
        lengths = self._lengths[polygon:polygon_stop].tolist()
        codes, flags = self._category[start:stop].tolist(), self._flags[start:stop].tolist()
        boxes = self._boxes(start, stop)
        if traits & _UNUSUAL or not self._all_labels:
            return self._varied_instances(self._fields(row), codes, flags, boxes, values, lengths)
        ends = list(accumulate(lengths))
        masks = [[values[a:b]] for a, b in zip([0, *ends], ends)]
        if len(masks) != len(codes):  # not one polygon each
            each = chain.from_iterable(masks)
            masks = [list(islice(each, count)) for count in self._polygons[start:stop].tolist()]
        label, crowd = self._labels, CROWD
        return [
            {'ignore_flag': crowd[flag], 'bbox': box, 'bbox_label': label[code], 'mask': mask}
            for flag, box, code, mask in zip(flags, boxes, codes, masks)
        ]

    def _coordinates(self, row: int, place: tuple) -> np.ndarray:
        """All coordinates of image ``row``, as float64 of the caller's own."""
        start, _, u16, traits, stop, _, u16_stop = place
        if traits & _VARIED_OR_ODD:
            return self._decode(self._fields(row))
        if traits & _BASED:
            values = self._base[start:stop].astype(np.float64).repeat(self._coords[start:stop])
            values += self._u16[u16:u16_stop]
        else:
            values = self._u16[u16:u16_stop].astype(np.float64)
        values /= self._scale[traits >> 8]
        return values

    def _decode(self, fields: tuple) -> np.ndarray:
        """The coordinates of an image whose annotations store them in different ways."""
        start, places, stops = fields[0], fields[2:5], fields[len(INDEX) :]
        column, stop = self.store.container.columns, stops[0]
        parts = tuple(column[f'text.{name}'][a:b] for name, a, b in zip(('u16', 'i32', 'f64'), places, stops[2:5]))
        return decode_coordinates(
            column['annotation.code'][start:stop], self._base[start:stop], self._coords[start:stop], parts
        )

    def _boxes(self, start: int, stop: int) -> List[List[float]]:
        """x1, y1, x2, y2 of some annotations."""
        boxes = self._bbox[start:stop].astype(np.float64)
        if self._bbox_scale:
            boxes /= self._bbox_scale
        if stop - start < _FEW:
            return [[x, y, x + w, y + h] for x, y, w, h in boxes.tolist()]
        pairs = boxes.view(np.complex128)  # (x, y) and (w, h) as one number each: one addition, half the strides
        pairs[:, 1] += pairs[:, 0]
        return boxes.tolist()

    def _varied_instances(
        self,
        fields: tuple,
        codes: List[int],
        flags: List[int],
        boxes: List[List[float]],
        values: List[float],
        lengths: List[int],
    ) -> List[Dict[str, Any]]:
        """The instances of an image whose annotations are not all alike."""
        start, stop, traits = fields[0], fields[len(INDEX)], fields[len(INDEX) - 1]
        column = self.store.container.columns
        rows = slice(start, stop)
        polygons, coords = self._polygons[rows].tolist(), self._coords[rows].tolist()
        run_lengths = self._run_lengths(fields) if traits & _NO_POLYGONS else {}
        written = column['annotation.types'][rows].tolist() if traits & _INTEGERS else None
        odd = self._texts(fields) if traits & _ODD else {}
        bit, bits = fields[_BITS], column['annotation.bits'][rows]
        instances, at, used = [], 0, 0
        for i, (code, flag, box, count, size) in enumerate(zip(codes, flags, boxes, polygons, coords)):
            values_at, lengths_at = at, used
            at, used = at + size, used + count
            if written and written[i] & COORDS_MIXED:
                bit, bits_at = bit + int(bits[i]), bit
            label = self._labels[code]
            if label < 0 or not flag & KEPT:
                continue
            if i in odd:
                instances.append(_odd_instance(odd[i], label))
                continue
            mine = values[values_at:at]
            if written and written[i]:
                box = _box_as_written(box, written[i])
                if written[i] & (COORDS_INT | COORDS_MIXED):
                    packed = column['text.bits'][bits_at:bit] if written[i] & COORDS_MIXED else b''
                    mine = as_written(mine, written[i], packed)
            instance = {'ignore_flag': CROWD[flag], 'bbox': box, 'bbox_label': label}
            if count:
                instance['mask'] = _split(mine, lengths[lengths_at:used])
            elif run_lengths.get(i):
                instance['mask'] = run_lengths[i]
            instances.append(instance)
        return instances

    def _run_lengths(self, fields: tuple) -> Dict[int, Dict[str, Any]]:
        """The RLE of those annotations of an image that have one, by their position in it."""
        column, at = self.store.container.columns, fields[_RLE]
        rows = slice(fields[0], fields[len(INDEX)])
        sizes = column['annotation.rle'][rows]
        decoded = {}
        for i in np.flatnonzero(column['annotation.kind'][rows] == RUN_LENGTH).tolist():
            size = int(sizes[i])
            decoded[i] = _json(column['text.rle'][at : at + size].tobytes())
            at += size
        return decoded

    def _texts(self, fields: tuple) -> Dict[int, Dict[str, Any]]:
        """Those annotation records of an image that are kept as text, by their position in it."""
        column, at = self.store.container.columns, fields[_RAW]
        sizes = column['annotation.raw'][fields[0] : fields[len(INDEX)]]
        records = {}
        for i in np.flatnonzero(sizes).tolist():
            size = int(sizes[i])
            records[i] = json.loads(column['text.raw'][at : at + size].tobytes())
            at += size
        return records

    def left_out(self) -> np.ndarray:
        """The images that are to be left out, see :class:`~.paths.Paths`: int64, shape (L,), increasing."""
        index = self.store.container.columns['index']
        names = '|'.join(re.escape(osp.basename(path)) for path in self.paths.without).encode()
        places = [match.start() for match in re.finditer(names, self._names)] if names else []
        rows = np.searchsorted(index[:, INDEX.index('name')], places, 'right') - 1
        # Those kept as text may be others, and a few found may only end like one.
        rows = np.union1d(rows, np.flatnonzero(np.diff(index[:, INDEX.index('image_raw')])))
        return np.array([row for row in rows.tolist() if self.path(row) in self.paths.without], np.int64)

    def valid_rows(self, filter_empty_gt: bool, min_size: Any, crowds: bool = True) -> Optional[np.ndarray]:
        """The images that ``CocoDataset.filter_data`` keeps; None for all of them.

        Args:
            filter_empty_gt: only images with an annotation, kept or not, of one of the categories.
            min_size: only images of which neither side is smaller, in pixels.
            crowds: False: ``filter_empty_gt`` asks for an instance that is no crowd (``CityscapesDataset``).

        Returns:
            int64, shape (M,), increasing; None if no image is left out.
        """
        if not len(self):
            return None
        index = self.store.container.columns['index']
        height, width, traits = (index[:-1, INDEX.index(name)] for name in ('height', 'width', 'traits'))
        valid = np.minimum(height, width) >= min_size
        odd = traits & _ODD != 0
        valid[odd] = True
        if filter_empty_gt:
            starts = index[:, 0]
            known = self._label[self._category[: int(starts[-1])]] >= 0
            if not crowds:
                flags = self._flags[: int(starts[-1])]
                known &= (flags & KEPT != 0) & ~np.array(CROWD, bool)[flags]
            counts = np.concatenate([[0], np.cumsum(known)])[starts]
            some = np.diff(counts) > 0
            if not crowds:
                some[odd] = [self._has_single(row) for row in np.flatnonzero(odd).tolist()]
            valid &= some
        for row in np.flatnonzero(odd & valid).tolist():
            valid[row] = self._is_large(row, min_size)
        return None if valid.all() else np.flatnonzero(valid)

    def _has_single(self, row: int) -> bool:
        return any(instance['ignore_flag'] != 1 for instance in self.instances(row))

    def _is_large(self, row: int, min_size: Any) -> bool:
        info = self.header(row, '')
        try:
            return min(info['width'], info['height']) >= min_size
        except TypeError:
            size = f'is {shorten(info["width"])} x {shorten(info["height"])}, should be two numbers'
            raise AnnotationFileError(
                self.store.source, size, f'the image with id {shorten(info["img_id"], 40)}', 'width'
            ) from None


def _join(folder: str, name: str) -> str:
    """``os.path.join``, of which the usual case is one addition."""
    return folder + name if folder[-1:] == '/' and name[:1] != '/' else osp.join(folder, name)


def _some_fields(wide: bool, first: Sequence[str], second: Sequence[str]) -> struct.Struct:
    """These fields of an image's row of the index, then those of the next one's, in the index's order."""
    kind, skipped = ('q', '8x') if wide else ('i', '4x')
    return struct.Struct(
        '<' + ''.join(kind if name in names else skipped for names in (first, second) for name in INDEX)
    )


def _json(text: bytes) -> Any:
    """``json.loads``, three times as fast where it can be; both give equal values where both take the text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


def _odd_instance(annotation: Dict[str, Any], label: int) -> Dict[str, Any]:
    """The instance of a record with values of any type."""
    x, y, w, h = annotation['bbox']
    ignore_flag = int(bool(annotation.get('iscrowd', False)))
    instance = {'ignore_flag': ignore_flag, 'bbox': [x, y, x + w, y + h], 'bbox_label': label}
    if annotation.get('segmentation'):
        instance['mask'] = annotation['segmentation']
    return instance


def _split(values: List[Any], lengths: List[int]) -> List[List[Any]]:
    """``values`` cut into lists of ``lengths``."""
    if len(lengths) == 1:
        return [values]
    parts, at = [], 0
    for length in lengths:
        parts.append(values[at : at + length])
        at += length
    return parts


def _box_as_written(box: List[float], types: int) -> List[Any]:
    """A box with those corners as integers that stock computes from integers; see the row's ``types``."""
    x, y, w, h = (types >> k & 1 for k in range(4))
    return [int(v) if is_int else v for v, is_int in zip(box, (x, y, x and w, y and h))]
