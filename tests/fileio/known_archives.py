"""Archives whose content follows from the number of an entry, so that every byte read can be checked.

The tar and the zip are made by Python's modules, the RecordIO file by a few lines of its own after the published format.
"""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Tuple

MAGIC = 0xCED7230A
KINDS = ('tar', 'zip', 'rec')


def name_of(number: int) -> str:
    """The entry's name."""
    return f'train2017/{number:012d}.jpg'


def content_of(number: int) -> bytes:
    """The entry's bytes, 1 to 3 kB: no two entries begin alike, have the same piece anywhere, or (mostly) one length."""
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


def write_records(path: Path, files: Iterable[Tuple[str, bytes]]) -> None:
    """A RecordIO file with ``.idx`` and ``.lst``; every third entry has an array of labels."""
    listed = []
    with open(path, 'wb') as records, open(path.with_suffix('.idx'), 'w') as index:
        for number, (name, content) in enumerate(files):
            labels = () if number % 3 else (1.0, 2.0)
            payload = struct.pack(f'<IfQQ{len(labels)}f', len(labels), 0.5, number, 0, *labels) + content
            index.write(f'{number}\t{records.tell()}\n')
            records.write(struct.pack('<II', MAGIC, len(payload)) + payload + bytes(-len(payload) % 4))
            listed.append(f'{number}\t0.5\t{name}\n')
    path.with_suffix('.lst').write_text(''.join(listed))


def write_rec(path: Path, entries: int) -> None:
    """See :func:`write_records`."""
    write_records(path, ((name_of(number), content_of(number)) for number in range(entries)))


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
