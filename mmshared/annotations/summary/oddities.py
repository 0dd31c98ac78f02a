"""What in an annotation file will bite in training or evaluation, where, and what to do about it."""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import AnnotationFileError, clip, shorten
from ..layout import INDEX, PATH_FIELDS, Trait
from ..records import id_values
from ..store import AnnotationStore
from .blocks import POLYGON, RLE_LIST, RLE_STRING, Blocks, image_sizes
from .overview import category_counts, instances_per_image
from .rules import RULES, Level

EXAMPLES = 5
#: Instances of an image that AP counts, and base configs keep (``max_per_img``); and where memory gets tight.
CROWDED, EXTREMELY_CROWDED = 100, 1000
#: ``filter_cfg['min_size']`` of mmdet's base configs.
SMALL_IMAGE = 32


class Oddity(NamedTuple):
    """One kind of thing in a file that bites.

    Attributes:
        name: for programs.
        level: what it does.
        title: what there is.
        count: of how many.
        examples: the first few, such as ``annotations[17] (id 23)``.
        bites: what happens, and what to do.
    """

    name: str
    level: Level
    title: str
    count: int
    examples: Tuple[str, ...]
    bites: str


def find_oddities(store: AnnotationStore) -> List[Oddity]:
    """All oddities in ``store``, those that stop a job first."""
    found = [*_file(store), *_annotations(store), *_links(store), *_images(store), *_categories(store)]
    order = list(Level)
    return sorted(found, key=lambda oddity: order.index(oddity.level))


def _file(store: AnnotationStore) -> Iterator[Oddity]:
    violation = store.violation
    if violation is not None:
        where = () if violation.record is None else (violation.record,)
        problem = clip(
            violation.problem if violation.field is None else f'{violation.field!r} {violation.problem}', 400
        )
        level = Level.ERROR
        if store.violations.of(PATH_FIELDS) is None:
            level, problem = Level.NOTE, f'{problem}. Fine for LVIS v1, which finds images by their "coco_url"'
        yield Oddity('refused', level, 'CocoDataset refuses this file', 1, where, problem)
    try:
        store.categories  # noqa: B018
    except AnnotationFileError as error:
        yield Oddity('no_categories', Level.ERROR, 'unusable categories', 1, (), f'{error.problem}. Write them')
    sections = store.container.attributes['sections']
    if not sections.get('images'):
        yield Oddity('no_images', Level.ERROR, 'no list of "images"', 1, (), 'CocoDataset fails. Write one')
    if not sections.get('annotations'):
        bites = 'fine for images to test on; there is nothing to train on, or to evaluate against'
        yield Oddity('no_annotations', Level.NOTE, 'no list of "annotations"', 1, (), bites)
    if 'info' not in store.top:
        bites = 'some versions of pycocotools fail in evaluation (loadRes): KeyError "info". Write "info": {}'
        yield Oddity('no_info', Level.NOTE, 'no "info"', 1, (), bites)


class _First:
    """Count, and the stored rows of the first few in the order of the file."""

    def __init__(self) -> None:
        self.count = 0
        self._rows, self._positions = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, rows: np.ndarray, positions: np.ndarray) -> None:
        self.count += rows.size
        rows, positions = np.append(self._rows, rows), np.append(self._positions, positions)
        first = np.argsort(positions, kind='stable')[:EXAMPLES]
        self._rows, self._positions = rows[first], positions[first]

    def examples(self, blocks: Blocks) -> Tuple[str, ...]:
        return tuple(
            f'annotations[{position}] (id {shorten(blocks.id_of(row), 40)})'
            for row, position in zip(self._rows.tolist(), self._positions.tolist())
        )


def _annotations(store: AnnotationStore) -> Iterator[Oddity]:
    """What is odd about single annotations: see :mod:`.rules`."""
    blocks, at = Blocks(store), 0
    width, height = (np.append(size, np.nan) for size in image_sizes(store))
    found, masks = {rule.name: _First() for rule in RULES}, False
    for block in blocks:
        masks |= bool(np.isin(block.segmentation, (POLYGON, RLE_STRING, RLE_LIST)).any())
        for rule in RULES:
            rows = np.flatnonzero(rule.applies(block, width[block.image], height[block.image]))
            if rows.size:
                found[rule.name].add(rows + at, block.position[rows])
        at += block.position.size
    for rule in RULES:
        first = found[rule.name]
        level = rule.level if masks or rule.name != 'no_mask' else Level.NOTE  # a file of boxes only is fine
        if first.count:
            yield Oddity(rule.name, level, rule.title, first.count, first.examples(blocks), rule.bites)


def _links(store: AnnotationStore) -> Iterator[Oddity]:
    """Annotations that repeat an id, or whose image or category is not there."""
    blocks, columns = Blocks(store), store.container.columns
    positions = columns['annotation.position'].astype(np.int64)
    ids, coded = columns['annotation.id'].astype(np.int64), columns['annotation.coded'] & 1
    known = int(columns['index'][-1, 0])
    category = columns['annotation.category'].astype(np.int64)
    named = {record_id for record_id, _, _ in category_counts(store)}
    values = id_values(store.container, 'category')
    unknown = np.array([*(value not in named for value in values), True])[category] & bool(named)
    order = np.lexsort((positions, ids, coded))
    again = np.zeros(ids.size, bool)
    again[order[1:]] = (ids[order[1:]] == ids[order[:-1]]) & (coded[order[1:]] == coded[order[:-1]])
    for name, level, title, bites, rows in (
        (
            'repeated_id',
            Level.ERROR,
            'annotations with the id of an earlier one',
            'CocoDataset refuses the file, and evaluation counts only the last. Give each its own id',
            np.flatnonzero(again),
        ),
        (
            'unknown_image',
            Level.WARNING,
            'annotations of unknown images',
            'nobody ever sees them. Check "image_id" against the ids of "images"',
            np.arange(known, ids.size),
        ),
        (
            'unknown_category',
            Level.WARNING,
            'annotations of unknown categories',
            'mmdet drops them without a word. Check "category_id" against the ids of "categories"',
            np.flatnonzero(unknown),
        ),
    ):
        if rows.size:
            first = _First()
            first.add(rows, positions[rows])
            yield Oddity(name, level, title, first.count, first.examples(blocks), bites)


def _images(store: AnnotationStore) -> Iterator[Oddity]:
    columns, counts = store.container.columns, instances_per_image(store)
    width, height = image_sizes(store)
    kept = np.zeros(store.num_images, np.int64)
    for block in Blocks(store):
        kept += np.bincount(block.image[block.kept], minlength=kept.size)[: kept.size]
    with np.errstate(invalid='ignore'):
        small = np.minimum(width, height) < SMALL_IMAGE
    masks = float(np.nanmax(counts * width * height, initial=0)) / 1e9

    def oddity(name: str, level: Level, title: str, bites: str, groups: np.ndarray) -> Iterator[Oddity]:
        if groups.size:
            groups = groups[np.argsort(columns['image.position'][groups], kind='stable')]
            examples = tuple(_image_name(store, group) for group in groups[:EXAMPLES].tolist())
            yield Oddity(name, level, title, groups.size, examples, bites)

    yield from oddity(
        'repeated_image_id',
        Level.WARNING,
        'image ids that occur again',
        'the last record counts, with the annotations of all of them. Give each image its own id',
        np.unique(columns['superseded.group']).astype(np.int64),
    )
    yield from oddity(
        'nothing_left',
        Level.WARNING,
        'images with annotations of which mmdet keeps none',
        'filter_empty_gt=True keeps these images, so they train as background. See why their annotations are dropped',
        np.flatnonzero((counts > 0) & (kept == 0)),
    )
    yield from oddity(
        'small_image',
        Level.NOTE,
        f'images with a side below {SMALL_IMAGE} pixels',
        "the base configs' filter_cfg (min_size=32) leaves them out of training",
        np.flatnonzero(small),
    )
    yield from oddity(
        'empty_image',
        Level.NOTE,
        'images without annotations',
        "the base configs' filter_cfg (filter_empty_gt=True) leaves them out of training",
        np.flatnonzero(counts == 0),
    )
    yield from oddity(
        'crowded',
        Level.WARNING,
        f'images with more than {CROWDED} annotations',
        f'AP counts the {CROWDED} best detections of an image, and the base configs keep as many: raise max_per_img of '
        'test_cfg, and proposal_nums of CocoMetric',
        np.flatnonzero(counts > CROWDED),
    )
    yield from oddity(
        'extremely_crowded',
        Level.WARNING,
        f'images with more than {EXTREMELY_CROWDED} annotations',
        f'assigning boxes may exhaust GPU memory (gpu_assign_thr moves it to the CPU), and as bitmaps the masks of one '
        f'image take up to {masks:.1f} GB. Cut such images into tiles',
        np.flatnonzero(counts > EXTREMELY_CROWDED),
    )


def _image_name(store: AnnotationStore, group: int) -> str:
    columns = store.container.columns
    key, traits = (int(columns['index'][group, INDEX.index(name)]) for name in ('id', 'traits'))
    value = id_values(store.container, 'image')[key] if traits & Trait.CODED else key
    return f'images[{int(columns["image.position"][group])}] (id {shorten(value, 40)})'


def _categories(store: AnnotationStore) -> Iterator[Oddity]:
    categories = category_counts(store)

    def oddity(name: str, level: Level, title: str, bites: str, which: Sequence[int]) -> Optional[Oddity]:
        examples = tuple(
            f'categories[{i}] (id {shorten(categories[i][0], 40)}, {shorten(categories[i][1], 40)})'
            for i in which[:EXAMPLES]
        )
        return Oddity(name, level, title, len(which), examples, bites) if which else None

    found = (
        oddity(
            'repeated_category_id',
            Level.ERROR,
            'categories with the id of an earlier one',
            'the id then stands for several labels: labels and classes no longer match. Give each its own id',
            _repeated([record_id for record_id, _, _ in categories]),
        ),
        oddity(
            'repeated_category_name',
            Level.ERROR,
            'categories with the name of an earlier one',
            'a class then has two labels, and those behind it are shifted: results are wrong. Merge or rename them',
            _repeated([name for _, name, _ in categories]),
        ),
        oddity(
            'unnamed_category',
            Level.ERROR,
            'categories whose "name" is missing or no text',
            'CocoDataset finds classes by name, and fails without one. Name them',
            [i for i, (_, name, _) in enumerate(categories) if not isinstance(name, str)],
        ),
        oddity(
            'text_category_id',
            Level.NOTE,
            'category ids that are no integers',
            'mmdet takes them, some tools do not. Number the categories',
            [i for i, (record_id, _, _) in enumerate(categories) if type(record_id) is not int],
        ),
        oddity(
            'unused_category',
            Level.NOTE,
            'categories without annotations',
            'their AP is -1 and left out of the mean. Leave them out of metainfo["classes"], or keep them on purpose',
            [i for i, (_, _, count) in enumerate(categories) if not count],
        ),
    )
    return filter(None, found)


def _repeated(values: Sequence[Any]) -> List[int]:
    """Positions of values that equal an earlier one; those that cannot be keys aside."""
    seen, again = set(), []
    for i, value in enumerate(values):
        if isinstance(value, (list, dict)):
            continue
        if value in seen:
            again.append(i)
        seen.add(value)
    return again
