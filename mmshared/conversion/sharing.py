"""Stock types become shared and lean ones."""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Optional

from mmengine.dataset import BaseDataset, default_collate, pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.registry import FUNCTIONS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, TestLoop, ValLoop

from .counterparts import COLLATE, TABLE, is_shared
from .names import text_of
from .report import Path
from .walk import Walk

MODULE = 'mmshared'
_DEFAULT_LOOPS = {'val_cfg': ValLoop, 'test_cfg': TestLoop}


class Sharing(Walk):
    """Puts shared and lean types in the place of stock ones."""

    def holds(self, node: Dict[str, Any], scope: str) -> Optional[str]:
        """See the parent: a ``SharedDataset`` shares what it holds."""
        wrapper = self.counterparts.wrapper
        held = wrapper is not None and self.names.meaning('DATASETS', dict.get(node, 'type'), scope) is wrapper
        return 'dataset' if held else None

    def component(self, node: Dict[str, Any], path: Path, scope: str, outer: str) -> Any:
        """See the parent."""
        spelled = dict.get(node, 'type')
        registry, component = self.found(node, scope)
        if component in self.counterparts.shared:
            return self._swap(node, registry, component, path, scope)
        if is_shared(component):
            return node
        if _is_a(component, BaseDataset):
            return self._wrap(node, path, outer)
        if _is_a(component, BaseMetric):
            self.report.leave(path, text_of(spelled), 'this metric has no shared counterpart')
        elif registry == 'TRANSFORMS' and _is_a(component, *self._loading()):
            self.report.leave(path, text_of(spelled), 'this transform loads annotations in a way of its own')
        elif component is None and _kind(path):
            self.report.leave(path, text_of(spelled), _unknown(_kind(path)))
        return node

    def _loading(self) -> List[type]:
        """The transforms that load annotations."""
        names = {swap.stock.partition('.')[2] for swap in TABLE if swap.registry == 'TRANSFORMS'}
        return [stock for stock in self.counterparts.shared if stock.__name__ in names]

    def _swap(self, node: Dict[str, Any], registry: str, stock: Any, path: Path, scope: str) -> Dict[str, Any]:
        old = dict.get(node, 'type')
        new = self.names.spelling(registry, self.counterparts.shared[stock], old, scope)
        self.report.change((*path, 'type'), text_of(old), new)
        return _with(node, type=new)

    def _wrap(self, node: Dict[str, Any], path: Path, scope: str) -> Dict[str, Any]:
        old = dict.get(node, 'type')
        if self.counterparts.wrapper is None:
            self.report.leave(path, text_of(old), 'this dataset has no shared counterpart')
            return node
        new = self.names.spelling('DATASETS', self.counterparts.wrapper, old, scope)
        self.report.change(path, text_of(old), f'{new} around it')
        return type(node)(type=new, dataset=node)

    def loader(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """See the parent: batches are packed."""
        given, old, path = 'collate_fn' in node, dict.get(node, 'collate_fn'), (*path, 'collate_fn')
        arguments = dict(dict.items(old)) if isinstance(old, dict) else {'type': old}
        spelled = arguments.pop('type', None) if given else 'pseudo_collate'
        # MMEngine takes a name in a dict only.
        function = None if isinstance(old, str) else self.names.meaning('FUNCTIONS', spelled, scope)
        if is_shared(function):
            return node
        if function not in (pseudo_collate, default_collate):
            known = function is not None or isinstance(old, str)
            reason = f"make it the base: dict(type='{COLLATE}', base=...)" if known else _unknown('function')
            self.report.leave(path, text_of(spelled), reason)
            return node
        packed = FUNCTIONS.get(COLLATE)
        new = {'type': self.names.spelling('FUNCTIONS', packed, spelled if given else '', scope)}
        if given:
            new['base'] = {'type': spelled, **arguments} if arguments else spelled
        self.report.change(path, text_of(spelled) + ('' if given else ' (by default)'), new['type'])
        return _with(node, collate_fn=new)

    def loop(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """See the parent: as MMEngine's runner reads it."""
        spelled, by_epoch = dict.get(node, 'type'), dict.get(node, 'by_epoch')
        if 'type' in node and 'by_epoch' in node:
            self.report.leave(path, text_of(spelled), 'MMEngine refuses a loop with both type and by_epoch')
            return node
        if 'type' in node:
            loop = self.names.meaning('LOOPS', spelled, scope)
        elif 'by_epoch' in node:
            loop = EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop
        else:
            loop = _DEFAULT_LOOPS.get(path[0])
        if loop in self.counterparts.shared:
            new = self.names.spelling('LOOPS', self.counterparts.shared[loop], spelled or '', scope)
            self.report.change((*path, 'type'), text_of(spelled or f'{loop.__name__} (by default)'), new)
            rest = {key: value for key, value in dict.items(node) if key not in ('type', 'by_epoch')}
            return type(node)({'type': new, **rest})
        if not is_shared(loop):
            reason = 'this loop has no lean counterpart' if loop is not None else _unknown('loop')
            if spelled is None:
                reason = 'it says neither type nor by_epoch'
            self.report.leave(path, text_of(spelled), reason)
        return node

    @property
    def replacements(self) -> Dict[Any, Any]:
        """See the parent."""
        return self.counterparts.shared

    def imports(self) -> None:
        """See the parent."""
        imports = dict(self.cfg.get('custom_imports') or {})
        modules = imports.get('imports') or []
        modules = [modules] if isinstance(modules, str) else list(modules)
        if self.report.changed and not any(is_module(module) for module in modules):
            imports['imports'] = [*modules, MODULE]
            self.cfg['custom_imports'] = imports
            self.report.change(('custom_imports', 'imports'), modules, imports['imports'])


def is_module(name: Any) -> bool:
    """Whether ``name`` is that of mmshared or of a part of it."""
    return isinstance(name, str) and name.partition('.')[0] == MODULE


def _is_a(component: Any, *classes: type) -> bool:
    return inspect.isclass(component) and issubclass(component, classes)


def _unknown(kind: str) -> str:
    return f'no such {kind} is registered; custom_imports may lack its module'


def _kind(path: Path) -> str:
    """What a dict with a type is expected to be at ``path``; empty if nothing in particular."""
    key = path[-2] if isinstance(path[-1], int) and len(path) > 1 else path[-1]
    if path[-1] == 'dataset' or key == 'datasets':
        return 'dataset'
    if key in ('val_evaluator', 'test_evaluator', 'metrics'):
        return 'metric'
    return 'transform' if str(key).endswith('pipeline') else ''


def _with(node: Dict[str, Any], **changes: Any) -> Dict[str, Any]:
    return type(node)({**dict(dict.items(node)), **changes})
