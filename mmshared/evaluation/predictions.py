"""What a rank has predicted so far, as a few growing arrays instead of a dict per image and a list per mask."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from mmengine.fileio.handlers.json_handler import set_default

from .columns import Column
from .errors import RankError

Result = Tuple[Dict[str, Any], Dict[str, Any]]
#: Bits of the column ``flags``: what else the image's result has.
HAS_MASKS, HAS_MASK_SCORES, HAS_FIFTH = 1, 2, 4


def to_json(value: Any) -> bytes:
    """The JSON text that ``mmengine.dump`` writes for ``value``."""
    return json.dumps(value, default=set_default).encode()


class Predictions:
    """Stands for the list ``results`` of mmdet's ``CocoMetric``: takes its tuples, and gives equal ones back.

    What stock would write into a file anyway is kept as JSON text (ids of images, masks, instances): it may be of any
    type, and its text is small. Numbers keep their dtype.

    Attributes:
        columns: by name. A row an image: ``count`` (detections), ``flags``, ``id_size``, ``truth_size`` (bytes). A row
            a detection: ``box`` (four numbers: x1, y1, x2, y2 in pixels), ``score``, ``label``; of those images only
            that have them, ``mask_score``, ``mask_size`` (bytes), ``fifth`` (a box's fifth number). Texts: ``id``,
            ``mask``, ``truth``.
        failure: why something is missing, if so: whoever asks for the results then gets a RankError.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.failure: Optional[str] = None
        kinds: Dict[str, Optional[type]] = dict.fromkeys(('count', 'id_size', 'mask_size', 'truth_size'), np.int64)
        kinds.update(dict.fromkeys(('flags', 'id', 'mask', 'truth'), np.uint8))
        kinds.update(dict.fromkeys(('box', 'score', 'label', 'mask_score', 'fifth')))
        self.columns: Dict[str, Column] = {name: Column(dtype) for name, dtype in kinds.items()}
        self._images = 0

    def __len__(self) -> int:
        return self._images

    def extend(self, results: Sequence[Result]) -> None:
        """As of a list."""
        for result in results:
            self.append(result)

    def append(self, result: Result) -> None:
        """Take one image's ground truth and prediction, as ``CocoMetric.process`` makes them.

        Raises:
            IndexError: there are fewer boxes, scores or masks than labels.
            TypeError: labels are no integers, or something cannot be written as JSON.
            KeyError: an instance lacks a key.
        """
        truth, found = result
        image_id = found.get('img_id', self._images)
        texts = {'id': [to_json(image_id)], 'truth': [_truth_text(truth)] if 'anns' in truth else []}
        numbers, flags = _numbers(image_id, found)
        count = len(numbers['label'])
        if 'masks' in found:
            flags |= HAS_MASKS
            texts['mask'] = _mask_texts(image_id, found['masks'], count)
        # Nothing is refused from here on, so an image is taken whole or not at all.
        for name, values in numbers.items():
            self.columns[name].extend(values)
        for name, parts in texts.items():
            self.columns[name].extend(np.frombuffer(b''.join(parts), np.uint8))
            self.columns[f'{name}_size'].extend(np.array([len(part) for part in parts], np.int64))
        self.columns['count'].extend(np.array([count], np.int64))
        self.columns['flags'].extend(np.array([flags], np.uint8))
        self._images += 1

    def __getitem__(self, index: Any) -> Any:
        """As of a list; makes objects, and takes its time."""
        return list(self)[index]

    def __iter__(self) -> Iterator[Result]:
        """The tuples that were taken. For whoever looks into ``results``: it makes objects, and takes its time."""
        at = dict.fromkeys(('id', 'truth', 'mask'), 0)
        rows = dict.fromkeys(('label', 'mask', 'mask_score', 'fifth', 'truth'), 0)

        def text(name: str, row: int) -> Any:
            size = int(self.columns[f'{name}_size'].copy(row, row + 1)[0])
            at[name] += size
            return json.loads(bytes(self.columns[name].data[at[name] - size : at[name]]))

        def some(name: str, row: str, count: int, width: int = 1) -> np.ndarray:
            return self.columns[name].copy(rows[row] * width, (rows[row] + count) * width)

        if self.failure is not None:
            raise RankError(f'predictions could not be used: {self.failure}')
        for image in range(self._images):
            count, flags = int(self.columns['count'].copy(image, image + 1)[0]), self.columns['flags'].data[image]
            found = {
                'img_id': text('id', image),
                'bboxes': some('box', 'label', count, 4).reshape(-1, 4),
                'scores': some('score', 'label', count),
                'labels': some('label', 'label', count),
            }
            if flags & HAS_FIFTH:
                found['bboxes'] = np.column_stack([found['bboxes'], some('fifth', 'fifth', count)])
                rows['fifth'] += count
            if flags & HAS_MASKS:
                found['masks'] = [text('mask', rows['mask'] + i) for i in range(count)]
                rows['mask'] += count
            if flags & HAS_MASK_SCORES:
                found['mask_scores'] = some('mask_score', 'mask_score', count)
                rows['mask_score'] += count
            rows['label'] += count
            truth = {'img_id': found['img_id']}
            if len(self.columns['truth_size'].data):
                truth.update(text('truth', image))
            yield truth, found


def _numbers(image_id: Any, found: Dict[str, Any]) -> Tuple[Dict[str, np.ndarray], int]:
    """The columns of one image's detections, and its flags. One detection a label, as in stock."""
    labels = np.asarray(found['labels'])
    if labels.dtype.kind == 'b':
        labels = labels.astype(np.int64)
    if labels.size and (labels.ndim != 1 or labels.dtype.kind not in 'iu'):
        raise TypeError(
            f'The labels of image {image_id!r} have dtype {labels.dtype} and shape {labels.shape}, should be integers, '
            'one a detection'
        )
    count = labels.size
    boxes, scores = np.asarray(found['bboxes'])[:count], np.asarray(found['scores'])[:count]
    shape = boxes.shape
    if count and (len(shape) != 2 or shape[0] < count or shape[1] < 4 or scores.size < count):
        raise IndexError(
            f'Image {image_id!r} has {count} labels, but boxes of shape {shape} and scores of shape {scores.shape}, '
            f'should be ({count}, 4) and ({count},)'
        )
    numbers, flags = {'label': labels, 'score': scores.reshape(count, -1)[:, 0] if count else scores[:0]}, 0
    numbers['box'] = boxes[:, :4] if count else np.zeros(0, boxes.dtype)
    if len(shape) == 2 and shape[1] == 5:
        numbers['fifth'], flags = boxes[:, 4], HAS_FIFTH
    if 'mask_scores' in found:
        mask_scores = np.asarray(found['mask_scores']).reshape(-1)
        if mask_scores.size < count:
            raise IndexError(f'Image {image_id!r} has {count} labels, but {mask_scores.size} mask scores')
        numbers['mask_score'] = mask_scores[:count]
        flags |= HAS_MASK_SCORES
    return numbers, flags


def _mask_texts(image_id: Any, masks: Sequence[Dict[str, Any]], count: int) -> List[bytes]:
    if len(masks) < count:
        raise IndexError(f'Image {image_id!r} has {count} labels, but {len(masks)} masks')
    return [to_json(_readable(mask)) for mask in masks[:count]]


def _readable(mask: Dict[str, Any]) -> Dict[str, Any]:
    """An RLE that JSON can hold: pycocotools encodes to bytes."""
    if isinstance(mask['counts'], bytes):
        return {**mask, 'counts': mask['counts'].decode()}
    return mask


def _truth_text(truth: Dict[str, Any]) -> bytes:
    """Size and instances of an image, as the records that mmdet's ``gt_to_coco_json`` makes of them."""
    annotations = []
    for instance in truth['anns']:
        x1, y1, x2, y2 = instance['bbox'][0], instance['bbox'][1], instance['bbox'][2], instance['bbox'][3]
        box = [x1, y1, x2 - x1, y2 - y1]
        annotation = {
            'bbox': box,
            'iscrowd': instance.get('ignore_flag', 0),
            'category_id': int(instance['bbox_label']),
            'area': box[2] * box[3],
        }
        mask = instance.get('mask', None)
        if mask:
            annotation['segmentation'] = _readable(mask) if isinstance(mask, dict) else mask
        annotations.append(annotation)
    return to_json({'width': truth['width'], 'height': truth['height'], 'anns': annotations})
