"""What the benchmark of archives reads: images' worth of bytes in a folder, and in archives; and archives of very many.

Archives of images are made by Python's modules, except RecordIO files, which ``mmshared pack-images`` makes, and LMDB.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np

#: Where a config would say that the images are. There is nothing there.
DATA_ROOT = 'data/coco/'
TINY_BYTES = 8  # of an entry of an archive of very many
_BLOCK = 20_000
_DATE = 0x21  # 1980-01-01, the first that a zip can have
_NAME = len('train2017/000000000000.jpg')


def _record(fields: str, *more: Tuple[Any, ...]) -> np.dtype:
    """A record of unsigned numbers (``name:bytes``, little-endian) and ``more`` fields, without gaps."""
    numbers = [field.partition(':') for field in fields.split()]
    return np.dtype([(name, f'<u{size}') for name, _, size in numbers] + [*more])


_COMMON = 'version:2 flags:2 method:2 time:2 date:2 crc:4 stored:4 size:4 name_bytes:2 extra:2 '
_LOCAL = _record('signature:4 ' + _COMMON, ('name', 'u1', (_NAME,)), ('data', '<u8'))
_CENTRAL = _record(
    f'signature:4 made_by:2 {_COMMON} comment:2 disk:2 inner:2 mode:4 offset:4', ('name', 'u1', (_NAME,))
)
_END = _record(
    'signature:4 bytes:8 made_by:2 version:2 disk:4 first:4 here:8 entries:8 central:8 start:8 '
    'locator:4 its_disk:4 at:8 disks:4 end:4',
    ('rest', 'u1', (18,)),
)


def name_of(number: int) -> str:
    """The name of an entry, as COCO has it."""
    return f'train2017/{number:012d}.jpg'


# ---- some hundred images
def images(count: int, kilobytes: int) -> Iterator[Tuple[str, bytes]]:
    """Names and random bytes, which compress as little as JPEG does; sizes differ by up to a fifth."""
    draw = np.random.default_rng(kilobytes)
    for number in range(count):
        yield name_of(number), draw.bytes(int(kilobytes * 1000 * draw.uniform(0.8, 1.2)))


def write_folder(out: Path, count: int, kilobytes: int) -> None:
    """The images as files."""
    (out / 'train2017').mkdir(parents=True)
    for name, data in images(count, kilobytes):
        (out / name).write_bytes(data)


def _write_tar(folder: Path, out: Path) -> None:
    with tarfile.open(out, 'w') as archive:
        archive.add(folder / 'train2017', 'train2017')


def _write_zip(folder: Path, out: Path) -> None:
    with zipfile.ZipFile(out, 'w') as archive:
        for image in sorted((folder / 'train2017').iterdir()):
            archive.write(image, f'train2017/{image.name}')


def _write_rec(folder: Path, out: Path) -> None:
    command = [sys.executable, '-m', 'mmshared', 'pack-images', str(folder / 'train2017'), '-o', str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2])
    if done.returncode:
        raise OSError(f'mmshared pack-images failed:\n{done.stderr.strip()[-2000:]}')


def _write_lmdb(folder: Path, out: Path) -> None:
    import lmdb

    files = sorted((folder / 'train2017').iterdir())
    room = 2 * sum(file.stat().st_size for file in files) + (64 << 20)
    with lmdb.open(str(out), map_size=room) as environment, environment.begin(write=True) as transaction:
        for image in files:
            transaction.put(f'{DATA_ROOT}train2017/{image.name}'.encode(), image.read_bytes())


WRITERS: Dict[str, Callable[[Path, Path], None]] = {
    'tar': _write_tar,
    'zip': _write_zip,
    'rec': _write_rec,
    'lmdb': _write_lmdb,
}


def read_anew(path: Path) -> None:
    """Have the system's cache hold what is at ``path`` as it holds what was read from the disk.

    What a program has just written lies there in other pieces, as large as its writes were, and copying out of many
    small ones takes up to three times as long. Who trains has not just written the data.
    """
    for file in sorted(path.rglob('*')) if path.is_dir() else [path]:
        if file.is_file():
            with open(file, 'rb', buffering=0) as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while opened.read(1 << 20):
                    pass


# ---- a million entries
def _digits(numbers: np.ndarray, count: int, base: int = 10) -> np.ndarray:
    """ASCII digits, a row for each number."""
    return (numbers[:, None] // base ** np.arange(count - 1, -1, -1) % base + ord('0')).astype(np.uint8)


def _blocks(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, count))


def write_many_tar(out: Path, count: int) -> None:
    """A tar of ``count`` entries, each of :data:`TINY_BYTES` bytes: its number. 1 kB an entry."""
    info = tarfile.TarInfo(name_of(0))
    info.size = TINY_BYTES
    template = np.frombuffer(info.tobuf(tarfile.USTAR_FORMAT), np.uint8)
    first, checksum = len('train2017/'), slice(148, 154)
    fixed = int(template.sum()) - int(template[148:156].sum()) + 8 * ord(' ')
    with open(out, 'wb') as file:
        for numbers in _blocks(count):
            block = np.zeros((numbers.size, 1024), np.uint8)
            block[:, :512] = template
            block[:, first : first + 12] = _digits(numbers, 12)
            sums = fixed + block[:, first : first + 12].sum(1, dtype=np.int64) - 12 * ord('0')
            block[:, checksum] = _digits(sums, 6, 8)
            block[:, 512 : 512 + TINY_BYTES] = numbers.astype('<u8')[:, None].view(np.uint8)
            file.write(block.data)
        file.write(bytes(1024))


def write_many_zip(out: Path, count: int) -> None:
    """The same as a zip, which needs zip64 from 65,536 entries on (and has it always). 138 bytes an entry."""
    central = io.BytesIO()
    with open(out, 'wb') as file:
        for numbers in _blocks(count):
            data = numbers.astype('<u8')
            local, entry = np.zeros(numbers.size, _LOCAL), np.zeros(numbers.size, _CENTRAL)
            for part, signature in ((local, b'PK\3\4'), (entry, b'PK\1\2')):
                part['signature'] = int.from_bytes(signature, 'little')
                part['version'], part['date'], part['name_bytes'] = 20, _DATE, _NAME
                part['stored'] = part['size'] = TINY_BYTES
                part['crc'] = [zlib.crc32(value) for value in data[:, None]]
                part['name'] = np.frombuffer(name_of(0).encode(), np.uint8)
                part['name'][:, len('train2017/') : -len('.jpg')] = _digits(numbers, 12)
            local['data'] = data
            entry['offset'] = numbers * _LOCAL.itemsize
            file.write(local.data)
            central.write(entry.data)
        end = np.zeros(1, _END)
        end['signature'], end['locator'], end['end'] = (
            int.from_bytes(signature, 'little') for signature in (b'PK\6\6', b'PK\6\7', b'PK\5\6')
        )
        end['bytes'], end['version'], end['disks'] = 44, 45, 1
        end['here'] = end['entries'] = count
        end['central'], end['start'] = central.tell(), file.tell()
        end['at'] = file.tell() + central.tell()
        end['rest'][:, 4:16] = 255  # entries, size and place of the central directory: see zip64
        file.write(central.getbuffer())
        file.write(end.tobytes())


MANY: Dict[str, Callable[[Path, int], None]] = {'tar': write_many_tar, 'zip': write_many_zip}
