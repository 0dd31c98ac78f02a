"""Writes ``lvis_expected.json``: what mmdet's LVIS datasets make of the files of ``family_files.py``.

They load through the package ``lvis``, which the tests' environment need not have. In one that has it, from the
repository's root::

    pip install --no-deps lvis==0.5.3
    python -m tests.datasets.make_lvis_expected
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List

from mmdet import datasets

from .family_files import TEXTS, case, digest, lvis_options, lvis_v05, lvis_v1, shown
from .oracle import attempt

FILE = Path(__file__).with_name('lvis_expected.json')
NUM_CASES = 80


def made(cls: type, file: Path, options: Dict[str, Any]) -> Any:
    """What ``cls`` shows of ``file``, or the error."""
    return attempt(lambda: shown(cls(ann_file=str(file), **options)))


def main() -> None:
    """Run stock on every file."""
    expected: Dict[str, Any] = {'made with': f'lvis {version("lvis")}'}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'annotations.json')
        for name, content in (('LVISV05Dataset', lvis_v05()), ('LVISV1Dataset', lvis_v1())):
            cls = getattr(datasets, name)
            file.write_text(json.dumps(content))
            cases: List[List[str]] = []
            expected[name] = {'small': repr(made(cls, file, lvis_options(0))), 'cases': cases}
            for seed in range(NUM_CASES):
                text = case(TEXTS[name], seed).encode()
                file.write_bytes(text)
                found = made(cls, file, lvis_options(seed))
                cases.append([digest(text), 'rejected' if isinstance(found, Exception) else digest(found)])
    FILE.write_text(json.dumps(expected, indent=1) + '\n')


if __name__ == '__main__':
    main()
