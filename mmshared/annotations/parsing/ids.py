"""Identifiers as integers: what Python's ``==`` and ``hash`` take for the same id gets the same key."""

from __future__ import annotations

import json
from array import array
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple

import numpy as np

_INT64 = 1 << 63


def _integer(value: Any) -> Optional[int]:
    """The 64-bit integer that ``value`` equals (``True`` equals 1, and 2.0 equals 2), or None."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(value) if isinstance(value, int) and -_INT64 <= value < _INT64 else None


class IdTable:
    """Keys for ids: an integer is its own key, any other value is given a number ("coded").

    Attributes:
        values: the coded values, in order of their number.
    """

    def __init__(self) -> None:
        self._codes: Dict[Hashable, int] = {}
        self.values: List[Any] = []

    def encode(self, values: Sequence[Any]) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Keys (int64) of ``values``, and which of them are coded (bool), None if none is.

        Raises:
            TypeError: a value is not hashable.
        """
        try:
            return np.frombuffer(array('q', values), np.int64), None
        except (TypeError, OverflowError):
            pairs = [self._one(value) for value in values]
            return np.array([key for key, _ in pairs], np.int64), np.array([coded for _, coded in pairs], bool)

    def texts(self) -> List[bytes]:
        """The coded values as JSON."""
        return [json.dumps(value).encode() for value in self.values]

    def _one(self, value: Any) -> Tuple[int, bool]:
        integer = _integer(value)
        if integer is not None:
            return integer, False
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.values)
            self.values.append(value)
        return code, True


class CodeTable:
    """Small consecutive codes for values that repeat a lot, such as categories.

    Attributes:
        values: the values, in order of their code; of equal ones (1, 1.0, True) the integer, if there is one.
    """

    def __init__(self) -> None:
        self._codes: Dict[Hashable, int] = {}
        self._loose = False
        self.values: List[Any] = []

    def encode(self, values: Sequence[Any]) -> np.ndarray:
        """Codes (int32) of ``values``. Raises ``TypeError`` if a value is not hashable."""
        try:
            codes = array('i', map(self._codes.__getitem__, values))
        except KeyError:
            for value in values:
                if value not in self._codes:
                    self._codes[value] = len(self.values)
                    self.values.append(value)
                    self._loose |= type(value) not in (int, str)
            codes = array('i', map(self._codes.__getitem__, values))
        if self._loose:
            for value in set(values):
                if type(value) in (int, str):
                    self.values[self._codes[value]] = value
        return np.frombuffer(codes, np.int32)


def join_keys(
    keys: np.ndarray, coded: np.ndarray, others: np.ndarray, others_coded: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
    """Two arrays of keys of one :class:`IdTable` such that plain and coded ones cannot be taken for each other."""
    anywhere = coded.any() or others_coded.any()
    if not anywhere or (coded.all() and others_coded.all()):
        return keys, others
    plain = np.concatenate([keys[~coded], others[~others_coded]])
    count = 1 + max(int(part.max(initial=0)) for part in (keys[coded], others[others_coded]))
    offset = int(plain.max(initial=0)) + 1
    if offset + count > _INT64:  # no room above them: their ranks do as well
        ranks = np.unique(plain)
        keys, others = (
            np.where(is_code, part, np.searchsorted(ranks, part))
            for part, is_code in ((keys, coded), (others, others_coded))
        )
        offset = ranks.size
    return np.where(coded, keys + offset, keys), np.where(others_coded, others + offset, others)
