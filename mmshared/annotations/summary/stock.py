"""What the stock loader would cost for an annotation file: estimates from measurements."""

from __future__ import annotations

from typing import NamedTuple, Tuple

#: mmdet 3.3.0 on a JSON file of 293 MB, 600,000 polygons: bytes that ``CocoDataset`` leaves in memory, and its peak,
#: per byte of the file; MB per second that it loads, on a busy and on a quiet machine of two cores.
KEPT_FACTOR, PEAK_FACTOR = 7.0, 9.2
MEGABYTES_PER_SECOND = (7.0, 13.7)


class StockCost(NamedTuple):
    """What ``CocoDataset`` needs in every rank, as an estimate.

    Attributes:
        memory, peak: bytes of private memory, for good and while it loads.
        seconds: of loading, from and to.
    """

    memory: float
    peak: float
    seconds: Tuple[float, float]


def stock_cost(size: int) -> StockCost:
    """The estimate for a JSON file of ``size`` bytes."""
    slow, fast = MEGABYTES_PER_SECOND
    return StockCost(size * KEPT_FACTOR, size * PEAK_FACTOR, (size / 1e6 / fast, size / 1e6 / slow))
