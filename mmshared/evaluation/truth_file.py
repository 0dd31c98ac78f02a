"""The annotation file of a metric: looked at when a job starts, not when the first epoch is over."""

from __future__ import annotations

import os
from typing import Optional

from mmengine.dist import is_main_process

from mmshared.datasets.remote import is_local


def check_readable(ann_file: Optional[str], backend_args: Optional[dict] = None) -> None:
    """See that a local file can be opened. One that has to be fetched, or None, is not looked at.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: it cannot.
        TypeError: ``backend_args`` are not for the local backend, which is meant.
    """
    if ann_file is not None and is_local(os.fspath(ann_file), backend_args):
        open(ann_file, 'rb').close()


class LooksEarly:
    """Mixed into one of mmengine's metrics, before it: rank 0 looks at ``ann_file`` when it is told of the dataset."""

    ann_file: Optional[str] = None
    _dataset_meta: Optional[dict] = None

    @property
    def dataset_meta(self) -> Optional[dict]:
        """Meta information of the dataset. Setting it makes rank 0 look at the annotation file.

        Raises:
            AnnotationFileError: nothing can be evaluated against that file; names record and field.
            FetchError: a remote file could not be fetched.
            CacheError: the store can be written nowhere.
        """
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, dataset_meta: Optional[dict]) -> None:
        self._dataset_meta = dataset_meta
        if self.ann_file is not None and 'classes' in (dataset_meta or {}) and is_main_process():
            self._look_at_file()

    def _look_at_file(self) -> None:
        """Open the file's store, and let go of it again."""
        raise NotImplementedError
