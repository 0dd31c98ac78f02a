"""What RecordIO says of an archive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List

from mmshared.fileio.entry import Entry
from mmshared.fileio.formats.recordio import RecordIO


def entries(path: Path) -> List[Entry]:
    return list(RecordIO().entries(os.fspath(path), lambda done, total: None))


def contents(path: Path) -> Dict[str, bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return {entry.name: RecordIO().read(descriptor, entry, os.fspath(path)) for entry in entries(path)}
    finally:
        os.close(descriptor)
