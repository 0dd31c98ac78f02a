"""Guesses where an array of a JSON file can be cut, so that several processes can begin at once.

A guess is proven by whoever parses what lies before it: if that ends exactly there, it is an element's boundary.
"""

from __future__ import annotations

import re
from typing import Iterable, List

from .stream import Cut, JsonFile

_BOUNDARY = re.compile(rb'\}[ \t\n\r]*,[ \t\n\r]*\{')
_BLOCK = 1 << 20


def guess_end(file: JsonFile, start: int, keys: Iterable[str]) -> int:
    """Where the array that begins at ``start`` may end: before the next of ``keys``, else at the end of the file."""
    texts = [f'"{key}"'.encode() for key in keys]
    offset, longest = start, max(map(len, texts), default=1)
    while texts:
        data = file.read(offset, _BLOCK)
        found = [at for at in map(data.find, texts) if at >= 0]
        if found:
            return offset + min(found)
        if len(data) < _BLOCK:
            break
        offset += _BLOCK - longest
    return file.size


def guess_cuts(file: JsonFile, start: int, end: int, parts: int) -> List[Cut]:
    """Up to ``parts - 1`` cuts that divide the array between ``start`` and ``end`` evenly, in order."""
    cuts: List[Cut] = []
    for i in range(1, parts):
        offset = start + (end - start) * i // parts
        match = _BOUNDARY.search(file.read(offset, _BLOCK))
        if match:
            cut = Cut(offset + match.start() + 1, offset + match.end() - 1)
            if cut.end < end and cut not in cuts:
                cuts.append(cut)
    return cuts
