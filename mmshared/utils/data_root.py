"""``--data-root``: move a config's data to another folder, wherever the config mentions it."""

from __future__ import annotations

import os.path as osp
from typing import Any, Iterator, List

from mmengine.config import Config
from mmengine.fileio import join_path
from mmengine.utils import is_abs

_SECTIONS = tuple(f'{split}_{part}' for split in ('train', 'val', 'test') for part in ('dataloader', 'evaluator'))


def set_data_root(cfg: Config, data_root: str) -> List[str]:
    """Set ``data_root`` in every dataset and evaluator of ``cfg``, in place.

    Every dataset of the train, val and test dataloaders that names a ``data_root``, inside whatever wrappers, gets
    the new one. Paths elsewhere in these dataloaders and in the evaluators (``ann_file`` and the like) that lie in an
    old root are moved to the new one. Paths outside the old roots stay.

    Args:
        cfg: a loaded config.
        data_root: folder (or URL prefix) that replaces the old ones.

    Returns:
        The old roots that were replaced, each once, in order of appearance.

    Raises:
        ValueError: no dataset of the config has a ``data_root``, so there is nothing to replace.
    """
    sections = [name for name in _SECTIONS if cfg.get(name) is not None]
    old_roots = list(dict.fromkeys(root for name in sections for root in _roots(cfg[name])))
    if not old_roots:
        raise ValueError(
            f'data root {data_root!r} given, but no dataset in the train, val or test dataloader of '
            f'{cfg.filename or "the config"} has a data_root. Add data_root=... to its datasets.'
        )
    if cfg.get('data_root') and cfg.data_root not in old_roots:
        old_roots.append(cfg.data_root)
    move = _Move(old_roots, data_root)
    for name in sections:
        # Whole new sections rather than edits in place: `test_dataloader = val_dataloader` may be one object.
        cfg[name] = move.anywhere(cfg[name])
    if cfg.get('data_root'):
        cfg.data_root = data_root
    return old_roots


def _roots(node: Any) -> Iterator[str]:
    """Every non-empty ``data_root`` in a tree of dicts and lists, depth first."""
    if isinstance(node, dict):
        if node.get('data_root'):
            yield node['data_root']
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _roots(child)


class _Move:
    """Copies of config trees with paths moved from the old roots to the new one."""

    def __init__(self, old_roots: List[str], new_root: str) -> None:
        # The longest first, so that of nested roots the inner one counts.
        self.old_roots = sorted((_folder(root) for root in old_roots), key=len, reverse=True)
        self.new_root = new_root

    def anywhere(self, node: Any) -> Any:
        """``node`` with its datasets re-rooted and its paths moved."""
        if isinstance(node, dict):
            if node.get('data_root'):
                return type(node)({key: self._in_dataset(key, value) for key, value in dict.items(node)})
            return type(node)({key: self.anywhere(value) for key, value in dict.items(node)})
        if isinstance(node, (list, tuple)):
            return type(node)(self.anywhere(child) for child in node)
        return self._path(node) if isinstance(node, str) else node

    def _in_dataset(self, key: str, value: Any) -> Any:
        """A field of a dataset that has a root. Its relative paths are relative to that root: they stay."""
        if key == 'data_root':
            return self.new_root
        if isinstance(value, str):
            return self._path(value) if is_abs(value) else value
        if key == 'data_prefix' and isinstance(value, dict):
            return type(value)({name: self._in_dataset(name, prefix) for name, prefix in dict.items(value)})
        return self.anywhere(value)

    def _path(self, path: str) -> str:
        for root in self.old_roots:
            if path in (root, root + '/'):
                return self.new_root
            if path.startswith(root + '/'):
                return join_path(self.new_root, path[len(root) + 1 :])
        return path


def _folder(root: str) -> str:
    return root if root == osp.sep else root.rstrip('/')
