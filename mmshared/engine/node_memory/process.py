"""The memory of one process, as Linux tells it in ``/proc``.

It is read from ``smaps``: what ``smaps_rollup`` sums up does not say which file a page belongs to. It takes the kernel
less than twice the time, most of which goes into walking the page tables either way, and its lock of the process's
address space is let go again and again.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

#: What the names of annotation stores, and of arrays derived from them, end in.
STORE_SUFFIXES = (b'.mmstore', b'.derived', b'.mmdata')
SHM = b'/dev/shm/'
#: How the names of files in shared memory begin; those of ``memfd_create`` are in no folder.
SHARED_FILES = (SHM, b'/memfd:')
_DELETED = b' (deleted)'
_HEADER = re.compile(rb'^[0-9a-f]+-[0-9a-f]+ ', re.MULTILINE)
# A line is never the first one of what is searched. ('^' would take several times as long.)
_PRIVATE = re.compile(rb'\nPrivate_(?:Clean|Dirty): +(\d+)')
_PSS = re.compile(rb'\nPss: +(\d+)')


#: Device and inode.
File = Tuple[int, int]


class Memory(NamedTuple):
    """Bytes of one process, swapped ones aside.

    Attributes:
        private: pages that nobody else maps; those of annotation stores and files in shared memory are not in it.
        annotations: pages of annotation stores; one that n processes map counts 1/n.
        shm: mapped pages of files in shared memory (``/dev/shm``, ``memfd_create``), likewise.
        pss: all mapped pages, likewise.
        shm_files: of ``shm`` how much each file has, by device and inode.
    """

    private: int
    annotations: int
    shm: int
    pss: int
    shm_files: Dict[File, int]


def memory_of(pid: int) -> Optional[Memory]:
    """The memory of process ``pid``; None if it has ended, or is not ours to look at."""
    text = _read(f'/proc/{pid}/smaps')
    return _parsed(text) if text else None


def parents() -> Dict[int, int]:
    """The parent's process id of every process that is seen from here."""
    found = {}
    for pid in _pids():
        fields = _read(f'/proc/{pid}/stat').rpartition(b')')[2].split()  # a command's name may have spaces and brackets
        if len(fields) > 1:
            found[pid] = int(fields[1])
    return found


def links(pid: int) -> Iterator[Tuple[str, bytes]]:
    """The open files of process ``pid``: a path by which each can be opened or asked, and its name."""
    folder = f'/proc/{pid}/fd'
    try:
        descriptors = os.listdir(folder)
    except OSError:  # it has ended, or is not ours to look at
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            path = f'{folder}/{descriptor}'
            yield path, os.fsencode(os.readlink(path))


def _parsed(text: bytes) -> Memory:
    stores, shm = _mappings(text, STORE_SUFFIXES, _is_store), _mappings(text, SHARED_FILES, _is_shm)
    private = _sum(_PRIVATE, text) - sum(_sum(_PRIVATE, mapping) for mapping in (*stores, *shm))
    return Memory(private, _total_pss(stores), _total_pss(shm), _sum(_PSS, text), _pss_of_files(shm))


def _mappings(text: bytes, words: Tuple[bytes, ...], wanted: Callable[[bytes], bool]) -> List[bytes]:
    """The parts of ``text`` about files with one of ``words`` in their names that are ``wanted``; there are few."""
    found = []
    for word in words:
        at = text.find(word)
        while at >= 0:
            begin, end = text.rfind(b'\n', 0, at) + 1, text.find(b'\n', at)
            following = _HEADER.search(text, end)
            stop = following.start() if following else len(text)
            if wanted(text[text.find(b'/', begin, end) : end]):
                found.append(text[begin:stop])
            at = text.find(word, stop)
    return found


def _is_store(name: bytes) -> bool:
    return _undeleted(name).endswith(STORE_SUFFIXES)


def _is_shm(name: bytes) -> bool:
    return name.startswith(SHARED_FILES)


def _undeleted(name: bytes) -> bytes:
    return name[: -len(_DELETED)] if name.endswith(_DELETED) else name


def _total_pss(mappings: List[bytes]) -> int:
    return sum(_sum(_PSS, mapping) for mapping in mappings)


def _pss_of_files(mappings: List[bytes]) -> Dict[File, int]:
    files: Dict[File, int] = {}
    for mapping in mappings:
        device, inode = mapping.split(None, 5)[3:5]
        major, minor = (int(number, 16) for number in device.split(b':'))
        file = os.makedev(major, minor), int(inode)
        files[file] = files.get(file, 0) + _sum(_PSS, mapping)
    return files


def _sum(field: re.Pattern, text: bytes) -> int:
    return 1024 * sum(map(int, field.findall(text)))


def _pids() -> List[int]:
    try:
        return [int(name) for name in os.listdir('/proc') if name.isdigit()]
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        with open(path, 'rb') as file:
            return file.read()
    except OSError:
        return b''
