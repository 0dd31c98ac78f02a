"""tar: headers with the data behind each. No checksum of the data, and no list of what is in it."""

from __future__ import annotations

import os
import posixpath
from bisect import bisect_left
from contextlib import contextmanager
from typing import Dict, Iterable, Iterator, List, Tuple

from mmshared.fileio.entry import Entry, Kind, entry_name
from mmshared.fileio.formats.base import Format, ProgressCall, read_at
from mmshared.fileio.formats.tar_walk import Member, TarWalk, What

_MAX_LINKS = 40  # one after the other, as Linux follows them
_KINDS = {What.FILE: Kind.STORED, What.SPARSE: Kind.SPARSE}
_Placed = Tuple[int, Member]  # with its place in the archive's order


class Tar(Format):
    """ustar, pax, GNU's and the oldest format, not compressed.

    Links to files of the archive are entries with those files' bytes.
    """

    name = 'tar'

    def entries(self, path: str, progress: ProgressCall) -> Iterator[Entry]:
        """See :meth:`Format.entries`. Links come after everything else.

        To know what they mean takes a second walk, in archives that have some: what lies under the names that links
        speak of is kept then, instead of every name in every archive.
        """
        with _open(path) as descriptor:
            links: List[_Placed] = []
            for place, member in enumerate(TarWalk(path, descriptor).members(progress)):
                if member.what in _KINDS:
                    yield _entry(member.name, member)
                else:
                    links.append((place, member))
            if links:
                yield from _link_entries(links, TarWalk(path, descriptor).members(progress))

    def read(self, descriptor: int, entry: Entry, path: str, verify_crc: bool = True) -> bytes:
        """See :meth:`Format.read`. There are no checksums."""
        return read_at(descriptor, entry.size, entry.offset, path, entry.name)


@contextmanager
def _open(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entry(name: str, member: Member) -> Entry:
    """The entry ``name`` with the data of ``member``; without, if that is still a link."""
    kind = _KINDS.get(member.what, Kind.OUTSIDE_LINK)
    return Entry(name, member.offset, member.size, member.size, kind)


def _link_entries(links: List[_Placed], members: Iterable[Member]) -> Iterator[Entry]:
    """An entry for each of ``links`` that nothing of the same name comes after."""
    names = {name for _, link in links for name in (link.name, _target(link, link.name))}
    under: Dict[str, List[_Placed]] = {name: [] for name in names if name}
    for place, member in enumerate(members):
        if member.name in under:
            under[member.name].append((place, member))
    for place, link in links:
        if under[link.name][-1][0] == place:
            yield _entry(link.name, _followed(place, link, under))


def _followed(place: int, link: Member, under: Dict[str, List[_Placed]]) -> Member:
    """The file that ``link`` leads to; a link if it leads to none.

    A hard link is to what had the name before it, as tar extracts them; a symbolic one to what has it in the end. Of
    the parts of a path only the last one is taken for a link: below a link to a folder nothing is found, neither by
    other links nor as entries.
    """
    member, name = link, link.name
    for _ in range(_MAX_LINKS):
        if member.what in _KINDS:
            break
        found = under.get(_target(member, name), [])
        hard = member.what == What.HARD_LINK
        count = bisect_left(found, (place,)) if hard else len(found)
        if not count:
            break
        place, member = found[count - 1]
        if not (hard and member.what == What.SYMBOLIC_LINK):  # such a one leads on from where the hard link is
            name = member.name
    return member


def _target(link: Member, name: str) -> str:
    """The name of what ``link``, being called ``name``, leads to; '' outside the archive."""
    if link.what == What.HARD_LINK:
        return entry_name(link.target)
    if link.target.startswith('/'):
        return ''
    return entry_name(posixpath.normpath(posixpath.join(posixpath.dirname(name), link.target)))
