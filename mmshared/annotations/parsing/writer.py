"""Pass two of the build: from rows and texts in file order to columns grouped by image."""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from ..columns import F64, I32, U16, narrow
from ..container import ContainerWriter
from ..errors import AnnotationFileError, Violations, shorten
from ..layout import FLAG_FORMS, INDEX, KEPT, PATH_FIELDS, RAGGED, Trait, image_record, json_list
from ..traits import annotation_traits, by_image, scale_traits
from .detection import kept
from .grouping import Groups, group_by_image
from .ingest import AnnotationIngest, ImageIngest
from .rows import ANNOTATION_ROW, IMAGE_ROW
from .spool import Spool
from .violations import DetectionRules

_BLOCK = 1 << 13
#: By a row's flags: whether ``ignore`` is true.
_IGNORED = np.array([(*FLAG_FORMS, None, None)[flags >> 3 & 7] in (1, True) for flags in range(256)])


class StoreWriter:
    """Writes the columns of a store.

    Args:
        images, annotations: the tables of pass one.
        out: where the columns go.
        scratch: makes an empty temporary file.
    """

    def __init__(
        self, images: ImageIngest, annotations: AnnotationIngest, out: ContainerWriter, scratch: Callable[[], BinaryIO]
    ) -> None:
        self._images, self._annotations, self._out = images, annotations, out
        self._image_rows = np.frombuffer(images.rows.map(), IMAGE_ROW)
        self._unordered = np.frombuffer(annotations.rows.map(), ANNOTATION_ROW)
        self.groups: Groups = group_by_image(
            self._image_rows['id'],
            self._image_rows['coded'] != 0,
            self._unordered['image'],
            self._unordered['coded'] & 2 != 0,
        )
        self._rows = self._in_order(Spool(scratch()))
        self._rules = DetectionRules(images, self._image_rows, annotations, self._unordered)
        self._starts: Dict[str, np.ndarray] = {'annotation': self.groups.starts}
        self._traits = np.zeros(self.groups.count, np.int64)

    def _in_order(self, spool: Spool) -> np.ndarray:
        """The annotations' rows grouped by image. They are scattered once, not once for each of their columns."""
        order = self.groups.order
        if (order[1:] > order[:-1]).all():
            return self._unordered
        for block in _blocks(order.size):
            spool.write(self._unordered[order[block]].view(np.uint8))
        return np.frombuffer(spool.map(), ANNOTATION_ROW)

    def write(self, attributes: Dict[str, Any], top: Dict[str, bytes]) -> Violations:
        """Writes everything and closes the store with ``attributes`` and what it adds to them.

        Returns:
            What mmdet would choke on.
        """
        scales = self._fixed_columns()
        self._flags()
        self._ragged_columns()
        self._image_columns()
        self._index()
        for name, text in top.items():
            self._out.add(f'top.{name}', np.frombuffer(text, np.uint8))
        for name, table in (('image', self._images.ids), ('annotation', self._annotations.ids)):
            self._texts(f'{name}_ids', table.texts())
        self._texts('category_ids', [json.dumps(v).encode() for v in self._annotations.categories.values])
        violations = Violations(self._duplicate_ids() or self._rules.violation, self._unknown_paths())
        self._out.close(
            {
                **attributes,
                'images': self.groups.count,
                'annotations': int(self._rows.size),
                'known': int(self.groups.starts[-1]),
                'scales': scales,
                'violations': violations.as_json(),
            }
        )
        return violations

    def _texts(self, name: str, texts: List[bytes]) -> None:
        data, lengths = json_list(texts)
        self._out.add(f'text.{name}', data)
        self._out.add(f'length.{name}', narrow(lengths))

    # --- annotations
    def _fixed_columns(self) -> Dict[str, int]:
        out, rows = self._out, self._rows
        for field in ('id', 'category', 'base', 'polygons', 'coords', 'rle', 'extra', 'raw', 'bits'):
            out.add(f'annotation.{field}', narrow(rows[field]))
        for field in ('code', 'types', 'kind', 'coded'):
            out.add(f'annotation.{field}', rows[field])
        out.add('annotation.position', narrow(self.groups.order))
        out.add('orphan.image', narrow(rows['image'][int(self.groups.starts[-1]) :]))
        scales = {}
        for field, ranges, shape in (
            ('bbox', self._annotations.bbox, (rows.size, 4)),
            ('area', self._annotations.area, (rows.size,)),
        ):
            dtype, scales[field] = ranges.layout()
            out.add_stream(f'annotation.{field}', dtype, self._decimals(field, dtype, scales[field]), shape)
        return scales

    def _decimals(self, field: str, dtype: np.dtype, scale: int) -> Iterator[np.ndarray]:
        for block in _blocks(self._rows.size):
            values = self._rows[field][block]
            yield np.ascontiguousarray(np.rint(values * scale) if scale else values).astype(dtype)

    def _flags(self) -> None:
        """The flags, with :data:`~.ingest.KEPT` where mmdet keeps the annotation; and the images' traits."""
        groups = self.groups
        records = self._image_rows[groups.last]
        odd_image = records['raw'] != 0
        for position in groups.last[odd_image]:
            self._rules.check_image(int(position))
        known = int(groups.starts[-1])
        flags = self._rows['flags'].copy()
        traits = np.zeros(known, np.int16)
        for block in _blocks(known):
            rows, of = self._rows[block], groups.image[block]
            keep = kept(rows['bbox'], rows['area'], records['width'][of], records['height'][of])
            ignored, odd = _IGNORED[rows['flags']], (rows['raw'] != 0) | odd_image[of]
            keep &= ~ignored
            for i in np.flatnonzero(odd & ~ignored):
                keep[i] = self._rules.keeps(int(groups.order[block.start + i]), int(groups.last[of[i]]))
            flags[block] |= keep.astype(np.uint8) * np.uint8(KEPT)
            traits[block] = annotation_traits(rows, keep, odd)
        self._traits |= by_image(traits, groups.starts)
        self._traits[odd_image] |= Trait.ODD
        self._traits[records['coded'] != 0] |= Trait.CODED
        self._traits[~odd_image & (records['paths'] & 1 == 0)] |= Trait.NAMELESS
        self._out.add('annotation.flags', flags)

    def _ragged_columns(self) -> None:
        known = self._rows[: int(self.groups.starts[-1])]
        self._traits |= scale_traits(known['coords'], known['code'], self.groups.starts)
        for name, dtype in RAGGED.items():
            spool, ordered = self._annotations.spools[name], _lengths(self._rows, name)
            pieces = _gather(spool.map(), _lengths(self._unordered, name), dtype, self.groups.order)
            if name == 'polygons':
                self._out.add('text.polygons', narrow(np.frombuffer(b''.join(pieces), dtype)))
            else:
                self._out.add_stream(f'text.{name}', dtype, pieces)
            self._starts[name] = np.concatenate([[0], np.cumsum(ordered, dtype=np.int64)])[self.groups.starts]

    # --- images
    def _image_columns(self) -> None:
        groups, out = self.groups, self._out
        rows = self._image_rows[groups.last]
        for field in ('name', 'extra', 'raw'):
            lengths = self._image_rows[field]
            out.add_stream(
                f'text.image_{field}',
                'u1',
                _gather(self._images.spools[field].map(), lengths, np.dtype('u1'), groups.last),
            )
            ends = np.concatenate([[0], np.cumsum(rows[field], dtype=np.int64)])
            self._starts['image_raw' if field == 'raw' else field] = ends
        self._starts['image_extra'] = self._starts.pop('extra')
        out.add('image.position', narrow(groups.last))
        self._superseded()

    def _superseded(self) -> None:
        """Image records whose id comes again later, and, where it differs in type, the key under which all count."""
        alone = np.zeros(self._image_rows.size, bool)
        alone[self.groups.last] = True
        positions = np.flatnonzero(~alone)
        texts = []
        if positions.size:
            ends = {f: np.cumsum(self._image_rows[f], dtype=np.int64) for f in ('name', 'extra', 'raw')}
            texts = [self._image_text(p, {f: int(end[p]) for f, end in ends.items()}) for p in positions.tolist()]
        self._out.add('superseded.position', narrow(positions))
        self._out.add('superseded.group', narrow(self.groups.of_record[positions]))
        self._texts('superseded', texts)

    def _unknown_paths(self) -> Dict[str, Optional[AnnotationFileError]]:
        """For each field that may say where an image lies the error about the first image where it does not."""
        found: Dict[str, Optional[AnnotationFileError]] = {}
        for bit, field in enumerate(PATH_FIELDS):
            lacking = self.groups.last[self._image_rows['paths'][self.groups.last] >> bit & 1 == 0]
            found[field] = self._unknown_path(int(lacking[0]), field) if lacking.size else None
        return found

    def _unknown_path(self, position: int, field: str) -> AnnotationFileError:
        rows = self._image_rows[: position + 1]
        ends = {name: int(rows[name].sum(dtype=np.int64)) for name in ImageIngest.texts}
        record = json.loads(self._image_text(position, ends))
        problem = f'is {shorten(record[field])}, should be a string' if field in record else 'is missing'
        return self._images.error(position, record, problem, field)

    def _image_text(self, position: int, ends: Dict[str, int]) -> bytes:
        """The image record at ``position`` as JSON; ``ends``: where its texts end, by their names."""
        row = self._image_rows[position]
        piece = {f: bytes(self._images.spools[f].map()[end - int(row[f]) : end]) for f, end in ends.items()}
        if piece['raw']:
            return piece['raw']
        key = self._images.ids.values[int(row['id'])] if row['coded'] else int(row['id'])
        return json.dumps(
            image_record(
                key, int(row['height']), int(row['width']), piece['name'] if row['paths'] & 1 else None, piece['extra']
            )
        ).encode()

    def _index(self) -> None:
        rows = self._image_rows[self.groups.last]
        table = np.zeros((self.groups.count + 1, len(INDEX)), np.int64)
        for column, name in enumerate(INDEX):
            if name in ('id', 'height', 'width'):
                table[:-1, column] = rows[name]
            elif name == 'traits':
                table[:-1, column] = self._traits
            else:
                table[:, column] = self._starts[name]
        if table.min() >= -1 << 31 and table.max() < 1 << 31:
            table = table.astype('<i4')
        self._out.add('index', table)

    def _duplicate_ids(self) -> AnnotationFileError | None:
        """The error for annotation ids that occur more than once among the known images, naming them."""
        known = int(self.groups.starts[-1])
        order, rows = self.groups.order[:known], self._rows[:known]
        ids, coded = rows['id'], rows['coded'] & 1 != 0
        repeated = {}
        for mask, value in ((~coded, lambda key: key), (coded, self._annotations.ids.values.__getitem__)):
            keys = np.sort(ids[mask])
            for key in np.unique(keys[1:][keys[1:] == keys[:-1]])[:10].tolist():
                at = np.sort(order[mask & (ids == key)])
                repeated[shorten(value(key), 40)] = at[:5].tolist(), at.size
        if not repeated:
            return None
        named = '; '.join(
            f'id {key} at annotations{at}' + (f' and {n - 5} more' if n > 5 else '')
            for key, (at, n) in repeated.items()
        )
        problem = f'annotation ids are not unique, as CocoDataset requires: {named}. Give each its own id.'
        return AnnotationFileError(self._images.path, problem)


_WIDTH = {'u16': U16, 'i32': I32, 'f64': F64}


def _lengths(rows: np.ndarray, name: str) -> np.ndarray:
    """How many elements each row has in the ragged column ``name``."""
    return rows[name] if name not in _WIDTH else rows['coords'] * (rows['code'] >> 3 == _WIDTH[name])


def _blocks(size: int) -> Iterator[slice]:
    for start in range(0, size, _BLOCK):
        yield slice(start, min(start + _BLOCK, size))


def _gather(data: Sequence[int], lengths: np.ndarray, dtype: np.dtype, order: np.ndarray) -> Iterator[Any]:
    """The records' pieces of ``data``, which are ``lengths`` elements long in file order, in the order ``order``.

    Texts are sliced: ``data`` is bytes or an mmap, slices of which are bytes, no work for the garbage collector.
    Numbers are many and short, so they are picked one by one.
    """
    if not len(data):
        return
    if order.size == lengths.size and (order[1:] > order[:-1]).all():
        for start in range(0, len(data), 1 << 20):
            yield data[start : start + (1 << 20)]
        return
    ends = np.cumsum(lengths, dtype=np.int64)
    values = None if dtype.itemsize == 1 else np.frombuffer(data, dtype)
    for block in _blocks(order.size):
        chosen = order[block]
        chosen = chosen[lengths[chosen] > 0]
        sizes, stops = lengths[chosen].astype(np.int64), ends[chosen]
        if values is None:
            yield b''.join([data[a:b] for a, b in zip((stops - sizes).tolist(), stops.tolist())])
        elif chosen.size:
            last = np.cumsum(sizes)
            yield values[np.repeat(stops - last, sizes) + np.arange(last[-1])]
