"""Column encodings: narrow integers, decimals as scaled integers, coordinates in two bytes.

COCO's numbers are decimals with few digits. ``round(x * 100) / 100`` gives back the identical double, because a
correctly rounded quotient of two exact integers is the double nearest to the decimal, which is what the parser made
of it. (Multiplying by 0.01 is another number in 14% of the cases.) Each value's bits are compared when written; what
does not come back stays float64. ``-0.0`` is one of those: it equals 0.0, but is not the same.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

import numpy as np

#: Decimal scales a value may be stored with, by code.
SCALES = np.array([1, 10, 100, 1000, 10000], np.int32)
_SCALES = SCALES.tolist()
#: Storage of a record's coordinates: offsets of two bytes from its smallest, four bytes, or doubles as they are.
U16, I32, F64 = range(3)
WIDTHS = (np.dtype('<u2'), np.dtype('<i4'), np.dtype('<f8'))
_INT32 = (1 << 31) - 1


def narrow(array: np.ndarray) -> np.ndarray:
    """An integer array in the smallest of uint8, uint16, int32, int64 that holds it."""
    if array.size == 0:
        return array.astype(np.uint8)
    low, high = int(array.min()), int(array.max())
    for dtype in (np.uint8, np.uint16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return array.astype(dtype)
    return array.astype(np.int64)


def scaled(values: np.ndarray, scale: int) -> Tuple[np.ndarray, np.ndarray]:
    """``values * scale`` rounded (float64), and where dividing that by ``scale`` gives back the same bits."""
    with np.errstate(over='ignore', invalid='ignore'):
        quotients = np.rint(values * scale)
        quotients += 0.0  # -0.0 becomes 0.0, as in an integer column: its bits then differ
        exact = (quotients / scale).view(np.int64) == values.view(np.int64)
    exact &= np.abs(quotients) <= _INT32
    return quotients, exact


def compact(values: np.ndarray) -> Tuple[np.ndarray, int]:
    """float64 values (any shape) as the smallest integers with one scale for all, or, with scale 0, as they are."""
    flat = np.ascontiguousarray(values).reshape(-1)
    for scale in _SCALES:
        if flat.size and not scaled(flat[:256], scale)[1].all():
            continue
        quotients, exact = scaled(flat, scale)
        if exact.all():
            return narrow(quotients.astype(np.int64)).reshape(values.shape), scale
    return values, 0


class Coordinates(NamedTuple):
    """Coordinates of some records, encoded.

    Attributes:
        code: uint8, per record: width (U16, I32 or F64) * 8 + index into :data:`SCALES`.
        base: int32, per record: what is added to its two-byte offsets; 0 where they are the values themselves.
        parts: bytes of the records of each width, in order.
    """

    code: np.ndarray
    base: np.ndarray
    parts: Tuple[np.ndarray, np.ndarray, np.ndarray]


class CoordinateEncoder:
    """Chooses scale and width for each record; remembers the scale that fitted last, for speed only."""

    def __init__(self) -> None:
        self._usual = 2

    def encode(self, values: np.ndarray, lengths: np.ndarray, all_integers: bool) -> Coordinates:
        """``values``: float64, all records' coordinates; ``lengths``: how many each record has (may be 0)."""
        code, base = np.full(lengths.size, F64 * 8, np.uint8), np.zeros(lengths.size, np.int32)
        some = np.flatnonzero(lengths)
        starts = (np.cumsum(lengths) - lengths)[some]
        if not some.size:
            return Coordinates(np.zeros_like(code), base, tuple(np.zeros(0, w) for w in WIDTHS))
        order = [0] if all_integers else [self._usual, *(i for i in range(len(_SCALES)) if i != self._usual)]
        quotients, left = values, np.ones(some.size, bool)
        for index in order:
            tried, exact = scaled(values, _SCALES[index])
            fits = left & (exact.all() or np.logical_and.reduceat(exact, starts))
            if fits.all():
                quotients = tried
                self._usual = index if not all_integers else self._usual
            elif fits.any():
                quotients = np.where(np.repeat(fits, lengths[some]), tried, quotients)
            code[some[fits]] = I32 * 8 + index
            left &= ~fits
            if not left.any():
                break
        return self._pack(quotients, lengths, some, starts, code, base)

    @staticmethod
    def _pack(
        quotients: np.ndarray,
        lengths: np.ndarray,
        some: np.ndarray,
        starts: np.ndarray,
        code: np.ndarray,
        base: np.ndarray,
    ) -> Coordinates:
        low, high = np.minimum.reduceat(quotients, starts), np.maximum.reduceat(quotients, starts)
        with np.errstate(invalid='ignore', over='ignore'):
            small = (code[some] >> 3 == I32) & (high - low <= 65535)
        code[some[small]] -= (I32 - U16) * 8
        low[(low >= 0) & (high <= 65535)] = 0  # as they are: one step less when they are read
        base[some[small]] = low[small].astype(np.int32)
        code[lengths == 0] = 0
        counts = lengths[some]
        if small.all():
            offsets = quotients - np.repeat(low, counts) if low.any() else quotients
            return Coordinates(code, base, (offsets.astype('<u2'), np.zeros(0, '<i4'), np.zeros(0, '<f8')))
        width = np.repeat(code[some] >> 3, counts)
        two = width == U16
        offsets = quotients[two] - np.repeat(low[small], counts[small])
        parts = offsets.astype('<u2'), quotients[width == I32].astype('<i4'), quotients[width == F64]
        return Coordinates(code, base, parts)


def decode_coordinates(
    code: np.ndarray, base: np.ndarray, lengths: np.ndarray, parts: Tuple[np.ndarray, np.ndarray, np.ndarray]
) -> np.ndarray:
    """The float64 coordinates of some records: the inverse of :meth:`CoordinateEncoder.encode`."""
    width = (code >> 3).repeat(lengths)
    values = np.empty(width.size)
    two = code >> 3 == U16
    values[width == U16] = base[two].astype(np.int64).repeat(lengths[two]) + parts[U16]  # a column may be narrow
    values[width == I32] = parts[I32]
    values /= SCALES[code & 7].repeat(lengths)
    values[width == F64] = parts[F64]
    return values
