"""What mmdet's ``CocoDataset`` would choke on, found when the store is built and told with file, record and field."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Sequence

import numpy as np

from ..errors import AnnotationFileError, shorten
from .detection import is_kept
from .ingest import AnnotationIngest, ImageIngest


class _RawTexts:
    """Records that are kept as text, by their position in the file."""

    def __init__(self, lengths: np.ndarray, data: Sequence[int]) -> None:
        self._lengths, self._ends, self._data = lengths, np.cumsum(lengths, dtype=np.int64), data

    def __getitem__(self, position: int) -> Optional[Dict[str, Any]]:
        end, length = int(self._ends[position]), int(self._lengths[position])
        return json.loads(bytes(self._data[end - length : end])) if length else None


class DetectionRules:
    """Applies mmdet's rules to records with values of any type.

    Args:
        images, annotations: the tables; their rows: arrays of their ``row`` dtype.

    Attributes:
        violation: the first thing that stock would raise for, paths of images aside; None if there is none.
    """

    def __init__(
        self, images: ImageIngest, image_rows: np.ndarray, annotations: AnnotationIngest, annotation_rows: np.ndarray
    ) -> None:
        self._images, self._annotations = images, annotations
        self._image_rows, self._annotation_rows = image_rows, annotation_rows
        self._image_texts = _RawTexts(image_rows['raw'], images.spools['raw'].map())
        self._annotation_texts = _RawTexts(annotation_rows['raw'], annotations.spools['raw'].map())
        self.violation: Optional[AnnotationFileError] = None

    def check_image(self, position: int) -> None:
        """Notes what is wrong with the odd image record at ``position``."""
        record = self._image_texts[position]
        for field in ('height', 'width'):
            if field not in record:
                self._note(self._images.error(position, record, 'is missing', field))

    def keeps(self, position: int, image_position: int) -> bool:
        """Whether mmdet keeps the annotation at ``position``; False after noting that it would raise."""
        row = self._annotation_rows[position]
        annotation = self._annotation_texts[position]
        known = annotation or {'bbox': row['bbox'].tolist(), 'area': float(row['area']), 'id': int(row['id'])}
        image = self._image_texts[image_position]
        if image is None:
            image = {field: int(self._image_rows[image_position][field]) for field in ('height', 'width')}
        try:
            return is_kept(known, image['width'], image['height'])
        except KeyError as error:
            field = str(error.args[0])
            if field in ('width', 'height'):
                return False  # noted with the image
            self._note(self._annotations.error(position, known, 'is missing', field))
        except (TypeError, ValueError, OverflowError) as error:
            self._note(self._blame(position, known, image_position, image, error))
        return False

    def _blame(
        self, position: int, annotation: Dict[str, Any], image_position: int, image: Dict[str, Any], error: Exception
    ) -> AnnotationFileError:
        """The error for a value of the wrong kind: looks for the field that has it."""
        for field in ('width', 'height'):
            if not _is_real(image[field]):
                problem = f'is {shorten(image[field])}, should be a number'
                return self._images.error(image_position, image, problem, field)
        box = annotation['bbox']
        if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(map(_is_real, box)):
            problem = f'is {shorten(box)}, should be four numbers: x, y, width, height'
            return self._annotations.error(position, annotation, problem, 'bbox')
        if not _is_real(annotation.get('area')):
            problem = f'is {shorten(annotation.get("area"))}, should be a number'
            return self._annotations.error(position, annotation, problem, 'area')
        return self._annotations.error(position, annotation, f'cannot be used ({error})')

    def _note(self, error: AnnotationFileError) -> None:
        self.violation = self.violation or error


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float))
