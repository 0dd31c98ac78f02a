"""Where a dataset looks for its images."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Tuple

from .layout import PATH_FIELDS


class Paths(NamedTuple):
    """How a dataset finds its images.

    Attributes:
        field: of :data:`~.layout.PATH_FIELDS`: what in an image's record says where it is.
        change: makes of that what follows the prefix; None: nothing. A function of a module, as it is pickled. It keeps
            the last component of a path.
        without: images that the dataset leaves out, as ``change`` gives them.
    """

    field: str = PATH_FIELDS[0]
    change: Optional[Callable[[str], str]] = None
    without: Tuple[str, ...] = ()


COCO_PATHS = Paths()
