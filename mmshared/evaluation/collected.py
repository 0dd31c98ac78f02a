"""The predictions of all ranks as stock would have them in one list, as arrays."""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from .columns import Texts, ragged
from .predictions import HAS_FIFTH, HAS_MASK_SCORES, HAS_MASKS, Predictions, Result


class Part(NamedTuple):
    """What one rank has.

    Attributes:
        images: how many.
        columns: those of :class:`~.predictions.Predictions`, as arrays.
    """

    images: int
    columns: Dict[str, np.ndarray]


class Order(NamedTuple):
    """Which image of which rank comes when.

    Attributes:
        part, image: int64, shape (I,): the rank, and which of its images.
        first: int64, shape (P,): how many images the ranks before have.
    """

    part: np.ndarray
    image: np.ndarray
    first: np.ndarray

    @classmethod
    def interleaved(cls, images: Sequence[int], size: int) -> Order:
        """The first image of each rank, the second of each, ...: a sampler deals them out like this."""
        part = np.repeat(np.arange(len(images)), images)
        image = np.concatenate([np.arange(count) for count in images])
        order = np.lexsort((part, image))[:size]
        return cls(part[order], image[order], np.cumsum(images) - np.array(images))

    @property
    def rows(self) -> np.ndarray:
        """Where these images are when all ranks' images are put one after the other."""
        return self.first[self.part] + self.image


class Collected(NamedTuple):
    """Detections of all images, in the order of stock's results; I images with N detections.

    Attributes:
        ids: the images' ids, as JSON gives them back.
        id_texts: the same as JSON.
        counts: int64, shape (I,): detections of each image.
        boxes: shape (N, 4): x1, y1, x2, y2 in pixels, in the dtype they were predicted in.
        scores, mask_scores: shape (N,); those of the boxes where there are no others for masks.
        labels: integers, shape (N,).
        masks: the detections' RLE as JSON; None if the first image has none, which decides in stock.
        fifth: shape (N,): the fifth number of a box, NaN for a box without; None if no box has one.
        truths: the images' sizes and instances as JSON; None if the ground truth is in a file.
        ranks: how many there are.
    """

    ids: List[Any]
    id_texts: List[bytes]
    counts: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    mask_scores: np.ndarray
    labels: np.ndarray
    masks: Optional[Texts]
    fifth: Optional[np.ndarray]
    truths: Optional[Texts]
    ranks: int

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of(cls, parts: Sequence[Part], size: Optional[int] = None) -> Collected:
        """Put the ranks' ``parts`` into stock's order, and leave out what is beyond ``size`` images.

        Raises:
            ValueError: there is not a single image.
            KeyError: the first image has masks, and another one has none.
        """
        images = [part.images for part in parts]
        order = Order.interleaved(images, sum(images) if size is None else size)
        if not order.part.size:
            raise ValueError('There is nothing to evaluate: no image was predicted. Is the dataset empty?')
        whole = {name: _joined([part.columns[name] for part in parts]) for name in parts[0].columns}
        chosen = order.rows
        counts, flags = whole['count'], whole['flags']
        rows = ragged((np.cumsum(counts) - counts)[chosen], counts[chosen])
        ids = _texts(parts, 'id').take(chosen).all()
        scores = whole['score'][rows]
        return cls(
            ids=json.loads(b'[' + b','.join(ids) + b']'),
            id_texts=ids,
            counts=counts[chosen],
            boxes=whole['box'].reshape(-1, 4)[rows],
            scores=scores,
            mask_scores=_filled(scores, whole['mask_score'], counts, flags & HAS_MASK_SCORES != 0, rows),
            labels=whole['label'][rows],
            masks=_masks(parts, counts, flags & HAS_MASKS != 0, chosen, ids),
            fifth=_fifth(whole, counts, flags & HAS_FIFTH != 0, rows),
            truths=_texts(parts, 'truth').take(chosen) if whole['truth_size'].size else None,
            ranks=len(parts),
        )

    @classmethod
    def of_results(cls, results: Sequence[Result]) -> Collected:
        """The same of stock's list of results."""
        predictions = results if isinstance(results, Predictions) else Predictions()
        if predictions is not results:
            predictions.extend(results)
        columns = {name: column.array() for name, column in predictions.columns.items()}
        return cls.of([Part(len(predictions), columns)])

    def keep(self, rows: np.ndarray) -> Collected:
        """With these detections only: bool, shape (N,)."""
        counts = np.bincount(self.image_rows[rows], minlength=len(self))
        chosen = {name: getattr(self, name)[rows] for name in ('boxes', 'scores', 'mask_scores', 'labels')}
        masks = None if self.masks is None else self.masks.take(np.flatnonzero(rows))
        fifth = None if self.fifth is None else self.fifth[rows]
        return Collected(**{**self._asdict(), **chosen, 'counts': counts, 'masks': masks, 'fifth': fifth})

    @property
    def image_rows(self) -> np.ndarray:
        """int64, shape (N,): which image each detection is of."""
        return np.repeat(np.arange(len(self.ids)), self.counts)

    def xywh(self) -> np.ndarray:
        """float64, shape (N, 4): x, y, width, height in pixels; computed as stock does, in doubles."""
        boxes = self.boxes.astype(np.float64)
        boxes[:, 2:] -= boxes[:, :2]
        return boxes


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """All of them; those without anything in them have no say in the dtype."""
    some = [array for array in arrays if array.size]
    return np.concatenate(some) if len(some) > 1 else some[0] if some else arrays[0]


def _texts(parts: Sequence[Part], name: str) -> Texts:
    return Texts.joined([part.columns[name].data for part in parts], [part.columns[f'{name}_size'] for part in parts])


def _present(counts: np.ndarray, has: np.ndarray) -> np.ndarray:
    """For each detection its row among those of the images that ``has`` says, -1 for one of another image."""
    mine = np.repeat(has, counts)
    return np.where(mine, np.cumsum(mine) - 1, -1)


def _filled(
    values: np.ndarray, others: np.ndarray, counts: np.ndarray, has: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """``values``, those of some images replaced by ``others``, which has these only."""
    if not others.size:
        return values
    at = _present(counts, has)[rows]
    return np.where(at < 0, values, others[at])


def _fifth(whole: Dict[str, np.ndarray], counts: np.ndarray, has: np.ndarray, rows: np.ndarray) -> Optional[np.ndarray]:
    if not has.any():
        return None
    return _filled(np.full(rows.size, np.nan), whole['fifth'], counts, has, rows)


def _masks(
    parts: Sequence[Part], counts: np.ndarray, has: np.ndarray, chosen: np.ndarray, ids: List[bytes]
) -> Optional[Texts]:
    if not has[chosen[0]]:
        return None
    without = np.flatnonzero(~has[chosen])
    if without.size:
        raise KeyError(f'masks: the first image has some, image {ids[int(without[0])].decode()} has none')
    before = np.cumsum(counts * has) - counts * has
    return _texts(parts, 'mask').take(ragged(before[chosen], counts[chosen]))
