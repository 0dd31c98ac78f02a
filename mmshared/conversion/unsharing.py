"""Shared and lean types become stock ones."""

from __future__ import annotations

import os
from typing import Any, Dict

from mmshared.annotations import has_store_magic

from .counterparts import COLLATE, HOOK, is_shared, own_arguments, registered
from .names import text_of
from .report import Path
from .sharing import MODULE, is_module
from .walk import Walk


class Unsharing(Walk):
    """Puts stock types in the place of shared and lean ones, without the arguments that only these take."""

    _needs_us = False

    def component(self, node: Dict[str, Any], path: Path, scope: str, outer: str) -> Any:
        """See the parent."""
        registry, component = self.found(node, scope)
        if component is None:
            return node
        if component is self.counterparts.wrapper and isinstance(node.get('dataset'), dict):
            return self._unwrap(node, path)
        if component in self.counterparts.stock:
            return self._swap(node, registry, component, path, scope)
        return self._ours(node, component, path)

    def _swap(self, node: Dict[str, Any], registry: str, shared: Any, path: Path, scope: str) -> Dict[str, Any]:
        stock, old = self.counterparts.stock[shared], dict.get(node, 'type')
        new = self.names.spelling(registry, stock, old, scope)
        self.report.change((*path, 'type'), text_of(old), new)
        kept = {}
        for key, value in dict.items(node):
            if key in own_arguments(shared, stock):
                self.report.change((*path, key), value, f'(dropped: {stock.__name__} does not take it)')
            else:
                kept[key] = value
        self._look_for_stores(kept, path)
        return type(node)({**kept, 'type': new})

    def _look_for_stores(self, node: Dict[str, Any], path: Path) -> None:
        """Say so if the annotation file is one that stock cannot read."""
        file = node.get('ann_file')
        if not isinstance(file, str):
            return
        file = os.path.join(node.get('data_root') or '', file)
        if os.path.isfile(file) and has_store_magic(file):
            self.report.leave((*path, 'ann_file'), file, 'it is a store; stock needs the JSON that it was made from')

    def _unwrap(self, node: Dict[str, Any], path: Path) -> Dict[str, Any]:
        inner = dict.get(node, 'dataset')
        self.report.change(path, f'{text_of(dict.get(node, "type"))} around it', text_of(dict.get(inner, 'type')))
        if '_scope_' in node and '_scope_' not in inner:
            inner = type(inner)({**dict(dict.items(inner)), '_scope_': dict.get(node, '_scope_')})
        return inner

    def _ours(self, node: Dict[str, Any], component: Any, path: Path) -> Any:
        """``node``, which stays what it is; if that is something of ours, the report says so."""
        if is_shared(component):
            self._needs_us = True
            self.report.leave(path, text_of(dict.get(node, 'type')), f'it needs {MODULE} and stands in for nothing')
        return node

    def loader(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """See the parent: batches are what the base made."""
        old, path = dict.get(node, 'collate_fn'), (*path, 'collate_fn')
        if not isinstance(old, dict):
            return node
        function = self.names.meaning('FUNCTIONS', dict.get(old, 'type'), scope)
        if function is not registered('FUNCTIONS', COLLATE):
            self._ours(old, function, path) if function is not None else None
            return node
        rest = {key: value for key, value in dict.items(node) if key != 'collate_fn'}
        if 'base' not in old:
            self.report.change(path, text_of(dict.get(old, 'type')), '(dropped: pseudo_collate is the default)')
            return type(node)(rest)
        base = dict.get(old, 'base')
        new = base if isinstance(base, dict) else {'type': base}
        self.report.change(path, text_of(dict.get(old, 'type')), text_of(dict.get(new, 'type')))
        function = self.names.meaning('FUNCTIONS', dict.get(new, 'type'), scope)
        if function is not None:
            self._ours(new, function, path)
        return type(node)({**rest, 'collate_fn': new})

    def loop(self, node: Dict[str, Any], path: Path, scope: str) -> Any:
        """See the parent."""
        loop = self.names.meaning('LOOPS', dict.get(node, 'type'), scope) if 'type' in node else None
        if loop in self.counterparts.stock:
            return self._swap(node, 'LOOPS', loop, path, scope)
        return node if loop is None else self._ours(node, loop, path)

    def hooks(self, node: Any, path: Path, scope: str) -> Any:
        """See the parent: without the hook that only we have."""
        if isinstance(node, dict):
            return type(node)({key: hook for key, hook in dict.items(node) if self._stays(hook, (*path, key), scope)})
        if isinstance(node, (list, tuple)):
            return type(node)(hook for i, hook in enumerate(node) if self._stays(hook, (*path, i), scope))
        return node

    def _stays(self, hook: Any, path: Path, scope: str) -> bool:
        spelled = dict.get(hook, 'type') if isinstance(hook, dict) else None
        if spelled is None or self.names.meaning('HOOKS', spelled, scope) is not registered('HOOKS', HOOK):
            return True
        self.report.change(path, text_of(spelled), f'(dropped: a hook of {MODULE})')
        return False

    @property
    def replacements(self) -> Dict[Any, Any]:
        """See the parent."""
        return self.counterparts.stock

    def imports(self) -> None:
        """See the parent: what is left of ours still has to be imported."""
        imports = dict(self.cfg.get('custom_imports') or {})
        modules = imports.get('imports') or []
        modules = [modules] if isinstance(modules, str) else list(modules)
        others = [module for module in modules if not is_module(module)]
        if others == modules or self._needs_us:
            return
        self.report.change(('custom_imports', 'imports'), modules, others or '(dropped)')
        if others:
            self.cfg['custom_imports'] = {**imports, 'imports': others}
        else:
            self.cfg.pop('custom_imports')
