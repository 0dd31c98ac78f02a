"""mmdet's LVIS datasets, with shared annotations. They do not need the ``lvis`` package to load."""

from __future__ import annotations

from typing import Any, List

from mmdet.datasets import LVISV05Dataset, LVISV1Dataset
from mmdet.registry import DATASETS

from mmshared.annotations import AnnotationFileError, AnnotationStore, Paths

from .annotations import SharedAnnotations

_IMAGES_URL = 'http://images.cocodataset.org/'


def _name_of_2017(path: str) -> str:
    """The name that COCO has given in 2017 to the image of a name of 2014: COCO_train2014_000000000009.jpg."""
    return path[-16:] if path.startswith('COCO') else path


def _path_in_url(url: str) -> str:
    """Split and name: train2017/000000391895.jpg."""
    return url.replace(_IMAGES_URL, '')


class _SharedLVIS(SharedAnnotations):
    """What the package ``lvis`` makes of a file: all categories count, whatever ``metainfo['classes']`` says."""

    def _choose_categories(self, store: AnnotationStore) -> List[Any]:
        for section, is_there in store.container.attributes['sections'].items():
            if not is_there and section not in store.top:
                raise AnnotationFileError(self.ann_file, f'the file has no "{section}"')
        return list({category['id']: None for category in store.categories})


@DATASETS.register_module()
@DATASETS.register_module(name='SharedLVISDataset')
class SharedLVISV05Dataset(_SharedLVIS, LVISV05Dataset):
    """``LVISV05Dataset``, which mmdet also calls ``LVISDataset``."""

    STANDS_IN_FOR = LVISV05Dataset
    PATHS = Paths(change=_name_of_2017)


SharedLVISDataset = SharedLVISV05Dataset


@DATASETS.register_module()
class SharedLVISV1Dataset(_SharedLVIS, LVISV1Dataset):
    """``LVISV1Dataset``: ``coco_url`` says where an image is."""

    STANDS_IN_FOR = LVISV1Dataset
    PATHS = Paths('coco_url', _path_in_url)
