"""What makes a COCO-style dataset of mmdet one whose annotations are parsed once per node and mapped."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar, List, Optional, Sequence, Tuple, Union

from mmdet.datasets import CocoDataset
from mmengine.dataset import force_full_init
from mmengine.logging import print_log

from mmshared.annotations import (
    COCO_PATHS,
    AnnotationFileError,
    AnnotationStore,
    ArrayView,
    Paths,
    has_store_magic,
)
from mmshared.utils.deferral import DEFERRED

from .classes import match_categories
from .data_list import LazyDataList
from .loading import LoadSharedAnnotations
from .once import Sharing, copies_only, load_once
from .remote import open_annotations
from .samples import Filter, Samples, choose

_LOADING = (
    'load_data_list',
    'parse_data_info',
    'filter_data',
    '_get_unserialized_subset',
    '_serialize_data',
    'COCOAPI',
    'ANN_ID_UNIQUE',
)
"""What the fast path stands in for: a class that changes any of it is loaded the way stock does."""


class _Derived(dict):
    """Values computed from the store on request; a copy or pickle of a dataset starts without them."""

    def __deepcopy__(self, memo: dict) -> _Derived:
        return _Derived()

    def __reduce__(self) -> tuple:
        return _Derived, ()


def _serialized(name: str) -> property:
    """Make ``data_bytes`` or ``data_address``: computed when read, and what counts once assigned."""

    def read(self: SharedAnnotations) -> Any:
        if name in self.__dict__:
            return self.__dict__[name]
        if self._samples is None or not self.serialize_data:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
        if name not in self._derived:
            print_log(
                f'{self.ann_file}: `data_bytes` or `data_address` was asked for, so this process now pickles every '
                f'sample, as {self.STANDS_IN_FOR.__name__} does, and keeps the result; {type(self).__name__} does not '
                'need them itself',
                logger='current',
            )
            self._derived.update(zip(('data_bytes', 'data_address'), self._samples.serialize()))
        return self._derived[name]

    def assign(self: SharedAnnotations, value: Any) -> None:
        if self._samples is not None and self.serialize_data:
            # One array means nothing without the other.
            self.__dict__.update(data_bytes=self.data_bytes, data_address=self.data_address)
            self._samples = None
        self.__dict__[name] = value

    return property(read, assign)


def _numbered(info: dict, idx: int, length: int) -> dict:
    info['sample_idx'] = idx if idx >= 0 else length + idx
    return info


class SharedAnnotations:
    """A mixin: put in front of a dataset class of mmdet, it is equal in all a caller sees, at another memory cost.

    The annotation file is parsed once per node into a store that every rank and worker maps; a sample's dict is made
    when it is asked for. Copies and pickles of the dataset carry the store's path, not its content.

    It knows what ``CocoDataset`` makes of a file. For a class that makes something else of it, the sibling sets
    :attr:`STANDS_IN_FOR` and says by the attributes and methods below what that is. A subclass may change ``METAINFO``
    and keep this. One that overrides how annotations are loaded (``load_data_list``, ``parse_data_info``,
    ``filter_data``, ...), and any dataset with a ``proposal_file``, is loaded the way stock does it, by one process of
    the node and job (:func:`~.once.load_once`).

    Where stock is wrong, this is not: index ``-len(dataset)`` and subsets of exactly ``len(dataset)`` samples work, and
    an annotation of an unknown image that repeats the id of a known one does not take its place.

    A remote annotation file is fetched once per node and job: :func:`~.remote.open_annotations` says what that means.

    Args:
        *args: as for the parent.
        cache_dir: folder of annotation stores. Default: ``$MMSHARED_CACHE``, else ``$XDG_CACHE_HOME/mmshared``, else
            ``~/.cache/mmshared``.
        **kwargs: as for the parent.

    Raises:
        AnnotationFileError: (a ValueError) the file is not what the parent could load, or no sample is left of it. It
            names file, record and field.
        FetchError: (an OSError) a remote annotation file could not be fetched.
        CacheError: the store can be written nowhere.
    """

    STANDS_IN_FOR: ClassVar[type] = CocoDataset
    """The class whose loading is replaced."""
    LOADED_WHOLE: ClassVar[Optional[str]] = None
    """Why objects of this class are loaded the way stock does it, None if they need not be."""
    PATHS: ClassVar[Paths] = COCO_PATHS
    """How it finds its images."""

    _store: Optional[AnnotationStore] = None
    # How samples are read; None: the way stock does it, from `data_list` or `data_bytes`.
    _samples: Union[Samples, LazyDataList, None] = None
    # A pipeline, and whether it loads annotations from the store.
    _judged: Tuple[Any, bool] = (None, False)
    # Categories whose images stock's filter looks up, which leaves an empty list behind for one without images.
    _looked_up: Sequence = ()

    def __init__(self, *args: Any, cache_dir: Optional[str] = None, **kwargs: Any) -> None:
        self.cache_dir = cache_dir
        self._derived = _Derived()
        super().__init__(*args, **kwargs)

    # ---- loading
    def full_init(self) -> None:
        """Load the annotations, unless that has been done. See the class for what is raised."""
        if self._fully_initialized:
            return
        reason = self._reason_for_stock_loading()
        if reason is None:
            self._map_annotations()
            self._fully_initialized = True
        elif has_store_magic(self.ann_file):
            raise AnnotationFileError(self.ann_file, f'is a store. Give the JSON it was made from, because {reason}')
        else:
            load_once(self, super().full_init, Sharing(self.cache_dir))

    def _reason_for_stock_loading(self) -> Optional[str]:
        if self.LOADED_WHOLE is not None:
            return self.LOADED_WHOLE
        changed = [
            name
            for name in _LOADING
            if name in self.__dict__ or getattr(type(self), name) is not getattr(self.STANDS_IN_FOR, name)
        ]
        if changed:
            return f'the class has its own {", ".join(changed)}'
        return None if self.proposal_file is None else 'proposal_file is set'

    def _map_annotations(self) -> None:
        store = open_annotations(self.ann_file, self.backend_args, self.cache_dir, path_field=self.PATHS.field)
        self.cat_ids = self._choose_categories(store)
        self.cat2label = {cat_id: label for label, cat_id in enumerate(self.cat_ids)}
        self._store = store
        samples = self._make_samples(store)
        if self._indices is not None:
            samples = samples.select(choose(self._indices, len(samples), None))
        if self.serialize_data and not len(samples):
            raise AnnotationFileError(self.ann_file, self._why_empty(store))
        self._samples = samples

    def _choose_categories(self, store: AnnotationStore) -> List[Any]:
        """The ids of the categories it trains on; the label of each is its place in the list."""
        return match_categories(self.ann_file, store.categories, self.metainfo['classes'], self.COCOAPI)

    def _filter(self) -> Filter:
        """What the parent's ``filter_data`` does with ``filter_cfg``."""
        return Filter(bool(self.filter_cfg.get('filter_empty_gt', False)), self.filter_cfg.get('min_size', 0))

    def _make_samples(self, store: AnnotationStore) -> Samples:
        keep = None
        if not self.test_mode and self.filter_cfg is not None:
            keep = self._filter()
            self._looked_up = tuple(self.cat_ids)
        if 'img' not in self.data_prefix and store.num_images:
            raise KeyError(f"data_prefix of {type(self).__name__} has no 'img': {self.data_prefix}")
        text = None
        if self.return_classes:
            text = {
                'text': self.metainfo['classes'],
                'caption_prompt': self.caption_prompt,
                'custom_entities': True,
            }
        # Taken now: stock, too, does not look at later changes of these attributes.
        paths = self.data_prefix.get('img', ''), self.data_prefix.get('seg') or None, self.seg_map_suffix
        return Samples(ArrayView(store, list(self.cat_ids), self.PATHS), paths, keep, text, self.cache_dir)

    def _why_empty(self, store: AnnotationStore) -> str:
        left_out = [
            f'{name}={value}'
            for name, value in (('filter_cfg', self.filter_cfg), ('indices', self._indices))
            if value is not None and not (name == 'filter_cfg' and self.test_mode)
        ]
        if not store.container.attributes['sections']['images']:
            return 'the file has no "images"'
        return (
            f'no sample is left of its {store.num_images} images and {store.num_annotations} annotations'
            + (f' with {" and ".join(left_out)}' if left_out else '')
            + f'; {len(self.cat_ids)} of its {len(store.categories)} categories are among metainfo["classes"]'
        )

    @force_full_init
    def _init_on_demand(self) -> None:
        """Load what ``lazy_init`` left undone, with the warning stock gives."""

    def _source(self) -> Union[Samples, LazyDataList, None]:
        if not self._fully_initialized:
            self._init_on_demand()
        return self._samples

    # ---- samples
    def get_data_info(self, idx: int) -> dict:
        """Return sample ``idx`` (negative: from the end) as a dict of the caller's own; IndexError if out of range.

        While samplers are asked (:func:`~mmshared.utils.deferral.deferred_instances`) its instances are made when they
        are read.
        """
        samples = self._samples
        if samples is None:
            samples = self._source()
            if samples is None:
                with copies_only():
                    return super().get_data_info(idx)
        read = samples.defer if DEFERRED.get() and type(samples) is Samples else samples.read
        return _numbered(read(idx), idx, len(samples))

    def prepare_data(self, idx: int) -> Any:
        """Return what the pipeline makes of sample ``idx``.

        If :class:`~.loading.LoadSharedAnnotations` is one of its transforms, they get the sample as a
        :class:`~.deferred.LazyResults`: the same dict, its instances made when they are read.
        """
        samples = self._samples
        if type(samples) is not Samples:
            samples = self._sharable()
        if samples is None or not self._may_defer():
            return super().prepare_data(idx)
        return self.pipeline(_numbered(samples.defer(idx), idx, len(samples)))

    def _may_defer(self) -> bool:
        """Whether that saves anything, and ``get_data_info`` is not the class's (or the object's) own."""
        if type(self).get_data_info is not SharedAnnotations.get_data_info or 'get_data_info' in self.__dict__:
            return False
        pipeline = self.pipeline
        if self._judged[0] is not pipeline:  # looking through it for every sample would take longer than its arrays
            self._judged = pipeline, LoadSharedAnnotations.among(getattr(pipeline, 'transforms', ()))
        return self._judged[1]

    def get_cat_ids(self, idx: int) -> List[int]:
        """Return the label of every instance of sample ``idx``, without making its annotations."""
        samples = self._source()
        if samples is None or type(self).get_data_info is not SharedAnnotations.get_data_info:
            return super().get_cat_ids(idx)
        return samples.labels(idx)

    def __len__(self) -> int:
        samples = self._source()
        return super().__len__() if samples is None else len(samples)

    # ---- subsets
    def get_subset_(self, indices: Union[Sequence[int], int]) -> None:
        """Keep only the samples ``indices`` says: the first or last ``n``, or these positions."""
        samples = self._sharable()
        if samples is None:
            super().get_subset_(indices)
        else:
            self._samples = samples.select(self._choose(indices, len(samples)))
            self._derived.pop('data_bytes', None)
            self._derived.pop('data_address', None)

    def get_subset(self, indices: Union[Sequence[int], int]) -> SharedAnnotations:
        """Return a copy of the dataset with only the samples ``indices`` says; it maps the same store."""
        samples = self._sharable()
        if samples is None:
            return super().get_subset(indices)
        chosen = self._choose(indices, len(samples))
        subset = self._copy_without_annotation()
        subset.data_list = []
        subset._samples = samples.select(chosen)
        return subset

    def _sharable(self) -> Optional[Samples]:
        """Return the samples if nobody can have changed any of them, else None."""
        samples = self._source()
        return samples.untouched if isinstance(samples, LazyDataList) else samples

    def _choose(self, indices: Union[Sequence[int], int], length: int) -> Any:
        return choose(indices, length, AssertionError if self.serialize_data else None)

    def _copy_without_annotation(self, memo: Optional[dict] = None) -> SharedAnnotations:
        # Some releases' default is one dict for all calls, so that copies of a dataset would share their attributes.
        return super()._copy_without_annotation({} if memo is None else memo)

    # ---- what stock keeps in memory
    @property
    def data_list(self) -> Any:
        """As in stock: empty if the data are serialized, else the list of samples (made as they are looked at)."""
        if self._samples is None or self.serialize_data:
            if 'data_list' not in self.__dict__:
                raise AttributeError(f'{type(self).__name__!r} object has no attribute "data_list"')
            return self.__dict__['data_list']
        if isinstance(self._samples, Samples):
            self._samples = LazyDataList(self._samples)
        return self._samples

    @data_list.setter
    def data_list(self, value: Any) -> None:
        if self._samples is not None and not self.serialize_data:
            self._samples = None
        self.__dict__['data_list'] = value

    data_bytes = _serialized('data_bytes')
    data_address = _serialized('data_address')

    @property
    def cat_img_map(self) -> dict:
        """Image ids of every category, in file order, one per annotation; made when first read, not part of copies."""
        if 'cat_img_map' in self.__dict__:
            return self.__dict__['cat_img_map']
        if self._store is None:
            raise AttributeError(f'{type(self).__name__!r} object has no attribute "cat_img_map"')
        if 'cat_img_map' not in self._derived:
            images = defaultdict(list, self._store.cat_img_map())
            for cat_id in self._looked_up:
                images[cat_id]
            self._derived['cat_img_map'] = images
        return self._derived['cat_img_map']

    @cat_img_map.setter
    def cat_img_map(self, value: dict) -> None:
        self.__dict__['cat_img_map'] = value
