"""Moving a sampler forward over images that it asks the sizes of, again and again."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Tuple

#: Batch samplers of mmdet that read ``width`` and ``height`` of a data info and nothing else.
_READ_SIZES = ('AspectRatioBatchSampler',)


@contextlib.contextmanager
def remembered_sizes(sampler: Any) -> Iterator[None]:
    """In this block ``sampler`` asks the dataset for each image's size once, if size is all it wants to know.

    A job that is resumed passes over many epochs, and a data info takes longer to make than all else for a sample.
    """
    inner, kind = getattr(sampler, 'sampler', None), type(sampler)
    dataset = getattr(inner, 'dataset', None)
    if dataset is None or kind.__module__.split('.')[0] != 'mmdet' or kind.__name__ not in _READ_SIZES:
        yield
        return
    inner.dataset = _Sizes(dataset)
    try:
        yield
    finally:
        inner.dataset = dataset


class _Sizes:
    """Stands in for a dataset: of its data infos there are only the sizes, and these are kept."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._of_image: Dict[int, Dict[str, Any]] = {}
        self._known: Dict[Tuple[Any, Any], Dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def get_data_info(self, index: int) -> Dict[str, Any]:
        """``width`` and ``height`` of sample ``index``; images of one size have one dict, as nobody changes it."""
        size = self._of_image.get(index)
        if size is None:
            info = self._dataset.get_data_info(index)
            width, height = info['width'], info['height']
            size = self._known.setdefault((width, height), {'width': width, 'height': height})
            self._of_image[index] = size
        return size
