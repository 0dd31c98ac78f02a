"""What the types of a config mean, and how a class is called there."""

from __future__ import annotations

import inspect
from typing import Any, Dict, Iterator, Optional, Tuple

from mmengine import registry as registries
from mmengine.config.lazy import LazyAttr, LazyObject
from mmengine.registry import Registry


def text_of(spelled: Any) -> str:
    """A type as text: as it is written in a config or, of a class-valued one, its module and name."""
    if isinstance(spelled, (LazyAttr, LazyObject)):
        return f'{spelled.module}.{spelled}'
    if inspect.isclass(spelled) or inspect.isroutine(spelled):
        return f'{spelled.__module__}.{spelled.__qualname__}'
    return str(spelled)


class Names:
    """Names of types, as registries would understand them in one config.

    Args:
        default_scope: the config's; types without a scope are looked for there first.
    """

    def __init__(self, default_scope: str) -> None:
        self.default_scope = default_scope
        self._known: Dict[Tuple[str, str, str], Any] = {}

    def meaning(self, registry: str, spelled: Any, scope: str) -> Optional[Any]:
        """The class or function that the type ``spelled`` stands for; None if nothing of that name is registered."""
        if isinstance(spelled, (LazyAttr, LazyObject)):
            try:
                return spelled.build()
            except Exception:  # whatever importing a module raises
                return None
        if not isinstance(spelled, str):
            return spelled if callable(spelled) else None
        key = registry, spelled, scope
        if key not in self._known:
            self._known[key] = _look_up(registry, spelled, scope)
        return self._known[key]

    def spelling(self, registry: str, component: Any, like: Any, scope: str) -> str:
        """A name for ``component``: of those that mean it in that scope, the one that looks most like ``like``."""
        for name in self._candidates(component, like):
            if self.meaning(registry, name, scope) is component:
                return name
        return text_of(component)

    def _candidates(self, component: Any, like: Any) -> Iterator[str]:
        if not isinstance(like, str) or like.count('.') > 1:
            yield text_of(component)
        elif '.' in like:
            yield f'{like.partition(".")[0]}.{component.__name__}'
        yield component.__name__
        yield f'mmdet.{component.__name__}'
        yield f'mmengine.{component.__name__}'


def _look_up(registry: str, name: str, scope: str) -> Optional[Any]:
    root = getattr(registries, registry)
    if registry == 'FUNCTIONS':  # MMEngine's runner does not look into scopes for these
        return _get(root, name)
    with root.switch_scope_and_registry(scope) as scoped:
        return _get(scoped, name)


def _get(registry: Optional[Registry], name: str) -> Optional[Any]:
    """``Registry.get``, which would import a module called ``name`` if there is one and nothing else of that name."""
    if '.' in name:
        try:
            return registry.get(name)
        except Exception:  # what that module raises
            return None
    while registry is not None:
        registry.import_from_location()
        if name in registry.module_dict:
            return registry.module_dict[name]
        registry = registry.parent
    return None
