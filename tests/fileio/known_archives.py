"""Archives whose content follows from the number of an entry, so that every byte read can be checked.

The tar and the zip are made by Python's modules, the RecordIO file by lines that follow the published format.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict

from . import record_files
from .record_files import Image

KINDS = ('tar', 'zip', 'rec')


def name_of(number: int) -> str:
    """The entry's name."""
    return f'train2017/{number:012d}.jpg'


def content_of(number: int) -> bytes:
    """The entry's bytes, 1 to 3 kB: no two have a piece in common, and few have one length."""
    return hashlib.shake_128(number.to_bytes(8, 'little')).digest(1000 + number * 7919 % 2000)


def write_tar(path: Path, entries: int) -> None:
    """As GNU tar makes it."""
    with tarfile.open(path, 'w', format=tarfile.GNU_FORMAT) as archive:
        for number in range(entries):
            info = tarfile.TarInfo(name_of(number))
            info.size = len(content_of(number))
            archive.addfile(info, io.BytesIO(content_of(number)))


def write_zip(path: Path, entries: int) -> None:
    """Every other entry is deflated."""
    with zipfile.ZipFile(path, 'w') as archive:
        for number in range(entries):
            way = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            archive.writestr(name_of(number), content_of(number), way)


def write_rec(path: Path, entries: int) -> None:
    """With ``.idx`` and ``.lst``; every third entry has an array of labels."""
    images = (Image(n, content_of(n), 0.5 if n % 3 else (1.0, 2.0), name_of(n)) for n in range(entries))
    record_files.write_archive(path, list(images))


_WRITERS: Dict[str, Callable[[Path, int], None]] = {'tar': write_tar, 'zip': write_zip, 'rec': write_rec}


def write_archive(folder: Path, kind: str, entries: int) -> Path:
    """Write ``folder/images.KIND``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f'images.{kind}'
    _WRITERS[kind](path, entries)
    return path


def backend_args(archive: Path, cache: Path, **options: Any) -> Dict[str, Any]:
    """What a config says to read from the archive."""
    return dict(backend='record', archive=str(archive), cache_dir=str(cache), **options)
