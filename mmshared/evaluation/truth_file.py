"""The annotation file of a metric: looked at when a job starts, not when the first epoch is over."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Optional

from mmengine.dist import is_main_process

from mmshared.annotations import AnnotationStore, StoreError
from mmshared.annotations.cache import Hold, hold
from mmshared.datasets.remote import is_local, open_annotations


class TruthFile:
    """Mixed into one of mmengine's metrics, before it: has its ``ann_file``, ``backend_args`` and ``cache_dir``.

    Rank 0 looks at the file when it is told of the dataset. From then on it is that file's store that counts, as the
    dataset's is, whatever becomes of the file while the job runs: it is held, so that nobody cleans it up.
    """

    ann_file: Optional[str] = None
    backend_args: Optional[dict] = None
    cache_dir: Optional[str] = None
    _dataset_meta: Optional[dict] = None
    _held: Optional[Hold] = None

    def _check_readable(self) -> None:
        """See that a local file can be opened. One that has to be fetched is not looked at.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: it cannot.
            TypeError: ``backend_args`` are not for the local backend, which is meant.
        """
        if self.ann_file is None or not is_local(os.fspath(self.ann_file), self.backend_args):
            return
        try:
            open(self.ann_file, 'rb').close()
        except OSError as error:
            reason = f'{error.strerror} (ann_file of {type(self).__name__})'
            raise type(error)(error.errno, reason, error.filename) from None

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
        """See that it can be evaluated against, and keep nothing of it in memory."""
        raise NotImplementedError

    def _open_store(self) -> AnnotationStore:
        """The file's store: from the first time on the same one."""
        if self._held is not None:
            with contextlib.suppress(StoreError):  # removed by hand
                return AnnotationStore(self._held.path)
        # Whether CocoDataset would take the file is another question.
        store = open_annotations(self.ann_file, self.backend_args, self.cache_dir, refuse=False)
        self._held = hold(Path(store.path))
        return store
