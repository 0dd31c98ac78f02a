"""What it takes to store a column of decimals as integers."""

from __future__ import annotations

from typing import List, Tuple

import numpy as np

from ..columns import SCALES, scaled


class DecimalRange:
    """The one scale with which all values seen are exact scaled integers (0: there is none), and their range."""

    def __init__(self) -> None:
        self._index, self._low, self._high = 0, np.inf, -np.inf

    def add(self, values: np.ndarray) -> None:
        """Takes further float64 values into account."""
        flat = np.ascontiguousarray(values).reshape(-1)
        while self._index < len(SCALES) and not scaled(flat, int(SCALES[self._index]))[1].all():
            self._index += 1
        self._low, self._high = min(self._low, flat.min(initial=np.inf)), max(self._high, flat.max(initial=-np.inf))

    def merge(self, other: DecimalRange) -> None:
        """Takes all that ``other`` has seen into account."""
        self._index = max(self._index, other._index)
        self._low, self._high = min(self._low, other._low), max(self._high, other._high)

    def state(self) -> List[float]:
        """What it knows, for :meth:`restore`."""
        return [self._index, float(self._low), float(self._high)]

    def restore(self, state: List[float]) -> None:
        """The inverse of :meth:`state`."""
        self._index, self._low, self._high = int(state[0]), state[1], state[2]

    def layout(self) -> Tuple[np.dtype, int]:
        """dtype and scale to store the values with."""
        if self._index == len(SCALES):
            return np.dtype('<f8'), 0
        scale = int(SCALES[self._index])
        low, high = self._low * scale, self._high * scale
        if low > high:
            return np.dtype('<u2'), scale
        if max(-low, high) > (1 << 31) - 1:  # a value that fitted the scale before it had to grow
            return np.dtype('<f8'), 0
        return np.dtype('<u2' if low >= 0 and high <= 65535 else '<i4'), scale
