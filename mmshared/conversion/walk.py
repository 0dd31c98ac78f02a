"""The walk through a config: where datasets, transforms, metrics, loops and collate functions are."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from mmengine.config import Config

from .counterparts import Counterparts
from .names import Names, text_of
from .report import Path, Report

_LOOPS = ('train_cfg', 'val_cfg', 'test_cfg')
_HOOKS = ('default_hooks', 'custom_hooks')
# What is built from other registries, where a type of the same name would be something else.
_APART = (
    *('model', 'tta_model', 'detector', 'data_preprocessor', 'optim_wrapper', 'param_scheduler', 'auto_scale_lr'),
    *('visualizer', 'vis_backends', 'log_processor', 'env_cfg', 'randomness', 'custom_imports'),
)
# No components: what describes classes; and what belongs to a dataloader, which is asked for it.
_NO_COMPONENTS = ('metainfo', '_scope_', 'collate_fn')


class Walk:
    """Goes through a config and puts what its subclasses make of each component in that one's place.

    Variables of a config that are no arguments of MMEngine's runner (``train_pipeline``, ``labeled_dataset``) are
    walked as well: configs that inherit from the result build on them.

    Attributes:
        names: what types mean in this config.
        counterparts: the table.
        report: what was done.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        # A part of a config says nothing of its scope: those of mmdet are used in that of mmdet.
        self.names = Names((cfg.get('default_scope') or 'mmengine') if 'default_scope' in cfg else 'mmdet')
        self.counterparts, self.report = Counterparts(), Report()

    def run(self) -> Report:
        """Convert the config in place."""
        for key, old in list(dict.items(self.cfg._cfg_dict)):  # as they are: `Config.items` would import what is lazy
            new = self._section(key, old)
            if new is not old:
                self.cfg[key] = new
        self.imports()
        return self.report

    def _section(self, key: str, value: Any) -> Any:
        path, scope = (key,), self.names.default_scope
        if key in _APART:
            return value
        if key == 'dataset_type':
            return self.dataset_type(value, path, scope)
        if key in _LOOPS:
            return self.loop(value, path, value.get('_scope_', scope)) if isinstance(value, dict) else value
        if key in _HOOKS:
            value = self.hooks(value, path, scope)
        value = self.tree(value, path, scope)
        if key.endswith('dataloader'):
            return self._loaders(value, path, scope)
        return value

    def _loaders(self, value: Any, path: Path, scope: str) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._loaders(child, (*path, i), scope) for i, child in enumerate(value))
        return self.loader(value, path, scope) if isinstance(value, dict) and 'dataset' in value else value

    def tree(self, node: Any, path: Path, scope: str, itself: bool = True) -> Any:
        """``node`` with everything in it converted; the component that it is only if ``itself``."""
        if isinstance(node, dict):
            outer, scope = scope, dict.get(node, '_scope_') or scope
            held = self.holds(node, scope)
            node = type(node)(
                {
                    key: child if key in _NO_COMPONENTS else self.tree(child, (*path, key), scope, key != held)
                    for key, child in dict.items(node)
                }
            )
            return self.component(node, path, scope, outer) if itself and 'type' in node else node
        if isinstance(node, (list, tuple)):
            return type(node)(self.tree(child, (*path, i), scope) for i, child in enumerate(node))
        return node

    def found(self, node: Dict[str, Any], scope: str) -> Tuple[str, Any]:
        """The registry of data or evaluation that knows the type of ``node``, and what it is there; else ('', None)."""
        for registry in ('DATASETS', 'TRANSFORMS', 'METRICS'):
            component = self.names.meaning(registry, dict.get(node, 'type'), scope)
            if component is not None:
                return registry, component
        return '', None

    # ---- what becomes of the parts
    def holds(self, node: Dict[str, Any], scope: str) -> Optional[str]:
        """The key of what in ``node`` is to stay what it is, if there is one."""
        return None

    def component(self, node: Dict[str, Any], path: Path, scope: str, outer: str) -> Any:
        """A dict with a type: perhaps a dataset, a transform or a metric. Its children have been converted."""
        raise NotImplementedError

    def loader(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """A dataloader with a dataset, which has been converted."""
        raise NotImplementedError

    def loop(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """The dict of a loop."""
        raise NotImplementedError

    def hooks(self, node: Any, path: Path, scope: str) -> Any:
        """All hooks, as a dict or a list."""
        return node

    def dataset_type(self, spelled: Any, path: Path, scope: str) -> Any:
        """The variable in which mmdet's configs keep the type of their datasets."""
        found = self.replacements.get(self.names.meaning('DATASETS', spelled, scope))
        if found is None:
            return spelled
        new = self.names.spelling('DATASETS', found, spelled, scope)
        self.report.change(path, text_of(spelled), new)
        return new

    @property
    def replacements(self) -> Dict[Any, Any]:
        """Class -> the class that takes its place."""
        raise NotImplementedError

    def imports(self) -> None:
        """``custom_imports`` of the config, when all else has been converted."""
        raise NotImplementedError
