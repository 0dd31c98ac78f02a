"""mmdet's Objects365 datasets, with shared annotations."""

from __future__ import annotations

import os.path as osp
from typing import Any, List

from mmdet.datasets import Objects365V1Dataset, Objects365V2Dataset
from mmdet.datasets.objects365 import objv2_ignore_list
from mmdet.registry import DATASETS

from mmshared.annotations import AnnotationFileError, AnnotationStore, Paths

from .annotations import SharedAnnotations
from .classes import match_categories


@DATASETS.register_module()
class SharedObjects365V1Dataset(SharedAnnotations, Objects365V1Dataset):
    """``Objects365V1Dataset``: labels follow the ids of the categories, not their order in the file."""

    STANDS_IN_FOR = Objects365V1Dataset

    def _choose_categories(self, store: AnnotationStore) -> List[Any]:
        try:
            categories = sorted(store.categories, key=lambda category: category['id'])
        except TypeError as error:
            raise AnnotationFileError(self.ann_file, f'their ids have no order ({error})', 'categories') from None
        return match_categories(self.ann_file, categories, self.metainfo['classes'], self.COCOAPI)


def _patch_and_name(path: str) -> str:
    """The last folder and the name: patch16/objects365_v2_00908726.jpg."""
    folder, name = osp.split(path)
    return osp.join(osp.split(folder)[-1], name)


@DATASETS.register_module()
class SharedObjects365V2Dataset(SharedAnnotations, Objects365V2Dataset):
    """``Objects365V2Dataset``: it finds images by patch and name, and leaves a few out."""

    STANDS_IN_FOR = Objects365V2Dataset
    PATHS = Paths(change=_patch_and_name, without=tuple(objv2_ignore_list))
