"""Files to put into archives, programs that do it, and what a format makes of the result."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Dict, List, Union

from mmshared.fileio.entry import REFUSED, Kind
from mmshared.fileio.formats.base import Format

#: By the name of an entry: its bytes, or why it has none.
Contents = Dict[str, Union[bytes, Kind]]
SHORT = ['a.jpg', 'train2017/000000000009.jpg', 'train2017/with space.jpg', 'b/c/d.png', 'empty', 'train2017/dot.']
UNICODE = ['Bäume/Tür.jpg', '日本/写真.jpg']
LONG = ['l' * 99 + '/' + 'm' * 90 + '.jpg', 'n' * 120, '/'.join(['o' * 60] * 6) + '.png', 'p' * 250 + '/' + 'q' * 250]


FORMATS = {'ustar': tarfile.USTAR_FORMAT, 'gnu': tarfile.GNU_FORMAT, 'pax': tarfile.PAX_FORMAT}


class Pipe(io.RawIOBase):
    """An output that cannot be sought in, so that zipfile writes sizes behind the data."""

    def __init__(self) -> None:
        self.data = b''

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.data += bytes(data)
        return len(data)


def ignore(done: int, total: int) -> None:
    """A progress call, checked for what all of them are promised."""
    assert 0 <= done <= total


def some_bytes(names: list[str], seed: int = 0, most: int = 3000) -> Dict[str, bytes]:
    """Bytes for each of ``names``, of sizes around those of a block among others, no two alike unless empty."""
    draw = random.Random(seed)
    sizes = [1, 511, 512, 513, 1024]
    return {
        name: b'' if name == 'empty' else draw.randbytes(draw.choice(sizes + [draw.randrange(16, most)]) + 15)
        for name in names
    }


def write_tree(folder: Path, files: Dict[str, bytes]) -> None:
    for name, data in files.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, 'wb') as file:
            file.write(data)


def contents(form: Format, path: os.PathLike, verify_crc: bool = True) -> Contents:
    """What the archive has by ``form``: the last one of each name."""
    found = {entry.name: entry for entry in form.entries(os.fspath(path), ignore)}
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return {
            name: Kind(entry.kind)
            if entry.kind in REFUSED
            else form.read(descriptor, entry, os.fspath(path), verify_crc)
            for name, entry in found.items()
        }
    finally:
        os.close(descriptor)


def run(*command: str, cwd: os.PathLike, check: bool = True) -> str:
    """Run a program, and give what it prints."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors='surrogateescape', timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def packed(
    path: Path, files: Dict[str, bytes], method: int = zipfile.ZIP_STORED, streamed: bool = False, **wide
) -> Path:
    """A zip file made by zipfile."""
    pipe = Pipe()
    with zipfile.ZipFile(pipe if streamed else path, 'w', method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, 'w', **wide) as file:
                file.write(data)
    if streamed:
        path.write_bytes(pipe.data)
    return path


def packed_by_tarfile(path: Path, members: List[tarfile.TarInfo], data: Dict[str, bytes], form: str = 'gnu') -> Path:
    with tarfile.open(path, 'w', format=FORMATS[form]) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(data.get(member.name, b'')))
    return path


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, target: str = '') -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, target
    return info
