"""RecordIO by the published format alone: nothing of it is shared with what is tested."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Union

import numpy as np

MAGIC = bytes([0x0A, 0x23, 0xD7, 0xCE])
MAGIC_NUMBER = 0xCED7230A


class Image(NamedTuple):
    key: int
    data: bytes
    label: Union[float, Sequence[float]] = 0.0
    name: Optional[str] = None


def image_record(image: Image) -> bytes:
    """The data of a record: IRHeader, labels, image."""
    header = np.zeros((), np.dtype([('flag', '<u4'), ('label', '<f4'), ('id', '<u8'), ('id2', '<u8')]))
    header['id'] = image.key
    labels = b''
    if isinstance(image.label, float):
        header['label'] = image.label
    else:
        header['flag'] = len(image.label)
        labels = np.array(image.label, '<f4').tobytes()
    return header.tobytes() + labels + image.data


def encoded(data: bytes) -> bytes:
    """A record: split at each aligned word that is the magic number."""
    words = np.frombuffer(data[: len(data) // 4 * 4], '<u4')
    cuts = [int(place) * 4 for place in np.flatnonzero(words == MAGIC_NUMBER)]
    parts = [data[begin:end] for begin, end in zip([0, *(cut + 4 for cut in cuts)], [*cuts, len(data)])]
    out = io.BytesIO()
    for number, part in enumerate(parts):
        if len(parts) == 1:
            flag = 0
        else:
            flag = 1 if number == 0 else 3 if number == len(parts) - 1 else 2
        out.write(np.array([MAGIC_NUMBER, flag << 29 | len(part)], '<u4').tobytes() + part)
        while out.tell() % 4:
            out.write(b'\0')
    return out.getvalue()


def write_archive(path: Path, images: Sequence[Image]) -> Dict[int, int]:
    """``path`` (.rec), its .idx, and its .lst if the images have names; returns the offsets by key."""
    offsets: Dict[int, int] = {}
    with open(path, 'wb') as file:
        for image in images:
            offsets[image.key] = file.tell()
            file.write(encoded(image_record(image)))
    path.with_suffix('.idx').write_text(''.join(f'{key}\t{offset}\n' for key, offset in offsets.items()))
    if any(image.name is not None for image in images):
        with open(path.with_suffix('.lst'), 'w', newline='') as file:
            for image in images:
                labels = [image.label] if isinstance(image.label, float) else image.label
                file.write('\t'.join([str(image.key), *(f'{label:f}' for label in labels), str(image.name)]) + '\n')
    return offsets


def small_archive(path: Path) -> Path:
    """Three images with names, the second one in several parts."""
    write_archive(
        path,
        [
            Image(4, b'first', 1.5, 'train/4.jpg'),
            Image(17, b'se' * 4 + MAGIC + b'code' + MAGIC * 3 + b'un' + MAGIC + b'nd', [1.0, 2.0], 'train/17.jpg'),
            Image(2, b'\xff\xd8third', [], 'train/2.jpg'),
        ],
    )
    return path


def read_records(path: Path) -> List[bytes]:
    """The data of all records, one after the other, as a program without an index reads them."""
    content = path.read_bytes()
    records, place, begun = [], 0, None
    while place < len(content):
        magic, word = np.frombuffer(content[place : place + 8], '<u4').tolist()
        flag, length = word >> 29, word & 0x1FFFFFFF
        assert magic == MAGIC_NUMBER and place % 4 == 0 and place + 8 + length <= len(content)
        data = content[place + 8 : place + 8 + length]
        place += 8 + (length + 3) // 4 * 4
        if flag in (0, 1):
            assert begun is None
            begun = data
        else:
            begun += MAGIC + data
        if flag in (0, 3):
            records.append(begun)
            begun = None
    assert begun is None
    return records


def read_images(path: Path) -> Dict[str, bytes]:
    """The images by the names in ``.lst``, found by the ids of their headers, not by ``.idx``."""
    names = {}
    for line in path.with_suffix('.lst').read_bytes().splitlines():
        fields = line.split(b'\t')
        names[int(fields[0])] = fields[-1].decode('utf-8', 'surrogateescape')
    found = {}
    for record in read_records(path):
        flag, number = int(np.frombuffer(record[:4], '<u4')[0]), int(np.frombuffer(record[8:16], '<u8')[0])
        found[names[number]] = record[24 + 4 * flag :]
    return found
