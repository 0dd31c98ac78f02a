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


def outcome(call: Callable[[], Any]) -> Any:
    """What ``call()`` gives, in a form that tells types and bits apart, or the error it raises; prints are swallowed."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = call()
    except Exception as error:
        return 'raised', type(error), str(error)
    return exact(result)


def assert_same(stock: COCO, ours: SharedCOCO, call: Callable[[COCO], Any], what: Any) -> None:
    """Both give the same value, or the same error."""
    expected, got = (outcome(lambda coco=coco: call(coco)) for coco in (stock, ours))
    assert got == expected, f'{what}: {str(got)[:500]} instead of {str(expected)[:500]}'
