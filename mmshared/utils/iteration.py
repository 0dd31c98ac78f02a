"""Iterating over things too large to have one more of than needed."""

from __future__ import annotations

from typing import Any, Iterable, Iterator, List


def one_by_one(things: Iterable[Any]) -> Iterator[List[Any]]:
    """Each of ``things`` in a list of its own, to be taken out of it.

    A variable of a loop, and what ``enumerate`` remembers, keep the last thing while the next one is made.
    """
    iterator = iter(things)
    while True:
        try:
            held = [next(iterator)]
        except StopIteration:
            return
        yield held
