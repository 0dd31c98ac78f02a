"""Make the demo's data: a small COCO-format data set of coloured shapes, the same on every run.

Every image has a textured background and two to five overlapping shapes of four classes. Shapes are annotated with
polygons; some images also have a crowd, a group of small dots annotated as one region (RLE, ``iscrowd=1``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import cv2
import numpy as np

CLASSES = ('disc', 'square', 'triangle', 'star')
_HUES = (0, 45, 85, 125)  # OpenCV's scale, 0 to 179; jittered, so that neighbouring classes differ in shape rather
_CROWD_SHARE = 0.1
_LEAST_VISIBLE = 0.5


def background(rng: np.random.Generator, size: int) -> np.ndarray:
    """A dim texture: uint8 BGR of shape (size, size, 3)."""
    image = np.zeros((size, size, 3))
    for cells in (3, 10, 40):
        noise = rng.uniform(0, 255, (cells, cells, 3))
        image += cv2.resize(noise, (size, size), interpolation=cv2.INTER_CUBIC) / 3
    angle, period = rng.uniform(0, np.pi), rng.uniform(6, 30)
    rows, cols = np.mgrid[:size, :size]
    stripes = np.sin((rows * np.sin(angle) + cols * np.cos(angle)) * 2 * np.pi / period)
    grey = image.mean(axis=2, keepdims=True)
    return np.clip(grey + 0.25 * (image - grey) + 20 * stripes[..., None], 0, 255).astype(np.uint8)


def outline(kind: int, center: np.ndarray, radius: float, angle: float) -> np.ndarray:
    """The corners of a shape: float64 of shape (n, 2), x and y in pixels."""
    corners = (24, 4, 3, 10)[kind]
    angles = angle + np.arange(corners) * 2 * np.pi / corners
    radii = np.full(corners, radius)
    if CLASSES[kind] == 'star':
        radii[1::2] *= 0.45
    return center + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def colour(rng: np.random.Generator, kind: int) -> Tuple[int, int, int]:
    """A bright colour around the class's hue, BGR."""
    hue = (_HUES[kind] + rng.integers(-12, 13)) % 180
    pixel = np.array([[[hue, rng.integers(170, 256), rng.integers(170, 256)]]], dtype=np.uint8)
    return tuple(int(value) for value in cv2.cvtColor(pixel, cv2.COLOR_HSV2BGR)[0, 0])


def mask_of(polygons: List[np.ndarray], size: int) -> np.ndarray:
    """The pixels inside any of the polygons: bool of shape (size, size)."""
    mask = np.zeros((size, size), dtype=np.uint8)
    for polygon in polygons:
        cv2.fillPoly(mask, [np.round(polygon).astype(np.int32)], 1)
    return mask.astype(bool)


def rle_of(mask: np.ndarray) -> Dict[str, Any]:
    """COCO's uncompressed RLE: lengths of alternating runs, column by column, starting with background."""
    flat = np.concatenate([[False], mask.flatten(order='F')])
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    counts = np.diff(np.concatenate([[0], changes, [mask.size]]))
    return {'counts': counts.tolist(), 'size': list(mask.shape)}


def box_of(mask: np.ndarray) -> List[float]:
    """COCO's box of a mask: x, y, width, height in pixels."""
    rows, cols = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [float(cols[0]), float(rows[0]), float(cols[-1] + 1 - cols[0]), float(rows[-1] + 1 - rows[0])]


def record(kind: int, mask: np.ndarray, segmentation: Any, crowd: bool) -> Dict[str, Any]:
    """An annotation without its ids."""
    return {
        'category_id': kind + 1,
        'bbox': box_of(mask),
        'area': float(mask.sum()),
        'iscrowd': int(crowd),
        'segmentation': segmentation,
    }


def add_shapes(rng: np.random.Generator, image: np.ndarray) -> List[Dict[str, Any]]:
    """Draw shapes, later ones over earlier ones; returns the records of those that stay mostly visible."""
    size = len(image)
    drawn = []
    for _ in range(rng.integers(2, 6)):
        kind = int(rng.integers(len(CLASSES)))
        radius = rng.uniform(0.09, 0.2) * size
        polygon = outline(kind, rng.uniform(radius, size - radius, 2), radius, rng.uniform(0, 2 * np.pi))
        mask = mask_of([polygon], size)
        if any((mask & other).sum() > (1 - _LEAST_VISIBLE) * other.sum() for _, other, _ in drawn):
            continue  # it would hide too much of another
        image[mask] = colour(rng, kind)
        cv2.polylines(image, [np.round(polygon).astype(np.int32)], True, (20, 20, 20), 1, cv2.LINE_AA)
        drawn.append((kind, mask, polygon))
    return [record(kind, mask, [np.round(polygon, 2).flatten().tolist()], crowd=False) for kind, mask, polygon in drawn]


def add_crowd(rng: np.random.Generator, image: np.ndarray) -> Dict[str, Any]:
    """Draw a group of small discs; returns its one record."""
    size = len(image)
    middle = rng.uniform(0.2 * size, 0.8 * size, 2)
    dots = [outline(0, middle + rng.normal(0, 0.06 * size, 2), 0.02 * size, 0) for _ in range(8)]
    mask = mask_of(dots, size)
    image[mask] = colour(rng, 0)
    return record(0, mask, rle_of(mask), crowd=True)


def make_split(folder: Path, name: str, images: int, size: int, seed: int) -> Path:
    """Write the images to ``folder/name`` and the annotations to ``folder/annotations``; returns the latter's path."""
    rng = np.random.default_rng(seed)
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / 'annotations').mkdir(exist_ok=True)
    image_records: List[Dict[str, Any]] = []
    annotations: List[Dict[str, Any]] = []
    for image_id in range(1, images + 1):
        image = background(rng, size)
        # The crowd first: it is the one that may be hidden.
        records = [add_crowd(rng, image)] if rng.uniform() < _CROWD_SHARE else []
        records += add_shapes(rng, image)
        file_name = f'{image_id:06d}.jpg'
        if not cv2.imwrite(str(folder / name / file_name), image):
            raise OSError(f'cannot write {folder / name / file_name}')
        image_records.append({'id': image_id, 'file_name': file_name, 'height': size, 'width': size})
        for annotation in records:
            annotations.append({'id': len(annotations) + 1, 'image_id': image_id, **annotation})
    categories = [{'id': number, 'name': name} for number, name in enumerate(CLASSES, start=1)]
    path = folder / 'annotations' / f'{name}.json'
    path.write_text(
        json.dumps({'images': image_records, 'annotations': annotations, 'categories': categories}), encoding='utf-8'
    )
    return path


def main() -> None:
    """Write both splits."""
    parser = argparse.ArgumentParser(description='Make the demo data set (COCO format).')
    parser.add_argument('folder', type=Path, help='where to write train/, val/ and annotations/')
    parser.add_argument('--train', type=int, default=400, metavar='N', help='number of training images (400)')
    parser.add_argument('--val', type=int, default=100, metavar='N', help='number of validation images (100)')
    parser.add_argument('--size', type=int, default=160, metavar='PIXELS', help='width and height of an image (160)')
    args = parser.parse_args()
    for seed, (name, images) in enumerate((('train', args.train), ('val', args.val))):
        path = make_split(args.folder, name, images, args.size, seed)
        print(f'{images} images of {args.size} x {args.size} pixels: {path}')


if __name__ == '__main__':
    main()
