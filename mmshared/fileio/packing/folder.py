"""The files below a folder, as entries of an archive."""

from __future__ import annotations

import os
import stat
from typing import List, NamedTuple, Tuple


class File(NamedTuple):
    """A file that goes into an archive.

    Attributes:
        name: of the entry: the folder's own name and the path below it.
        path: where it is.
        size: in bytes, when the folder was looked through.
    """

    name: str
    path: str
    size: int


class Contents(NamedTuple):
    """What is below a folder.

    Attributes:
        files: by name, in the order of the names' bytes.
        hidden: paths of hidden files and folders, which are left out.
        special: paths of what is neither file nor folder.
        loops: paths of links to a folder that they are in.
    """

    files: List[File]
    hidden: List[str]
    special: List[str]
    loops: List[str]


def find_files(folder: str) -> Contents:
    """All regular files below ``folder`` that are not hidden. Links are followed, to files and to folders.

    Raises:
        ValueError: there are none, or a link leads nowhere.
        OSError: a folder cannot be read.
    """
    found = Contents([], [], [], [])
    top = os.stat(folder)
    waiting: List[Tuple[str, str, Tuple[Tuple[int, int], ...]]] = [(folder, _own_name(folder), (_identity(top),))]
    while waiting:
        path, name, above = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith('.'):
                    found.hidden.append(entry.path)
                    continue
                info = _look(entry)
                inner = f'{name}/{entry.name}'
                if stat.S_ISREG(info.st_mode):
                    found.files.append(File(inner, entry.path, info.st_size))
                elif not stat.S_ISDIR(info.st_mode):
                    found.special.append(entry.path)
                elif _identity(info) in above:
                    found.loops.append(entry.path)
                else:
                    waiting.append((entry.path, inner, (*above, _identity(info))))
    if not found.files:
        raise ValueError(f'{folder}: there are no files below it{", only hidden ones" if found.hidden else ""}')
    found.files.sort(key=lambda file: os.fsencode(file.name))
    for paths in found[1:]:
        paths.sort(key=os.fsencode)
    return found


def _own_name(folder: str) -> str:
    """What the names of entries begin with."""
    name = os.path.basename(folder.rstrip('/'))
    if name in ('', '.', '..'):
        name = os.path.basename(os.path.realpath(folder))
    if not name:
        raise ValueError(f'{folder}: has no name of its own for the entries to begin with. Pack folders in it')
    return name


def _look(entry: os.DirEntry) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        if entry.is_symlink():
            raise ValueError(f'{entry.path}: is a link that leads nowhere: {error.strerror}') from error
        raise


def _identity(info: os.stat_result) -> Tuple[int, int]:
    return info.st_dev, info.st_ino
