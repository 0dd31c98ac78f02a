"""Is a store whole? Reads all of it: checksums first, then that every number in it points to where it may.

The checksums find what a disk or a copy did to a store. The rest finds what no checksum can: a store that was written
wrong, or made by somebody else to be wrong. Bytes between the columns belong to nobody and are not looked at.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np

from .columns import SCALES, WIDTHS
from .errors import StoreError, clip
from .layout import COORDS_MIXED, FLAG_FORMS, INDEX, KEPT, NULL, OFFSETS, POLYGONS, RAGGED, RUN_LENGTH, Trait
from .parsing.detection import kept
from .records import Texts
from .store import AnnotationStore
from .traits import annotation_traits, by_image, scale_traits

_FLOATS = frozenset(('annotation.bbox', 'annotation.area', 'text.f64'))
_SCALED = ('bbox', 'area')
_WIDTH = {'u16': 0, 'i32': 1, 'f64': 2}


def verify(store: AnnotationStore) -> None:
    """Raises :class:`StoreError` naming the first thing that is wrong with ``store``; reads all of it."""
    for fault in faults(store):
        raise StoreError(f'{store.path}: {fault}')


def faults(store: AnnotationStore) -> Iterator[str]:
    """What is wrong with ``store``, in words; nothing for a good one. Each kind of check needs those before it."""
    try:
        yield from _faults(store)
    except MemoryError:
        yield 'a column says it has more elements than memory can hold'


def _faults(store: AnnotationStore) -> Iterator[str]:
    for check in (_checksums, _dtypes, _lengths, _numbers, _positions, _offsets, _coordinates, _texts, _derived):
        found = False
        for fault in check(store):
            found = True
            yield fault
        if found:
            return


def _checksums(store: AnnotationStore) -> Iterator[str]:
    try:
        store.container.verify()
    except StoreError as error:
        yield str(error).replace(f'{store.path}: ', '', 1)


def _dtypes(store: AnnotationStore) -> Iterator[str]:
    """Number types and dimensions, and the scales of decimals."""
    shapes, bytes_in_all = {'index': 2, 'annotation.bbox': 2}, os.path.getsize(store.path)
    for name, column in store.container.columns.items():
        if column.size > bytes_in_all and name != 'text.polygons':  # of one element stored once; polygons may be empty
            yield f'column {name} says it has {column.size} elements'
        if column.ndim != shapes.get(name, 1):
            yield f'column {name} has {column.ndim} dimensions'
        if column.dtype.kind == 'f' and name not in _FLOATS:
            yield f'column {name} has numbers of type {column.dtype}'
        if name.startswith('text.') and name[5:] not in ('polygons', 'u16', 'i32', 'f64') and column.dtype != np.uint8:
            yield f'column {name} is text, and has numbers of type {column.dtype}'
    columns, scales = store.container.columns, store.container.attributes['scales']
    if columns['annotation.bbox'].shape[1:] != (4,):
        yield f'annotation.bbox has shape {columns["annotation.bbox"].shape}'
    for name in _SCALED:
        if scales[name] not in (0, *SCALES.tolist()):
            yield f'the scale of {name} is {scales[name]}'
    for name, width in _WIDTH.items():
        if not np.can_cast(columns[f'text.{name}'].dtype, WIDTHS[width]):
            yield f'text.{name} has numbers of type {columns[f"text.{name}"].dtype}'


def _lengths(store: AnnotationStore) -> Iterator[str]:
    """The lengths of texts and lists add up to what is there."""
    columns, known = store.container.columns, store.container.columns['index'][-1, 0]
    pairs = {f'text.{name}': f'annotation.{name}' for name in ('bits', 'rle', 'extra', 'raw', 'polygons')}
    pairs.update({'text.superseded': 'length.superseded'})
    pairs.update({f'text.{name}_ids': f'length.{name}_ids' for name in ('image', 'annotation', 'category')})
    for text, length in pairs.items():
        lengths = columns[length]
        if lengths.min(initial=0) < 0 or lengths.sum(dtype=float) != columns[text].size:
            yield f'{length} does not add up to {text}'
    if store.container.attributes.get('known') != known:
        yield f'{known} annotations of known images, the header says {store.container.attributes.get("known")}'
    for name in OFFSETS:
        if columns['index'][0, INDEX.index(name)] != 0:
            yield f'the index of {name} does not begin at 0'
    if columns['orphan.image'].size != store.num_annotations - known:
        yield f'orphan.image has {columns["orphan.image"].size} rows'
    if columns['image.position'].size != store.num_images:
        yield f'image.position has {columns["image.position"].size} rows'
    sizes = {columns[f'{name}'].size for name in ('superseded.position', 'superseded.group', 'length.superseded')}
    if len(sizes) > 1:
        yield 'the columns of superseded images differ in length'
    try:
        store.check_lengths()
    except StoreError as error:
        yield str(error).replace(f'{store.path}: ', '', 1)


def _numbers(store: AnnotationStore) -> Iterator[str]:
    """Codes and ids are among those there are."""
    columns = store.container.columns
    coded, key = columns['annotation.coded'], columns['annotation.id']
    index = columns['index'][:-1]
    image_coded = index[:, INDEX.index('traits')] & Trait.CODED != 0
    known = int(columns['index'][-1, 0])
    counts = {name: columns[f'length.{name}_ids'].size for name in ('image', 'annotation', 'category')}
    flags, code = columns['annotation.flags'].astype(np.int64), columns['annotation.code'].astype(np.int64)
    forms = len(FLAG_FORMS) - 1
    for name, values, low, high in (
        ('annotation.category', columns['annotation.category'], -1, counts['category'] - 1),
        ('annotation.kind', columns['annotation.kind'], 0, max(POLYGONS, RUN_LENGTH, NULL)),
        ('annotation.coded', coded, 0, 3),
        ('annotation.flags (iscrowd)', flags & 7, 0, forms),
        ('annotation.flags (ignore)', flags >> 3 & 7, 0, forms),
        ('annotation.types', columns['annotation.types'], 0, 127),
        ('annotation.code (scale)', code & 7, 0, len(SCALES) - 1),
        ('annotation.code (width)', code >> 3, 0, len(WIDTHS) - 1),
        ('annotation.id', key[coded & 1 != 0], 0, counts['annotation'] - 1),
        ('orphan.image', columns['orphan.image'][coded[known:] & 2 != 0], 0, counts['image'] - 1),
        ('index of id', index[image_coded, INDEX.index('id')], 0, counts['image'] - 1),
        ('index of traits', index[:, INDEX.index('traits')], 0, 7 << 8 | 255),
        ('superseded.group', columns['superseded.group'], 0, store.num_images - 1),
    ):
        if values.size and (values.min() < low or values.max() > high):
            yield f'{name} has values outside {low} to {high}'
    of = np.repeat(image_coded, np.diff(columns['index'][:, 0]))
    if ((coded[:known] & 2 != 0) != of).any():
        yield 'annotation.coded and the traits of images disagree'


def _positions(store: AnnotationStore) -> Iterator[str]:
    """Every place in the file's lists is taken once."""
    columns = store.container.columns
    images = np.concatenate([columns['image.position'], columns['superseded.position']])
    for name, positions in (('annotations', columns['annotation.position']), ('images', images)):
        positions = positions.astype(np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= positions.size):
            yield f'the positions of {name} go beyond their number'
        elif (np.bincount(positions, minlength=positions.size) != 1).any():
            yield f'two {name} have one position'


def _offsets(store: AnnotationStore) -> Iterator[str]:
    """The index points to where the lengths say."""
    columns = store.container.columns
    index, starts = columns['index'], columns['index'][:, 0]
    width = columns['annotation.code'].astype(np.int64) >> 3
    for name in RAGGED:
        if name not in INDEX:
            continue
        lengths = columns[f'annotation.{name}'] if name not in _WIDTH else _of_width(columns, width, name)
        if (np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[starts] != index[:, INDEX.index(name)]).any():
            yield f'the index of {name} is not where its lengths say'
    for name in ('name', 'image_raw', 'image_extra'):
        ends = index[:, INDEX.index(name)]
        if ends[0] != 0 or ends[-1] != columns[OFFSETS[name]].size:
            yield f'the index of {name} does not cover {OFFSETS[name]}'


def _coordinates(store: AnnotationStore) -> Iterator[str]:
    """Coordinates are as many as polygons, widths and marks of integers say."""
    columns = store.container.columns
    width = columns['annotation.code'].astype(np.int64) >> 3
    coords, polygons = (columns[f'annotation.{name}'].astype(np.int64) for name in ('coords', 'polygons'))
    for name in _WIDTH:
        if _of_width(columns, width, name).sum() != columns[f'text.{name}'].size:
            yield f'the coordinates of text.{name} are not as many as annotations say'
    ends = np.concatenate([[0], np.cumsum(columns['text.polygons'], dtype=np.int64)])[np.cumsum(polygons)]
    if (ends != np.cumsum(coords)).any():
        yield 'the lengths of polygons are not those of their annotations'
    mixed = columns['annotation.types'] & COORDS_MIXED != 0
    if (columns['annotation.bits'] != np.where(mixed, (coords + 7) // 8, 0)).any():
        yield 'the marks of integers are not as many as coordinates'
    kind = columns['annotation.kind']
    if (polygons[kind != POLYGONS] != 0).any() or ((columns['annotation.rle'] > 0) != (kind == RUN_LENGTH)).any():
        yield 'kinds of segmentation and what is stored for them disagree'


def _of_width(columns: Dict[str, np.ndarray], width: np.ndarray, name: str) -> np.ndarray:
    return columns['annotation.coords'].astype(np.int64) * (width == _WIDTH[name])


def _derived(store: AnnotationStore) -> Iterator[str]:
    """What was worked out when the store was written: what mmdet keeps, and the traits of images."""
    columns, index = store.container.columns, store.container.columns['index']
    starts = index[:, 0].astype(np.int64)
    known = slice(0, int(starts[-1]))
    of = np.repeat(np.arange(store.num_images), np.diff(starts))
    width, height, traits = (index[:-1, INDEX.index(name)].astype(np.int64) for name in ('width', 'height', 'traits'))
    odd_image = np.diff(index[:, INDEX.index('image_raw')]) != 0
    rows = {name: columns[f'annotation.{name}'][known] for name in ('types', 'kind', 'polygons', 'code', 'base')}
    flags = columns['annotation.flags'][known].astype(np.int64)
    odd = (columns['annotation.raw'][known] != 0) | odd_image[of]
    keep, scales = flags & KEPT != 0, store.container.attributes['scales']
    box, area = (columns[f'annotation.{name}'][known] / (scales[name] or 1) for name in _SCALED)
    ignored = np.isin(flags >> 3 & 7, [form for form, value in enumerate(FLAG_FORMS) if value in (1, True)])
    if (keep != (kept(box, area, width[of], height[of]) & ~ignored))[~odd].any():
        yield 'annotation.flags do not say what mmdet keeps'
    expected = by_image(annotation_traits(rows, keep, odd), starts)
    expected |= scale_traits(columns['annotation.coords'][known], rows['code'], starts)
    expected |= np.where(odd_image, int(Trait.ODD), 0) | traits & int(Trait.CODED | Trait.NAMELESS)
    if (expected != traits).any():
        yield 'the traits of images are not those of their annotations'
    named = np.diff(index[:, INDEX.index('name')]) != 0
    if ((traits & Trait.NAMELESS != 0) & (named | odd_image)).any():
        yield 'images have a name, and a trait that says they have none'


def _texts(store: AnnotationStore) -> Iterator[str]:
    """Texts are JSON, or names, as the reader expects them."""
    columns, index = store.container.columns, store.container.columns['index']
    names = np.diff(index[:, INDEX.index('name')])
    raws = np.diff(index[:, INDEX.index('image_raw')])
    extras = np.diff(index[:, INDEX.index('image_extra')])
    image, annotation = ('id',), ('id', 'image_id', 'category_id')
    tables: Tuple[Tuple[str, np.ndarray, Callable[[bytes], Any]], ...] = (
        ('text.image_name', names, bytes.decode),
        ('text.image_raw', raws, _record(*image)),
        ('text.image_extra', extras, _record()),
        ('text.superseded', columns['length.superseded'], _record(*image)),
        ('text.raw', columns['annotation.raw'], _record(*annotation)),
        ('text.extra', columns['annotation.extra'], _record()),
        ('text.rle', columns['annotation.rle'], _record()),
        *((f'text.{name}_ids', columns[f'length.{name}_ids'], _key) for name in ('image', 'annotation', 'category')),
        *((name, np.array([columns[name].size]), json.loads) for name in columns if name.startswith('top.')),
    )
    for name, lengths, read in tables:
        texts = Texts(columns[name], lengths)
        for i in np.flatnonzero(lengths).tolist() if read is not _key else range(len(texts)):
            try:
                read(texts[i])
            except (ValueError, KeyError, RecursionError) as error:
                yield f'{name} of row {i} cannot be read ({clip(str(error))})'
                break


def _record(*keys: str) -> Callable[[bytes], None]:
    def read(text: bytes) -> None:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError('no object')
        for key in keys:
            if key not in value:
                raise ValueError(f'has no {key}')

    return read


def _key(text: bytes) -> None:
    if isinstance(json.loads(text), (list, dict)):
        raise ValueError('cannot serve as an id')
