"""pycocotools' ``COCO`` over an annotation store."""

from __future__ import annotations

import gc
import os
from itertools import chain
from types import MappingProxyType
from typing import Any, List, Mapping, Optional, Union

import numpy as np
from mmdet.datasets.api_wrappers import COCO

from mmshared.annotations import AnnotationStore
from mmshared.datasets.remote import open_annotations

from .annotation_table import AnnotationTable
from .lazy import LazyDict, LazyLists
from .quiet import quiet
from .selection import Selection, area_condition, category_condition, crowd_condition, within
from .sources import Annotations, ByCategory, ByImage, Images, Members


class SharedCOCO(COCO):
    """The ``COCO`` of mmdet, and so of pycocotools, whose records are made when somebody asks for them.

    Every method and attribute is there and gives what stock gives. Opening maps the store that all processes of the
    node share, and costs no memory per annotation. ``getAnnIds`` reads columns. Nothing is printed but by :meth:`info`,
    :meth:`showAnns` and :meth:`download`, whose purpose it is.

    *Records have a life.* A record, an image's list, or ``dataset['annotations']`` is made when it is first asked for.
    From then on it is that very object whichever way it is asked for, as evaluators change records in place
    (``gt['ignore'] = ...``) and expect to find that again. :meth:`release`, or the end of a ``with`` block, forgets all
    of them and what was changed in them::

        with SharedCOCO('instances_val2017.json') as coco:
            evaluation = COCOeval(coco, coco.loadRes(results), 'bbox')
            ...

    Attributes can be assigned as in stock (``coco.cats = ...``, ``coco.dataset = {...}; coco.createIndex()``); what was
    assigned stays when records are released.

    It pickles, and deep-copies, to the path of the store and the records that are alive.

    Args:
        annotation_file: path or address of the annotation file, or path of a store; None for an empty one.
        backend_args: as for ``mmengine.fileio.get_local_path``.
        cache_dir: folder of the stores; see :func:`mmshared.annotations.open_store`.

    Raises:
        AnnotationFileError: the file is nothing that pycocotools would take; names file, record and field.
        FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
        FetchError, CacheError: see :func:`mmshared.datasets.remote.open_annotations`.
    """

    _table: Optional[AnnotationTable] = None
    _own: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        annotation_file: Union[str, os.PathLike, None] = None,
        *,
        backend_args: Optional[dict] = None,
        cache_dir: Optional[str] = None,
    ) -> None:
        super().__init__()
        if annotation_file is not None:
            self._open(open_annotations(annotation_file, backend_args, cache_dir, refuse=False), cache_dir)

    @classmethod
    def from_store(cls, store: AnnotationStore, cache_dir: Optional[str] = None) -> SharedCOCO:
        """The ``COCO`` of a store that is open.

        Args:
            store: the store.
            cache_dir: where arrays that are made for looking things up go if the store's folder cannot be written.
        """
        coco = cls()
        coco._open(store, cache_dir)
        return coco

    def _open(self, store: AnnotationStore, cache_dir: Optional[str]) -> None:
        table = AnnotationTable(store, cache_dir)
        self.dataset = LazyDict().attach(Members(table))
        self.imgs, self.anns = LazyDict().attach(Images(table)), LazyDict().attach(Annotations(table))
        self.imgToAnns = self.img_ann_map = LazyLists().attach(ByImage(table))
        self.catToImgs = self.cat_img_map = LazyLists().attach(ByCategory(table))
        if 'categories' in self.dataset:
            self.dataset['categories'] = categories = self.dataset['categories']
            self.cats = {category['id']: category for category in categories}
        own = ('dataset', 'imgs', 'anns', 'imgToAnns', 'catToImgs')
        self._table, self._own = table, {name: getattr(self, name) for name in own}

    # --- life of the records
    def release(self) -> None:
        """Forgets all records and lists that were made, and what was changed in them. Categories stay as they are."""
        if self._table is not None:
            self._table.release()
            for part in self._own.values():
                part.release()
            gc.collect()  # else a few freed objects that Python keeps for reuse hold the pages of all others

    def __enter__(self) -> SharedCOCO:
        return self

    def __exit__(self, *error: Any) -> None:
        self.release()

    # --- pycocotools' methods
    def createIndex(self) -> None:
        """Index ``dataset``, whatever it holds by now, as stock does."""
        with quiet():
            super().createIndex()

    def loadRes(self, resFile: Union[str, List[dict], np.ndarray]) -> Any:
        """Return results as stock does: an ordinary ``pycocotools.coco.COCO`` of their own."""
        with quiet():
            return super().loadRes(resFile)

    def loadNumpyAnnotations(self, data: np.ndarray) -> List[dict]:
        """Return rows of (image id, x, y, w, h, score, category id), shape (N, 7), as a list of dicts."""
        with quiet():
            return super().loadNumpyAnnotations(data)

    def getAnnIds(
        self, imgIds: Any = (), catIds: Any = (), areaRng: Any = (), iscrowd: Optional[bool] = None
    ) -> List[Any]:
        """Return ids of the annotations that meet all conditions, as stock does; makes no record.

        Args:
            imgIds: image ids, or one; the result is in their order.
            catIds: category ids, or one.
            areaRng: an area larger than its first and smaller than its second number, in square pixels.
            iscrowd: whether ``iscrowd``.

        Raises:
            KeyError: a record has not got what a condition is about.
        """
        if not self._shared:
            return super().getAnnIds(imgIds, catIds, areaRng, iscrowd)
        table = self._table
        chosen = self._of_images(imgIds if _is_array_like(imgIds) else [imgIds])
        categories = catIds if _is_array_like(catIds) else [catIds]
        if len(categories) != 0:
            condition = category_condition(categories, table)
            chosen = chosen.where(condition, lambda annotation: annotation['category_id'] in categories)
        if len(areaRng) != 0:
            condition = area_condition(areaRng, table)
            chosen = chosen.where(condition, lambda annotation: within(annotation['area'], areaRng))
        if iscrowd != None:  # noqa: E711
            condition = crowd_condition(iscrowd, table)
            chosen = chosen.where(condition, lambda annotation: annotation['iscrowd'] == iscrowd)
        return chosen.ids()

    def loadAnns(self, ids: Any = ()) -> Optional[List[dict]]:
        """Return the records with these ids (or the one id), as stock does."""
        if self._is_own('anns') and _is_array_like(ids):
            self.anns.prepare(ids)
        return super().loadAnns(ids)

    @property
    def _shared(self) -> bool:
        """Whether annotations are still those of the store, some of which may have been handed out."""
        return self._is_own('dataset') and self._is_own('imgToAnns') and self.dataset.pending('annotations')

    def _is_own(self, attribute: str) -> bool:
        return getattr(self, attribute) is self._own.get(attribute)

    def _of_images(self, image_ids: Any) -> Selection:
        table = self._table
        if len(image_ids) == 0:
            return Selection(table, np.asarray(table.lookup.rows, np.int64))
        parts, given = [], []
        for image_id in image_ids:
            if self.imgToAnns.made(image_id):  # its list may have been changed
                records = self.imgToAnns[image_id]
                parts.append(range(-1 - len(given), -1 - len(given) - len(records), -1))
                given += records
            elif image_id in self.imgToAnns:
                parts.append(table.lookup.rows_of(table.lookup.image(image_id)))
        return Selection(table, np.fromiter(chain.from_iterable(parts), np.int64, sum(map(len, parts))), given)


def _is_array_like(value: Any) -> bool:
    return hasattr(value, '__iter__') and hasattr(value, '__len__')
