"""Stock's ``COCO`` and ours of the same text, and what tells them apart."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterator, Tuple

from mmdet.datasets.api_wrappers import COCO

from mmshared.annotations import AnnotationStore
from mmshared.evaluation import SharedCOCO
from tests.annotations.helpers import build, exact

REAL = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'data'


def stock_coco(path: Any) -> COCO:
    """mmdet's ``COCO`` of a file, without its prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(path)


@contextlib.contextmanager
def cocos_of(text: bytes) -> Iterator[Tuple[COCO, SharedCOCO]]:
    """Stock's and ours, both of ``text``."""
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder, 'annotations.json'), Path(folder, 'store')
        file.write_bytes(text)
        build(text, store)
        yield stock_coco(file), SharedCOCO.from_store(AnnotationStore(store))


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What ``call(*arguments)`` gives, such that ``==`` tells types and bits apart, or what it raises.

    The text of a ``KeyError`` says what is missing; that of other errors depends on which record comes first.
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = call(*arguments)
    except KeyError as error:
        return 'raised', KeyError, str(error)
    except Exception as error:
        return 'raised', type(error)
    return exact(result)


def assert_same(stock: COCO, ours: SharedCOCO, call: Callable[..., Any], *arguments: Any) -> None:
    """``call(coco, *arguments)`` gives the same value, or the same error, with both."""
    expected, got = outcome(call, stock, *arguments), outcome(call, ours, *arguments)
    assert got == expected, f'{arguments}: {str(got)[:500]} instead of {str(expected)[:500]}'


def ask(coco: COCO, method: str, *arguments: Any) -> Any:
    """The result of a method, by name."""
    return getattr(coco, method)(*arguments)
