"""What a conversion did, and what it did not, place by place."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

Path = Tuple[Any, ...]


class Change(NamedTuple):
    """One place of a config.

    Attributes:
        path: its key, as ``--cfg-options`` would have it: ``train_dataloader.dataset.type``.
        old: what was there.
        new: what is there now; None if it was left.
        reason: why it was left; else empty.
    """

    path: str
    old: str
    new: Optional[str]
    reason: str = ''

    def __str__(self) -> str:
        if self.new is None:
            return f'left {self.path}: {self.old}: {self.reason}'
        return f'{self.path}: {self.old} -> {self.new}'


class Report:
    """All places that a conversion looked at.

    Attributes:
        changed: what is different now, in the order of the config.
        left: what is as it was although it is of a kind that often has a counterpart.
    """

    def __init__(self) -> None:
        self.changed: List[Change] = []
        self.left: List[Change] = []

    def change(self, path: Path, old: Any, new: Any) -> None:
        """Note that ``new`` has taken the place of ``old``."""
        self.changed.append(Change('.'.join(map(str, path)), str(old), str(new)))

    def leave(self, path: Path, old: Any, reason: str) -> None:
        """Note that ``old`` has stayed."""
        self.left.append(Change('.'.join(map(str, path)), str(old), None, reason))

    def lines(self) -> List[str]:
        """One line for each place, those that were left last; one that says so if nothing was changed."""
        nothing = [] if self.changed else ['nothing to change']
        return [*map(str, self.changed), *nothing, *map(str, self.left)]

    def summary(self) -> str:
        """All of it in a few words."""
        return f'{len(self.changed)} places changed, {len(self.left)} left'
