"""Damaged archives of all kinds: an error that says so, or the right bytes; nothing else, and soon.

Seeds, not hypothesis: the damage has no structure, and many of them are wanted in a short time.
"""

from __future__ import annotations

import io
import os
import random
import tarfile
import zipfile
from pathlib import Path
from typing import Callable, Dict, List, Optional

import pytest

from mmshared.fileio.entry import Entry, Kind
from mmshared.fileio.errors import ArchiveError
from mmshared.fileio.formats.base import Format
from mmshared.fileio.formats.detection import format_of
from mmshared.fileio.formats.tar import Tar
from mmshared.fileio.formats.zip import Zip

from .archives import LONG, SHORT, UNICODE, Pipe, ignore, run, some_bytes, write_tree

FILES = some_bytes(SHORT + UNICODE + LONG[:3], most=1500)
SEEDS = range(150)
Damage = Callable[[bytearray, random.Random, List[int]], None]


def flip(data: bytearray, draw: random.Random, places: List[int]) -> None:
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        data[draw.choice(places)] ^= 1 << draw.randrange(8)


def fill(data: bytearray, draw: random.Random, places: List[int]) -> None:
    at, count = draw.choice(places), draw.choice([1, 2, 4, 8])
    for place in range(at, at + count):
        if place in places:
            data[place] = draw.choice([0, 0xFF, draw.randrange(256)])


def duplicate(data: bytearray, draw: random.Random, places: List[int]) -> None:
    at, count = draw.choice(places), draw.choice([1, 4, 46, 512, 1024])
    data[at:at] = data[at : at + count]


def insert(data: bytearray, draw: random.Random, places: List[int]) -> None:
    at = draw.choice(places)
    data[at:at] = draw.choice([bytes, draw.randbytes])(draw.choice([1, 22, 512]))


def delete(data: bytearray, draw: random.Random, places: List[int]) -> None:
    at = draw.choice(places)
    del data[at : at + draw.choice([1, 4, 46, 512])]


def cut(data: bytearray, draw: random.Random, places: List[int]) -> None:
    del data[draw.randrange(len(data)) :]


DAMAGES = [flip, fill, duplicate, insert, delete, cut]


def readable(form: Format, path: Path, verify_crc: bool = True) -> Optional[Dict[str, bytes]]:
    """What can be read of an archive; None if it is refused as a whole. Only ArchiveError is one of ours."""
    try:
        entries: List[Entry] = list(form.entries(str(path), ignore))
    except ArchiveError as error:
        assert str(path) in str(error)
        return None
    found = {}
    size = path.stat().st_size
    with open(path, 'rb') as file:
        for entry in entries:
            assert 0 <= entry.offset <= entry.offset + entry.stored <= size and entry.name
            try:
                if entry.kind <= Kind.RECORD:
                    found[entry.name] = form.read(file.fileno(), entry, str(path), verify_crc)
            except ArchiveError as error:
                assert str(path) in str(error)
    return found


@pytest.fixture(scope='module')
def tars(tmp_path_factory) -> Dict[str, bytes]:
    """Archives with long names and links, whose data have not the checksum of a header."""
    folder = tmp_path_factory.mktemp('tars')
    write_tree(folder / 'in', FILES)
    os.symlink(SHORT[0], folder / 'in' / 'link')
    os.link(folder / 'in' / SHORT[1], folder / 'in' / 'hard')
    for form in ('gnu', 'posix'):
        run('tar', f'--format={form}', '--sort=name', '-cf', f'../{form}', '.', cwd=folder / 'in')
    return {form: (folder / form).read_bytes() for form in ('gnu', 'posix')}


def header_bytes(data: bytes) -> List[int]:
    """Where the headers are: the files' own and GNU's long names'. A pax header's text has no checksum."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        starts = {info.offset_data - 512 for info in archive} | {info.offset for info in archive}
    return [at for start in sorted(starts) for at in range(start, start + 512)]


@pytest.mark.parametrize('damage', DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize('form', ['gnu', 'posix'])
def test_tar(tmp_path, tars, form, damage) -> None:
    expected = {**FILES, 'link': FILES[SHORT[0]], 'hard': FILES[SHORT[1]]}
    places = header_bytes(tars[form])
    path = tmp_path / 'a'
    refused = 0
    for seed in SEEDS:
        data = bytearray(tars[form])
        damage(data, random.Random(seed), places)
        path.write_bytes(data)
        found = readable(Tar(), path)
        refused += found is None
        for name, content in (found or {}).items():
            if name in expected:
                assert content == expected[name], (seed, name)
            else:  # the text of a long name has no checksum
                assert content in FILES.values(), (seed, name)
        # What is not refused must be all there is, unless the archive ends between two members.
        if found is not None and damage is not cut:
            assert data == tars[form] or found == expected or damage in (duplicate, delete), seed
    assert refused > len(SEEDS) // 3


def test_tar_text_of_pax_headers(tmp_path, tars) -> None:
    """A name may become another one, as it has no checksum; the data are those of a file, or of a part of it."""
    with tarfile.open(fileobj=io.BytesIO(tars['posix'])) as archive:
        places = [at for info in archive for at in range(info.offset + 512, info.offset_data - 512)]
    path = tmp_path / 'a'
    for seed in SEEDS:
        data = bytearray(tars['posix'])
        random.Random(seed).choice([flip, fill])(data, random.Random(seed), places)
        path.write_bytes(data)
        for name, content in (readable(Tar(), path) or {}).items():
            assert content in FILES.values(), (seed, name)


@pytest.mark.parametrize('form', ['gnu', 'posix'])
def test_tar_cut_anywhere(tmp_path, tars, form) -> None:
    """Never more than what is whole; refused everywhere but between members and in the end."""
    with tarfile.open(fileobj=io.BytesIO(tars[form])) as archive:
        between = {info.offset for info in archive} | {archive.offset}
        end = archive.offset
    path = tmp_path / 'a'
    for at in sorted({*between, *range(0, len(tars[form]), 256), *(place + 1 for place in between)}):
        path.write_bytes(tars[form][:at])
        found = readable(Tar(), path)
        assert (found is not None) == (at in between or (at > end and at % 512 == 0)), at


@pytest.fixture(scope='module', params=['stored', 'deflated', 'pipe', 'zip64', 'comment'])
def packed_zip(request, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp('zip') / 'a'
    method = zipfile.ZIP_DEFLATED if request.param == 'deflated' else zipfile.ZIP_STORED
    pipe = Pipe()
    with zipfile.ZipFile(pipe if request.param == 'pipe' else path, 'w', method) as archive:
        for name, data in FILES.items():
            with archive.open(name, 'w', force_zip64=request.param == 'zip64') as file:
                file.write(data)
        if request.param == 'comment':
            archive.comment = b'a comment, PK\5\7' * 20
    return bytes(pipe.data) if request.param == 'pipe' else path.read_bytes()


@pytest.mark.parametrize('damage', DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize('where', ['directory', 'headers', 'anywhere'])
def test_zip(tmp_path, packed_zip, where, damage) -> None:
    with zipfile.ZipFile(io.BytesIO(packed_zip)) as archive:
        start = archive.start_dir
        headers = [at for info in archive.infolist() for at in range(info.header_offset, info.header_offset + 60)]
    places = {'directory': range(start, len(packed_zip)), 'headers': headers, 'anywhere': range(len(packed_zip))}[where]
    path = tmp_path / 'a'
    harmed = 0
    for seed in SEEDS[:50]:
        data = bytearray(packed_zip)
        damage(data, random.Random(seed), places)
        path.write_bytes(data)
        # Without CRC only the data themselves, and how far from their header they are, can be wrong.
        for verify in (True, False) if where == 'directory' else (True,):
            found = readable(Zip(), path, verify)
            harmed += found != FILES
            for name, content in (found or {}).items():
                assert content == FILES[name], (seed, name)
    assert harmed > 5


def test_anything(tmp_path) -> None:
    """Noise, and noise behind what begins like an archive."""
    path = tmp_path / 'a'
    heads = [b'', b'PK\3\4', b'PK\5\6', tarfile.TarInfo('x').tobuf(), b'PK\5\6' + bytes(18)]
    for seed in range(150):
        draw = random.Random(seed)
        path.write_bytes(draw.choice(heads) + draw.randbytes(draw.randrange(3000)) + draw.choice(heads))
        try:
            assert readable(format_of(str(path)), path) in (None, {}, {'x': b''})
        except ArchiveError as error:
            assert str(path) in str(error)
