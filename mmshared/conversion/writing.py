"""A config as the text of a config file that needs no other."""

from __future__ import annotations

import inspect
import os
import tempfile
from typing import Any, Iterator

from mmengine.config import Config
from mmengine.utils import get_object_from_string

from .names import text_of


def as_text(cfg: Config, tidy: bool = True) -> str:
    """The content of a config file that loads as ``cfg``, as MMEngine's ``Config.dump`` writes it.

    Class-valued types become their dotted paths. The text has been loaded, and what came out was equal.

    Args:
        cfg: the config.
        tidy: whether lines are broken to be read, which takes most of the time.

    Raises:
        ValueError: MMEngine writes a text for it that does not load, or is another config then (``inf`` in it, say);
            or a function or class in it cannot be imported.
    """
    plain = Config(_plain(cfg.to_dict()), format_python_code=tidy)
    try:
        text = plain.pretty_text
        again = _load(text)
    except Exception as error:  # whatever a config's code raises
        raise ValueError(f'it cannot be written as a config file: {type(error).__name__}: {error}') from error
    for path in differences(plain.to_dict(), again.to_dict()):
        raise ValueError(
            f'it cannot be written as a config file: {path or "it"} would be another one when it is loaded'
        )
    return text


def differences(one: Any, other: Any, path: str = '') -> Iterator[str]:
    """The keys, as in ``--cfg-options``, of what is not equal in two trees of dicts, lists and tuples."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        missing = object()
        for key in keys:
            yield from differences(
                one.get(key, missing), other.get(key, missing), f'{path}.{key}' if path else str(key)
            )
    elif isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        for i, pair in enumerate(zip(one, other)):
            yield from differences(*pair, f'{path}.{i}' if path else str(i))
    elif type(one) is not type(other) or one != other:
        yield path


def _load(text: str) -> Config:
    with tempfile.TemporaryDirectory() as folder:  # `Config.fromstring` would leave its file there if it fails
        file = os.path.join(folder, 'config.py')
        with open(file, 'w', encoding='utf-8') as opened:
            opened.write(text)
        return Config.fromfile(file)


def _plain(node: Any, path: str = '') -> Any:
    """A copy of ``node`` in which classes and functions are named, not there."""
    if isinstance(node, dict):
        return {key: _plain(value, f'{path}.{key}' if path else str(key)) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_plain(value, f'{path}.{i}') for i, value in enumerate(node))
    if not inspect.isclass(node) and not inspect.isroutine(node):
        return node
    name = text_of(node)
    try:
        named = get_object_from_string(name)
    except Exception:  # what importing its module raises
        named = None
    if named is not node:
        raise ValueError(f'it cannot be written as a config file: {path} is {name}, which cannot be imported')
    return name
