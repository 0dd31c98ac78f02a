"""The packages that can match detections with objects, each behind one function of a category's pairs.

All get the same small dicts, with ids and images numbered by us, so that no backend meets an id it cannot take.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Type

import numpy as np

from .quiet import quiet
from .records import Piece, RecordMaker

Curves = Tuple[np.ndarray, np.ndarray]


class Settings(NamedTuple):
    """What a ``COCOeval``'s ``params`` are given.

    Attributes:
        iou_type: 'bbox' or 'segm'.
        iou_thrs: T thresholds.
        max_dets: M numbers of detections per image, increasing.
    """

    iou_type: str
    iou_thrs: Sequence[float]
    max_dets: List[int]

    def apply(self, params: Any, units: List[int]) -> None:
        """Set them, and one category."""
        params.imgIds, params.catIds = units, [1]
        params.maxDets, params.iouThrs, params.useCats = list(self.max_dets), self.iou_thrs, 1


class Backend:
    """One package.

    Attributes:
        package: its distribution, for pip.
        module: its module.
    """

    package: str
    module: str

    @classmethod
    def check_installed(cls, name: str) -> None:
        """Raises ImportError if the package is missing: says what to do."""
        if find_spec(cls.module) is None:
            raise ImportError(
                f"SharedCocoMetric(backend='{name}') needs the package {cls.package}, which is not installed: "
                f'pip install {cls.package}'
            )

    def takes(self, records: RecordMaker) -> bool:
        """Whether it is known to give pycocotools' numbers for these records."""
        raise NotImplementedError

    def curves(self, records: RecordMaker, settings: Settings) -> Curves:
        """Evaluate one category.

        Returns:
            precision, float64, shape (T, R, A, M), and recall, float64, shape (T, A, M), for R recalls and A ranges of
            area; -1 where there is nothing to find.
        """
        raise NotImplementedError


class PyCocoTools(Backend):
    """The reference, in one thread of Python."""

    package = module = 'pycocotools'

    def takes(self, records: RecordMaker) -> bool:
        """See the parent."""
        return True

    def curves(self, records: RecordMaker, settings: Settings) -> Curves:
        """See the parent."""
        from pycocotools.cocoeval import COCOeval

        found: List[List[Any]] = []
        units: List[int] = []
        with quiet():
            evaluation = COCOeval(iouType=settings.iou_type)
            for piece in records.pieces():
                evaluation = COCOeval(_Coco(piece.objects), _Coco(piece.detections), settings.iou_type)
                settings.apply(evaluation.params, piece.units)
                evaluation.evaluate()
                results = iter(map(_kept, evaluation.evalImgs))
                found = found or [[] for _ in evaluation.params.areaRng]
                for of_range in found:
                    of_range += (next(results) for _ in piece.units)
                units += piece.units
            settings.apply(evaluation.params, units)
            evaluation.evalImgs = [result for of_range in found for result in of_range]
            evaluation._paramsEval = copy.copy(evaluation.params)
            evaluation.accumulate()
        return evaluation.eval['precision'][:, :, 0], evaluation.eval['recall'][:, 0]


def _kept(result: Any) -> Any:
    """What ``accumulate`` reads of an image's result, in an eighth of the memory."""
    if result is None:
        return None
    kept = {name: result[name] for name in ('dtScores', 'dtIgnore', 'gtIgnore')}
    return {**kept, 'dtMatches': result['dtMatches'] != 0}


class FasterCocoEval(Backend):
    """The same in C++.

    It differs where a box has a negative side, and where a number is NaN, which it refuses: such categories are left to
    pycocotools.
    """

    package, module = 'faster-coco-eval', 'faster_coco_eval'

    def takes(self, records: RecordMaker) -> bool:
        """See the parent."""
        return records.are_ordinary

    def curves(self, records: RecordMaker, settings: Settings) -> Curves:
        """See the parent."""
        from faster_coco_eval.core import COCOeval_faster

        pieces = list(records.plan())
        separate = len(pieces) > 1
        found: List[List[Any]] = []
        units: List[int] = []
        for piece in map(records.make, pieces):
            evaluation = COCOeval_faster(
                _Coco(piece.objects), _Coco(piece.detections), settings.iou_type, separate_eval=separate
            )
            settings.apply(evaluation.params, piece.units)
            evaluation.evaluate()
            if separate:
                results = iter(evaluation._evalImgs_cpp)
                found = found or [[] for _ in evaluation.params.areaRng]
                for of_range in found:
                    of_range += (next(results) for _ in piece.units)
                units += piece.units
        if separate:
            evaluation._paramsEval.imgIds = units
            evaluation._evalImgs_cpp = [result for of_range in found for result in of_range]
        evaluation.accumulate()
        return np.asarray(evaluation.eval['precision'])[:, :, 0], np.asarray(evaluation.eval['recall'])[:, 0]


class UltraFast(Backend):
    """The same in Rust, in several threads.

    It differs where an object's id is 0 and where a box is NaN, and never comes back where masks that are compared
    have several sizes: such categories are left to pycocotools.
    """

    package, module = 'ultrafast-pycocotools', 'ultrafast_pycocotools'

    def takes(self, records: RecordMaker) -> bool:
        """See the parent."""
        return records.are_ordinary and not records.have_zero_id

    def curves(self, records: RecordMaker, settings: Settings) -> Curves:
        """See the parent."""
        from ultrafast_pycocotools import COCO, COCOeval

        pieces = list(records.pieces())
        if settings.iou_type == 'segm' and _sizes_differ(pieces):
            return PyCocoTools().curves(records, settings)
        units = [unit for piece in pieces for unit in piece.units]
        images = [{'id': unit, 'height': 1, 'width': 1} for unit in units]

        def coco(name: str) -> Any:
            annotations = [record for piece in pieces for record in getattr(piece, name)]
            return COCO({'images': images, 'categories': [{'id': 1}], 'annotations': annotations}, verbose=False)

        evaluation = COCOeval(
            coco('objects'), coco('detections'), settings.iou_type, print_function=lambda *args, **kwargs: None
        )
        settings.apply(evaluation.params, units)
        evaluation.evaluate()
        evaluation.accumulate()
        return np.asarray(evaluation.eval['precision'])[:, :, 0], np.asarray(evaluation.eval['recall'])[:, 0]


def _sizes_differ(pieces: Sequence[Piece]) -> bool:
    """Whether masks that may be compared have several sizes."""
    sizes: Dict[int, tuple] = {}
    masks = (record for piece in pieces for record in (*piece.objects, *piece.detections))
    found = ((record['image_id'], tuple(record['segmentation']['size'])) for record in masks)
    return any(sizes.setdefault(unit, size) != size for unit, size in found)


BACKENDS: Dict[str, Type[Backend]] = {
    'faster_coco_eval': FasterCocoEval,
    'pycocotools': PyCocoTools,
    'ultrafast': UltraFast,
}


class _Coco:
    """As much of pycocotools' ``COCO`` as evaluation asks for, over records that are all to be evaluated."""

    def __init__(self, records: List[Dict[str, Any]]) -> None:
        self._records = records
        self.imgs = _Sizes()

    def getImgIds(self, *args: Any, **kwargs: Any) -> List[int]:
        """Nobody needs them: they are set."""
        return []

    def getCatIds(self, *args: Any, **kwargs: Any) -> List[int]:
        """Likewise."""
        return []

    def getAnnIds(self, *args: Any, **kwargs: Any) -> range:
        """All records'."""
        return range(len(self._records))

    def loadAnns(self, ids: Any) -> List[Dict[str, Any]]:
        """All records."""
        return self._records

    def annToRLE(self, record: Dict[str, Any]) -> Dict[str, Any]:
        """Masks are RLE already."""
        return record['segmentation']


class _Sizes(dict):
    """Sizes of images, which nobody needs: masks are RLE already."""

    def __missing__(self, image: int) -> Dict[str, int]:
        return {'id': image, 'height': 1, 'width': 1}
