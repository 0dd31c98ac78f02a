"""SharedDataset: any dataset of MMEngine, loaded by one process per node."""

from __future__ import annotations

import functools
from typing import Any, Optional, Type, Union

from mmdet.registry import DATASETS
from mmengine.config import Config
from mmengine.dataset import BaseDataset

from .annotations import SharedAnnotations
from .once import PickledList, Sharing, copies_only, load_once


@DATASETS.register_module()
class SharedDataset(BaseDataset):
    """The dataset that ``dataset`` describes, loaded by one process of each node and mapped by the others.

    ``dict(type='SharedDataset', dataset=dict(type='XMLDataset', ...))`` makes an object that is a ``SharedDataset`` and
    an ``XMLDataset``: with its methods, its attributes, its place in wrappers, and pickles that carry no samples. What
    loading (``full_init``) does is done once, and the other processes take over what it has set
    (:func:`~.once.load_once`). So the samples have one order on all ranks of a node, too.

    Nobody can know all files that a dataset reads. So what was loaded lives as long as the job whose process did it
    (see ``mmshared.annotations.cache.job``), and the next job loads again; with ``persist`` it stays in the cache, and
    whoever changes the files, or the code that reads them, has to change ``version``.

    Not for datasets that talk to the other ranks while they load: those are waiting.

    Args:
        dataset: config of the dataset, or the dataset itself if it was built with ``lazy_init=True``.
        persist: keep what was loaded for later jobs.
        version: required by ``persist``: what distinguishes the present state of the data from others.
        cache_dir: folder it is kept in, as for :class:`~.coco.SharedCocoDataset`. One that others can write to is
            passed over, since it holds pickles.

    Raises:
        TypeError: ``dataset`` is no ``BaseDataset``, or is a shared one.
        ValueError: it has been loaded already, or ``persist`` and ``version`` do not go together.
        KeyError: ``type`` is missing or not registered.
        Exception: what the dataset raises while it is made or loaded, also where another process did that.
    """

    _inner: Optional[Type[BaseDataset]] = None

    def __new__(cls, dataset: Union[dict, Config, BaseDataset, None] = None, *args: Any, **kwargs: Any) -> Any:
        """Make an object of the class of both; without ``dataset`` (copies, pickles) ``cls`` is that class."""
        if dataset is not None and cls._inner is None:
            cls = _shared_class(cls, _class_of(dataset))
        return super().__new__(cls)

    def __init__(
        self,
        dataset: Union[dict, Config, BaseDataset, None] = None,
        persist: bool = False,
        version: Optional[str] = None,
        cache_dir: Optional[str] = None,
        **misplaced: Any,
    ) -> None:
        if misplaced or dataset is None:
            inner = f': {", ".join(map(repr, misplaced))} belong into the inner dict' if misplaced else ''
            raise TypeError(
                f"SharedDataset is put around a dataset, dict(type='SharedDataset', dataset=dict(type=..., ...)){inner}"
            )
        if persist and not (isinstance(version, str) and version):
            raise ValueError(
                'persist=True needs a version: a text that you change whenever the files that the dataset reads, or '
                f'the code that reads them, change; got {version!r}'
                + (f". Write version='{version}'" if isinstance(version, (int, float)) else '')
            )
        if version is not None and not persist:
            raise ValueError(f'version={version!r} has no meaning without persist=True: each job loads the data anew')
        self._sharing = Sharing(cache_dir, version)
        if isinstance(dataset, BaseDataset):
            if dataset._fully_initialized:
                raise ValueError(
                    f'This {type(dataset).__name__} has been loaded by this process already. Give its config, or build '
                    'it with lazy_init=True'
                )
            self.__dict__.update(dataset.__dict__)
        else:
            arguments = {key: value for key, value in dataset.items() if key not in ('type', '_scope_')}
            with DATASETS.switch_scope_and_registry(dataset.get('_scope_')):
                super().__init__(**arguments)

    def full_init(self) -> None:
        """Load the dataset, or take over what another process has loaded, unless that has been done."""
        if not self._fully_initialized:
            load_once(self, super().full_init, self._sharing, self._inner)

    def get_data_info(self, idx: int) -> Any:
        """Return sample ``idx``, as the dataset itself gives it."""
        with copies_only():
            return super().get_data_info(idx)

    def _get_unserialized_subset(self, indices: Any) -> Any:
        if isinstance(self.data_list, PickledList):
            return self.data_list.subset(indices)
        return super()._get_unserialized_subset(indices)

    def _copy_without_annotation(self, memo: Optional[dict] = None) -> BaseDataset:
        # Some releases' default is one dict for all calls, so that copies of a dataset would share their attributes.
        return super()._copy_without_annotation({} if memo is None else memo)

    def __reduce_ex__(self, protocol: int) -> Any:
        function, (cls, *args), *rest = super().__reduce_ex__(protocol)
        if cls is not type(self) or self._inner is None:
            return (function, (cls, *args), *rest)
        return (_again, (cls.__bases__[0], self._inner, function, *args), *rest)


@functools.cache
def _shared_class(shared: Type[SharedDataset], inner: Type[BaseDataset]) -> Type[SharedDataset]:
    """Return the class of what is both; one class, however often it is asked for."""
    members = {
        '_inner': inner,
        '__module__': shared.__module__,
        '__qualname__': f'{shared.__qualname__}[{inner.__qualname__}]',
        '__doc__': inner.__doc__,
    }
    return type(inner)(inner.__name__, (shared, inner), members)


def _again(shared: Type[SharedDataset], inner: Type[BaseDataset], function: Any, *args: Any) -> Any:
    """Unpickle: ``function(cls, *args)``, where ``cls`` has no name of its own."""
    return function(_shared_class(shared, inner), *args)


def _class_of(dataset: Any) -> Type[BaseDataset]:
    if isinstance(dataset, BaseDataset):
        found: Any = type(dataset)
    elif isinstance(dataset, (dict, Config)):
        found = _registered(dataset)
    else:
        raise TypeError(f'dataset must be a config (dict) or a BaseDataset, got {type(dataset).__name__}')
    if not (isinstance(found, type) and issubclass(found, BaseDataset)):
        name = getattr(found, '__name__', repr(found))
        advice = (
            f'It wraps other datasets: put SharedDataset inside, around each of those that {name} wraps'
            if hasattr(found, 'get_subset') or 'Dataset' in name
            else 'Only such a class says where its samples are'
        )
        raise TypeError(f'SharedDataset: {name} is not a subclass of mmengine.dataset.BaseDataset. {advice}')
    if issubclass(found, (SharedDataset, SharedAnnotations)):
        raise TypeError(f'SharedDataset: a {found.__name__} is shared already. Use it as it is')
    return found


def _registered(config: Any) -> Any:
    if 'type' not in config:
        raise KeyError(f'SharedDataset: the config of the dataset has no "type", only {sorted(map(str, config))}')
    kind = config['type']
    if not isinstance(kind, str):
        return kind
    with DATASETS.switch_scope_and_registry(config.get('_scope_')) as registry:
        found = registry.get(kind)
    if found is None:
        raise KeyError(
            f'SharedDataset: {kind} is not among the registered datasets ({registry.scope}). Is the spelling right, '
            'and is the module that defines it among custom_imports?'
        )
    return found
