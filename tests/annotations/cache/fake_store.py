"""A trivial store format: the cache does not care what a store holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

MAGIC = b'FAKE'
HEADER = len(MAGIC) + 8 + 16


def encode(payload: bytes) -> bytes:
    return MAGIC + len(payload).to_bytes(8, 'little') + hashlib.blake2b(payload, digest_size=16).digest() + payload


def decode(path) -> bytes:
    data = Path(path).read_bytes()
    if data != encode(data[HEADER:]):
        raise ValueError('no store')
    return data[HEADER:]


def check(path) -> bool:
    try:
        decode(path)
    except ValueError:
        return False
    return True


class Builder:
    """Writes the source's bytes ``repeat`` times, in steps, by way of a scratch file; counts its calls."""

    def __init__(self, repeat: int = 1, steps: int = 4) -> None:
        self.calls = 0
        self.repeat = repeat
        self.steps = steps

    def __call__(self, source, out, progress, scratch) -> None:
        self.calls += 1
        payload = Path(source).read_bytes() * self.repeat
        data = encode(payload)
        with scratch() as notes:
            notes.write(data[:HEADER])
            step = max(1, len(data) // self.steps)
            for start in range(0, len(data), step):
                out.write(data[start : start + step])
                out.flush()
                progress(start, len(data))
            notes.seek(0)
            assert notes.read() == data[:HEADER]
