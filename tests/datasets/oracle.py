"""Stock mmdet as the oracle: build the same dataset twice and say, strictly, where the two differ."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path
from typing import Any, Callable, Optional, Union

MAX_MESSAGE = 2000
"""Characters an error message may have, whatever the input (it is printed once per rank)."""


def difference(a: Any, b: Any, where: str = '') -> Optional[str]:
    """Return None if ``a`` and ``b`` are the same, else one line that says where they first differ.

    Same means: same types all the way down, same order of dict keys, floats of the same bits (so that ``-0.0``, ``0.0``
    and ``0`` are three things, and NaN equals itself).
    """
    if type(a) is not type(b):
        return f'{where}: {type(a).__name__} {_short(a)} != {type(b).__name__} {_short(b)}'
    if isinstance(a, float):
        return None if struct.pack('<d', a) == struct.pack('<d', b) else f'{where}: {a!r} != {b!r}'
    if isinstance(a, dict):
        if difference(list(a), list(b)):
            return f'{where}: keys {_short(list(a))} != {_short(list(b))}'
        return _first(difference(a[k], b[k], f'{where}[{k!r}]') for k in a)
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return f'{where}: {len(a)} items != {len(b)} items: {_short(a)} != {_short(b)}'
        return _first(difference(x, y, f'{where}[{i}]') for i, (x, y) in enumerate(zip(a, b)))
    return None if a == b else f'{where}: {_short(a)} != {_short(b)}'


def _first(differences: Any) -> Optional[str]:
    return next((d for d in differences if d), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else text[:200] + '...'


def attempt(make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns, or the exception it raises; what pycocotools prints is swallowed."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return make()
        except Exception as error:
            return error


def _fault_of_error(error: Exception, file: Union[str, Path]) -> Optional[str]:
    """Say what is wrong with the way we reject something (an IndexError is about the ``indices`` argument)."""
    if not isinstance(error, (ValueError, IndexError)):
        return f'rejected by accident: {error!r}'
    if len(str(error)) > MAX_MESSAGE:
        return f'an error message of {len(str(error))} characters'
    if isinstance(error, ValueError) and str(file) not in str(error):
        return f'an error that does not name {file}: {error}'
    return None


def compare_datasets(stock: Any, ours: Any) -> Optional[str]:
    """Return None if the two datasets show a caller the same, else where they first differ."""
    for name in ('metainfo', 'cat_ids', 'cat2label', 'ann_file', 'data_prefix'):
        found = difference(getattr(stock, name), getattr(ours, name), name)
        if found:
            return found
    return (
        difference(len(stock), len(ours), 'len')
        or _compare_category_images(stock, ours)
        or _compare_samples(stock, ours)
        or _compare_errors(stock, ours)
    )


def _compare_category_images(stock: Any, ours: Any) -> Optional[str]:
    if not (stock.cat_img_map == ours.cat_img_map and ours.cat_img_map == stock.cat_img_map):
        return f'cat_img_map: {_short(dict(stock.cat_img_map))} != {_short(dict(ours.cat_img_map))}'
    return _first(difference(v, ours.cat_img_map[k], f'cat_img_map[{k!r}]') for k, v in stock.cat_img_map.items())


def _compare_samples(stock: Any, ours: Any) -> Optional[str]:
    n = len(stock)
    # Stock cannot read index -len when its data are serialized: test_stock_bugs.py has that.
    for i in [*range(n), *range(-n + 1, 0)]:
        found = difference(stock.get_data_info(i), ours.get_data_info(i), f'get_data_info({i})') or difference(
            stock.get_cat_ids(i), ours.get_cat_ids(i), f'get_cat_ids({i})'
        )
        if found:
            return found
    return None


def _compare_errors(stock: Any, ours: Any) -> Optional[str]:
    n = len(stock)
    for i in (n, -n - 1):
        a, b = (attempt(lambda d=d, i=i: d.get_data_info(i)) for d in (stock, ours))
        if type(a) is not type(b) or not isinstance(b, Exception):
            return f'get_data_info({i}): {_short(a)} != {_short(b)}'
    return None


def compare_builds(stock: Any, ours: Any, file: Union[str, Path]) -> Optional[str]:
    """Compare what two :func:`attempt` calls returned: equal datasets, or two errors, ours short and about ``file``."""
    if isinstance(stock, Exception) or isinstance(ours, Exception):
        if not isinstance(ours, Exception):
            return f'stock rejects with {type(stock).__name__}: {stock}; ours accepts'
        if not isinstance(stock, Exception):
            return f'stock accepts; ours rejects with {type(ours).__name__}: {_short(str(ours))}'
        return _fault_of_error(ours, file)
    return compare_datasets(stock, ours)
