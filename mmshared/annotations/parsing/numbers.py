"""JSON text of many small number lists -> flat arrays, without a Python object per number.

``simdjson`` flattens nested lists of numbers in C; where a list ended and whether a number was written as an integer
(``12`` against ``12.0``, which Python's ``json`` tells apart and so must we) is read off the text itself.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import simdjson

#: Integers up to here, and the sum of two of them, are exact in a double.
MAX_INTEGER = 1 << 51
_IS_NUMBER = np.zeros(256, bool)
_IS_NUMBER[np.frombuffer(b'+-.0123456789eE', np.uint8)] = True
_IS_FRACTION = np.zeros(256, bool)
_IS_FRACTION[np.frombuffer(b'.eE', np.uint8)] = True
#: Stands between lists, so that one pass gives their numbers and their lengths; it has no dot.
MARK = 9e300
_BETWEEN, _END = b',9e300,', b',9e300]'
_local = threading.local()  # a parser must not be used by two threads at once


class NotPlain(Exception):
    """The text holds something else than what the fast path knows; the record has to take the slow one."""


class Numbers(NamedTuple):
    """Numbers of a list of JSON values.

    Attributes:
        values: float64, shape (N,), each the double that Python's ``json`` would give (integers converted).
        is_int: bool, shape (N,), True where the text was an integer; None if nowhere.
    """

    values: np.ndarray
    is_int: Optional[np.ndarray]


def _parser() -> simdjson.Parser:
    try:
        return _local.parser
    except AttributeError:
        _local.parser = simdjson.Parser()
        return _local.parser


def _flatten(text: bytes) -> np.ndarray:
    try:
        return np.frombuffer(_parser().parse(text).as_buffer(of_type='d'), np.float64)
    except (ValueError, RuntimeError, TypeError) as error:  # simdjson's own errors are spread over these
        raise NotPlain(str(error)) from None


def _integers(codes: np.ndarray, values: np.ndarray, marks: int = 0) -> Optional[np.ndarray]:
    """Which numbers of the text ``codes`` (uint8) are written without fraction and exponent; None if none is."""
    if np.count_nonzero(codes == 0x2E) == values.size - marks:  # a dot in each
        return None
    is_number = _IS_NUMBER[codes]
    starts = np.flatnonzero(is_number[1:] & ~is_number[:-1]) + 1  # text begins with '[': never at 0
    if starts.size != values.size:
        raise NotPlain('not only numbers')
    is_int = np.ones(values.size, bool)
    is_int[np.searchsorted(starts, np.flatnonzero(_IS_FRACTION[codes]), 'right') - 1] = False
    if (np.abs(values[is_int]) > MAX_INTEGER).any():
        raise NotPlain('an integer too large for a double')
    return is_int if is_int.any() else None


def _preceded(codes: np.ndarray, at: np.ndarray, text: bytes) -> bool:
    """Whether ``text`` precedes each of the positions ``at`` of ``codes``."""
    return all((codes[at - (len(text) - i)] == code).all() for i, code in enumerate(text))


class Scalars:
    """Texts (bytes-like) of one number each, joined."""

    def __init__(self, texts: Sequence[Any]) -> None:
        self._text, self._count = b'[' + b','.join(texts) + b']', len(texts)

    def parse(self) -> Numbers:
        """The numbers. Raises :class:`NotPlain` if a text is not a number."""
        values, codes = _flatten(self._text), np.frombuffer(self._text, np.uint8)
        if values.size != self._count or np.count_nonzero(codes == 0x5B) != 1:
            raise NotPlain('not a number each')
        return Numbers(values, _integers(codes, values))


class Lists:
    """Texts (bytes-like) of a flat list of numbers each, joined."""

    def __init__(self, texts: Sequence[Any]) -> None:
        self._text, self._count = b'[' + _BETWEEN.join(texts) + _END, len(texts)

    def parse(self) -> Tuple[Numbers, np.ndarray]:
        """All their numbers, and the length of each list (int64).

        Raises:
            NotPlain: a text is not a list, or holds something else than numbers.
        """
        if not self._count:
            return Numbers(np.zeros(0), None), np.zeros(0, np.int64)
        values, codes = _flatten(self._text), np.frombuffer(self._text, np.uint8)
        opening = np.flatnonzero(codes == 0x5B)
        if opening.size != self._count + 1 or not _preceded(codes, opening[2:], _BETWEEN) or opening[1] != 1:
            raise NotPlain('not a flat list each')
        is_mark = values == MARK
        ends = np.flatnonzero(is_mark)
        if ends.size != self._count:
            raise NotPlain('a number that marks the ends')
        ends -= np.arange(ends.size)
        numbers = ~is_mark
        is_int = _integers(codes, values, ends.size)
        return Numbers(values[numbers], None if is_int is None else is_int[numbers]), np.diff(ends, prepend=0)
