"""COCO annotation files of any size: polygons, some crowd RLE, the usual extras.

The same arguments give the same bytes. Annotations of one image lie far apart in the file, as in COCO's own files: each
round through the images, in shuffled order, gives one annotation to every image. One image in a hundred has none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np

CLASSES = tuple(f'class_{i:02d}' for i in range(80))
CROWD_EVERY = 100
EMPTY_EVERY = 100
POINTS = (8, 30)
MAX_SIDE = 640
_SIZES = np.array([(640, 480), (480, 640), (640, 427), (427, 640), (500, 375), (333, 500), (640, 640)])
_CHUNK = 4096
_SAMPLE = 4000


@dataclass(frozen=True)
class Style:
    """How the JSON is written: with a space after commas and colons (as ``json.dump`` does), or without."""

    spaced: bool = True

    @property
    def separators(self) -> Tuple[str, str]:
        """Item and key separators, as ``json.dumps`` wants them."""
        return (', ', ': ') if self.spaced else (',', ':')

    def dumps(self, value: object) -> str:
        """``value`` as JSON in this style."""
        return json.dumps(value, separators=self.separators)


def write_coco(path: Path, size_bytes: int, instances: int, style: Style, seed: int = 0) -> Tuple[int, int]:
    """Write a file of about ``size_bytes``, never holding more than a few thousand annotations in memory.

    Args:
        path: the file to write.
        size_bytes: aimed at within a few percent; at least one image is written.
        instances: annotations per image.
        style: spaces or not.
        seed: of the random numbers.

    Returns:
        Number of images and of annotations.
    """
    few = max(20, _SAMPLE // instances)
    images = max(1, round(size_bytes / sum(map(len, _pieces(few, instances, style, seed))) * few))
    with open(path, 'wb') as file:
        for piece in _pieces(images, instances, style, seed):
            file.write(piece.encode())
    return images, _annotated(images) * instances


def write_copies(path: Path, base: Path, copies: int) -> None:
    """Write a file with all images and annotations of ``base``, made by :func:`write_coco`, ``copies`` times.

    That is much faster than making others. Each copy puts two digits of its own before each id, so ids stay unique.

    Args:
        path: the file to write.
        base: the file to copy; it is read into memory. In spaced style.
        copies: 1 to 90.
    """
    if not 1 <= copies <= 90:
        raise ValueError(f'copies must be 1 to 90, is {copies}')
    head, images, annotations, tail = re.split(
        rb'(?<="images": \[)|\], "annotations": \[|(?=\], "categories": )', base.read_bytes()
    )
    with open(path, 'wb') as file:
        for before, records in ((head, images), (b'], "annotations": [', annotations)):
            file.write(before)
            for copy in range(copies):
                digits = b'%d' % (10 + copy)
                numbered = records.replace(b'"id": ', b'"id": ' + digits).replace(
                    b'"image_id": ', b'"image_id": ' + digits
                )
                file.write(b', ' * (copy > 0) + numbered)
        file.write(tail)


def write_single(path: Path) -> None:
    """Write a file of one image with one annotation, with the categories of the others."""
    path.write_text(''.join(_pieces(1, 1, Style(), 0)), encoding='utf-8')


def _annotated(images: int) -> int:
    return images - images // EMPTY_EVERY


def _pieces(images: int, instances: int, style: Style, seed: int) -> Iterator[str]:
    """The text of the file, in pieces."""
    rng = np.random.default_rng(seed)
    sizes = _SIZES[rng.integers(len(_SIZES), size=images)]
    ids = rng.permutation(images * 4)[:images] + 1
    info = {'description': 'generated', 'version': '1.0', 'year': 2017}
    licenses = [{'url': 'http://creativecommons.org/licenses/by/2.0/', 'id': 4, 'name': 'Attribution License'}]
    item, colon = style.separators
    yield f'{{"info"{colon}{style.dumps(info)}{item}"licenses"{colon}{style.dumps(licenses)}{item}"images"{colon}['
    yield from _joined(
        item, (_images(ids[i : i + _CHUNK], sizes[i : i + _CHUNK], style) for i in range(0, images, _CHUNK))
    )
    yield f']{item}"annotations"{colon}['
    order = rng.permutation(images)[: _annotated(images)]
    yield from _joined(
        item, (_annotations(numbers, order, ids, sizes, rng, style) for numbers in _ranges(len(order) * instances))
    )
    categories = [{'supercategory': 'thing', 'id': i + 1, 'name': name} for i, name in enumerate(CLASSES)]
    yield f']{item}"categories"{colon}{style.dumps(categories)}}}'


def _ranges(total: int) -> Iterator[np.ndarray]:
    return (np.arange(start, min(start + _CHUNK, total)) for start in range(0, total, _CHUNK))


def _joined(item: str, chunks: Iterator[List[str]]) -> Iterator[str]:
    between = ''
    for chunk in chunks:
        yield between + item.join(chunk)
        between = item


def _images(ids: np.ndarray, sizes: np.ndarray, style: Style) -> List[str]:
    return [
        style.dumps(
            {
                'license': 4,
                'file_name': f'{image:012d}.jpg',
                'coco_url': f'http://images.cocodataset.org/train2017/{image:012d}.jpg',
                'height': height,
                'width': width,
                'date_captured': '2013-11-14 17:02:52',
                'flickr_url': f'http://farm7.staticflickr.com/6116/{image}_8d5a0c0a4e_z.jpg',
                'id': image,
            }
        )
        for image, (width, height) in zip(ids.tolist(), sizes.tolist())
    ]


def _annotations(
    numbers: np.ndarray, order: np.ndarray, ids: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, style: Style
) -> List[str]:
    """The annotations with these running numbers, as JSON objects."""
    rows = order[numbers % len(order)]
    lengths = rng.integers(POINTS[0], POINTS[1] + 1, size=len(numbers))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    points = _polygons(sizes[rows], lengths, starts, rng)
    low, high = np.minimum.reduceat(points, starts[:-1]), np.maximum.reduceat(points, starts[:-1])
    boxes = np.concatenate([low, high - low], axis=1)
    item, colon = style.separators
    texts = list(map(_NUMBERS.__getitem__, points.ravel().tolist()))
    box_texts = list(map(_NUMBERS.__getitem__, boxes.ravel().tolist()))
    columns = zip(
        numbers.tolist(),
        ids[rows].tolist(),
        rng.integers(1, len(CLASSES) + 1, size=len(numbers)).tolist(),
        _areas(points, lengths, starts).tolist(),
        sizes[rows].tolist(),
        (2 * starts).tolist(),
        (2 * starts[1:]).tolist(),
    )
    result = []
    for i, (number, image, category, area, size, start, end) in enumerate(columns):
        crowd = number % CROWD_EVERY == CROWD_EVERY - 1
        if crowd:
            segmentation = style.dumps(_crowd(size, rng))
        else:
            segmentation = f'[[{item.join(texts[start:end])}]]'
        result.append(
            f'{{"segmentation"{colon}{segmentation}{item}"area"{colon}{area!r}{item}"iscrowd"{colon}{int(crowd)}{item}'
            f'"image_id"{colon}{image}{item}"bbox"{colon}[{item.join(box_texts[4 * i : 4 * i + 4])}]{item}'
            f'"category_id"{colon}{category}{item}"id"{colon}{number + 1}}}'
        )
    return result


def _polygons(sizes: np.ndarray, lengths: np.ndarray, starts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Points (int64, (N, 2), hundredths of a pixel) of polygons of these many points inside images of these sizes."""
    radius = rng.uniform(0.35, 2, size=len(lengths)) ** 2 * sizes.min(axis=1) / 12
    centre = rng.uniform(size=(len(lengths), 2)) * (sizes - 2 * radius[:, None]) + radius[:, None]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    turn = (np.arange(starts[-1]) - starts[owner] + rng.uniform(0, 0.8, size=starts[-1])) / lengths[owner]
    reach = radius[owner] * rng.uniform(0.6, 1, size=starts[-1])
    offset = np.stack([np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)], axis=1) * reach[:, None]
    return np.rint((centre[owner] + offset) * 100).astype(np.int64).clip(0, MAX_SIDE * 100)


def _areas(points: np.ndarray, lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    following = np.arange(1, len(points) + 1)
    following[starts[1:] - 1] = starts[:-1]
    x, y = points[:, 0], points[:, 1]
    twice = np.add.reduceat(x * y[following] - x[following] * y, starts[:-1])
    return np.abs(twice) / 20000


def _crowd(size: List[int], rng: np.random.Generator) -> dict:
    """Uncompressed RLE of the whole image."""
    width, height = size
    cuts = np.unique(rng.integers(1, width * height, size=60))
    counts = np.diff(np.concatenate([[0], cuts, [width * height]]))
    return {'counts': counts.tolist(), 'size': [height, width]}


_NUMBERS = [repr(i / 100) for i in range(MAX_SIDE * 100 + 1)]
