"""mmdet's ``COCOPanoptic`` over a store: the segments of an image are made when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Dict, Iterator, List

from mmdet.datasets.api_wrappers import COCOPanoptic

from mmshared.annotations.panoptic import PanopticStore


class _SegmentsByImage(Mapping):
    """Image id -> its segments, in fresh objects; like stock's ``defaultdict``, empty for an id that is not there."""

    def __init__(self, store: PanopticStore) -> None:
        self._store = store

    def __getitem__(self, image_id: Any) -> List[Dict[str, Any]]:
        return self._store.segments(image_id)

    def __contains__(self, image_id: Any) -> bool:
        return image_id in self._store

    def get(self, image_id: Any, default: Any = None) -> Any:
        """As for a dict."""
        return self._store.segments(image_id) if image_id in self._store else default

    def __iter__(self) -> Iterator[Any]:
        return iter(self._store.image_ids)

    def __len__(self) -> int:
        return len(self._store.image_ids)


class SharedCOCOPanoptic(COCOPanoptic):
    """What panoptic metrics ask of ``COCOPanoptic``, at a memory cost that does not grow with processes.

    ``cats``, ``get_cat_ids`` and the segments by image (``imgToAnns``, ``img_ann_map``) come from the store. The image
    records (``imgs``, ``get_img_ids``) are decoded when first asked for; so is everything else (``anns``,
    ``catToImgs``, ``cat_img_map``), which then takes what it takes in stock.

    Args:
        store: the annotations.

    Raises:
        AnnotationFileError: the file has no usable categories.
    """

    def __init__(self, store: PanopticStore) -> None:
        self.store = store
        categories = store.categories
        self.dataset = {'categories': categories}
        self.cats = {category['id']: category for category in categories}
        self.imgToAnns = self.img_ann_map = _SegmentsByImage(store)

    def __getattr__(self, name: str) -> Any:
        if name == 'imgs':
            self.imgs = {}
            for image in self.store.images:
                image['segm_file'] = image['file_name'].replace('.jpg', '.png')
                self.imgs[image['id']] = image
        elif name in ('anns', 'catToImgs', 'cat_img_map'):
            self._index_segments()
        else:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        return self.__dict__[name]

    def _index_segments(self) -> None:
        self.anns, self.catToImgs = {}, {}
        for image_id in self.store.image_ids:
            for segment in self.store.segments(image_id):
                self.anns.setdefault(segment['id'], []).append(segment)
                self.catToImgs.setdefault(segment['category_id'], []).append(image_id)
        self.cat_img_map = self.catToImgs

    def __reduce__(self) -> tuple:
        return type(self), (self.store,)
