"""What every format of archives can do: say what is in it, and read one entry."""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from typing import Callable, ClassVar, Iterator, List

from mmshared.fileio.entry import Entry
from mmshared.fileio.errors import ArchiveError

#: Called with how much of what is to be read for an index has been read, and how much there is, in bytes.
ProgressCall = Callable[[int, int], None]
_AT_ONCE = 1 << 28  # Linux reads 2 GB at most; and what takes several reads takes that much more memory meanwhile


class Format(ABC):
    """A format of archives. Its objects have no state: processes and threads may share them.

    Attributes:
        name: How it is called in an index.
    """

    name: ClassVar[str]

    def files(self, path: str) -> List[str]:
        """The files that say what is in the archive ``path``: if one of them changes, so does the index."""
        return [path]

    @abstractmethod
    def entries(self, path: str, progress: ProgressCall) -> Iterator[Entry]:
        """The entries of the archive, in its order, those that cannot be read included.

        Several may have one name: the last one counts. Every entry lies within the file.

        Raises:
            ArchiveError: it is cut off or damaged, or not of this format.
            OSError: it cannot be read.
        """

    @abstractmethod
    def read(self, descriptor: int, entry: Entry, path: str, verify_crc: bool = True) -> bytes:
        """The bytes of ``entry`` (of a kind that can be read), by positional reads.

        Args:
            descriptor: of the archive, open for reading. Its offset is neither used nor changed.
            entry: as :meth:`entries` gave it; of a damaged index whatever numbers.
            path: of the archive, for errors.
            verify_crc: whether to compare checksums, where the format has them.

        Raises:
            ArchiveError: the archive is cut off, or is not what the index says.
            OSError: it cannot be read.
        """


def read_at(descriptor: int, size: int, offset: int, path: str, name: str) -> bytes:
    """``size`` bytes of the file from ``offset`` on.

    Raises:
        ArchiveError: the file ends before that.
    """
    data = os.pread(descriptor, min(size, _AT_ONCE), offset)
    if len(data) == size:
        return data
    whole, done = io.BytesIO(), len(data)  # joining parts would take twice the memory
    whole.write(data)
    while done < size and data:
        data = os.pread(descriptor, min(size - done, _AT_ONCE), offset + done)
        done += whole.write(data)
    if done != size:
        raise ArchiveError(
            path, f'the archive ends {size - done} bytes too early: it is cut off, or was changed. Fetch it again', name
        )
    return whole.getvalue()
