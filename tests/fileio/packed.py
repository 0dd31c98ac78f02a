"""Folders to be packed, and what archives of them hold, as other people's programs and ours read them."""

from __future__ import annotations

import os
import tarfile
import zipfile
from pathlib import Path
from typing import Dict, List

from mmshared.fileio.formats.detection import format_of

from .record_files import MAGIC, read_images

LONG = 'long-' + 'x' * 150 + '.jpg'
FILES = {
    '000000000009.jpg': b'\xff\xd8nine' * 300,
    'b.jpg': b'',
    'a/z.jpg': b'z' * 512,
    'a-b/c.png': b'\x89PNG' + bytes(range(256)) * 5,
    'ä 鸟.jpg': MAGIC * 7 + b'x' + MAGIC,
    f'deep/{"d" * 90}/{LONG}': b'deep',
}
FORMATS = ('tar', 'zip', 'rec')


def make(folder: Path, files: Dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1_600_000_000, 1_600_000_001))
    return folder


def named(folder: Path, files: Dict[str, bytes] = FILES) -> Dict[str, bytes]:
    return {f'{folder.name}/{name}': data for name, data in files.items()}


def by_others(path: Path) -> Dict[str, bytes]:
    """What an archive holds, in its order, as read by programs that are not ours."""
    if path.suffix == '.tar':
        with tarfile.open(path, encoding='utf-8', errors='surrogateescape') as archive:
            return {member.name: archive.extractfile(member).read() for member in archive}
    if path.suffix == '.zip':
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            return {name: archive.read(name) for name in archive.namelist()}
    return read_images(path)


def by_us(path: Path) -> Dict[str, bytes]:
    found = format_of(os.fspath(path))
    with open(path, 'rb') as file:
        return {
            entry.name: found.read(file.fileno(), entry, os.fspath(path))
            for entry in found.entries(os.fspath(path), lambda done, total: None)
        }


def listed(folder: Path) -> List[str]:
    return sorted(os.listdir(folder))


def archive_files(stem: str, suffix: str) -> List[str]:
    return [f'{stem}.idx', f'{stem}.lst', f'{stem}.rec'] if suffix == 'rec' else [f'{stem}.{suffix}']
