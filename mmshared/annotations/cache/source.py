"""What identifies an annotation file, so that a store is used for exactly the file it was made from.

Size and modification time are not enough: ``rsync -t``, ``cp -p`` or a restored backup keep both. The change time and
the inode cannot be set by a program, and a hash of some blocks covers file systems that have neither. The device number
is left out on purpose: it differs between nodes and between boots for the same file on the same file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple, Union

WHOLE_BYTES = 1 << 20  # up to this size, all of the file is hashed
BLOCK_BYTES = 16 << 10
BLOCKS = 32  # of a larger file, evenly spaced from head to tail: half a MB whatever its size
_TICK_NS = 20_000_000  # file times advance in steps of the kernel's timer, 10 ms at most
_COARSE_TICK_NS = 2_000_000_000  # and in whole seconds, or two, on some older and network file systems


@dataclass(frozen=True)
class Fingerprint:
    """A source and the facts that change when its content does.

    Make one with :meth:`of_file`, or directly for a source that is not a file: any ``facts`` will do as key.

    Attributes:
        source: Real path of the file, or the address of a remote one.
        facts: (name, value) pairs of plain values.
        size: Bytes of the source, if known: how much space a store may need, what progress counts to.
        is_file: Whether :meth:`again` can look at it once more.
        kind: What is made of the source, if several things are; each has stores of its own.
    """

    source: str
    facts: Tuple[Tuple[str, Union[int, str]], ...] = ()
    size: Optional[int] = None
    is_file: bool = False
    kind: str = ''

    @classmethod
    def of_file(cls, path: Union[str, os.PathLike], kind: str = '') -> Fingerprint:
        """Look at the file at ``path``; symbolic links are followed.

        Raises:
            FileNotFoundError, PermissionError, IsADirectoryError: As from ``open``.
            ValueError: It is a pipe, a device or the like: its content cannot be identified.
        """
        real = os.path.realpath(os.fsdecode(path))
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(real):
            raise ValueError(f'{path} is not a regular file: it can be neither identified nor read twice.')
        with open(real, 'rb', buffering=0) as file:
            info = os.fstat(file.fileno())
            digest = _sample(file, info.st_size)
        facts = (
            ('size', info.st_size),
            ('mtime_ns', info.st_mtime_ns),
            ('ctime_ns', info.st_ctime_ns),
            ('inode', info.st_ino),
            ('blocks', digest),
        )
        return cls(real, facts, info.st_size, is_file=True, kind=kind)

    def again(self) -> Fingerprint:
        """The fingerprint of the same source as it is now; of a source that is no file, itself.

        Raises:
            OSError: The file is gone or cannot be read any more.
        """
        return Fingerprint.of_file(self.source, self.kind) if self.is_file else self

    def settle(self) -> None:
        """Wait, if the file was changed only just now, until any later change must show in its times."""
        changed = dict(self.facts).get('ctime_ns') if self.is_file else None
        if not isinstance(changed, int):
            return
        tick = _COARSE_TICK_NS if changed % 1_000_000_000 == 0 else _TICK_NS
        age = time.time_ns() - changed
        if 0 <= age < tick:
            time.sleep((tick - age) / 1e9)

    @property
    def label(self) -> str:
        """The source's file name, for people."""
        return re.split(r'[/\\]', self.source.rstrip('/\\'))[-1] or self.source

    def prefix(self, version: int) -> str:
        """How the names of all stores of this source, whatever its content, begin in that format version."""
        stem = re.sub(r'[^A-Za-z0-9_.-]+', '_', Path(self.label).stem).lstrip('.')[:48] or 'source'
        return f'{stem}-v{version}{self.kind}-{_hash(self.source, 4)}-'

    def key(self, version: int) -> str:
        """32 hexadecimal digits that differ when source, facts or format version do (``kind`` is in the prefix)."""
        return _hash(json.dumps([self.source, self.facts, version]), 16)


def _hash(text: str, size: int) -> str:
    return hashlib.blake2b(text.encode('utf-8', 'surrogateescape'), digest_size=size).hexdigest()


def _sample(file, size: int) -> str:
    """Hash all of a small file, or evenly spaced blocks, the first and the last bytes among them, of a large one."""
    digest = hashlib.blake2b(digest_size=16)
    if size <= WHOLE_BYTES:
        offsets, length = range(0, size, BLOCK_BYTES), BLOCK_BYTES
    else:
        offsets, length = [(size - BLOCK_BYTES) * i // (BLOCKS - 1) for i in range(BLOCKS)], BLOCK_BYTES
    for offset in offsets:
        file.seek(offset)
        digest.update(file.read(length))
    return digest.hexdigest()
