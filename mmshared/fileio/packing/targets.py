"""Where archives go, and what is there already."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Type

from .folder import File
from .record_writer import RecordWriter
from .writers import TarWriter, Writer, ZipWriter

WRITERS: Dict[str, Type[Writer]] = {writer.suffixes[0]: writer for writer in (TarWriter, ZipWriter, RecordWriter)}
_MIN_DIGITS = 5


class Shard(NamedTuple):
    """One archive to be written: at ``target``, with ``files`` in it."""

    target: Path
    files: Sequence[File]

    def paths(self, writer: Type[Writer]) -> List[Path]:
        """The files that it consists of."""
        return [self.target.with_suffix(suffix) for suffix in writer.suffixes]


def writer_of(output: Path) -> Type[Writer]:
    """What writes the format that the name ``output`` ends in.

    Raises:
        ValueError: none does.
    """
    if output.suffix not in WRITERS:
        raise ValueError(f'{output}: the name has to end in {", ".join(WRITERS)}, to say which format is wanted')
    return WRITERS[output.suffix]


def plan(output: Path, files: Sequence[File], writer: Type[Writer], shard_size: Optional[int]) -> List[Shard]:
    """Which files go to which archive: all to one at ``output``, or to shards of at most ``shard_size`` bytes.

    The shards of ``x.tar`` are ``x-00000.tar``, ... A file that is larger has one of its own.

    Raises:
        ValueError: the format cannot hold a file.
    """
    for file in files:
        problem = writer.refusal(file.name, file.size)
        if problem is not None:
            raise ValueError(f'{file.path}: {problem}')
    if shard_size is None:
        return [Shard(output, files)]
    begins, size = [0], writer.end
    for position, file in enumerate(files):
        cost = writer.cost(file.name, file.size)
        if size + cost > shard_size and position > begins[-1]:
            begins.append(position)
            size = writer.end
        size += cost
    digits = max(_MIN_DIGITS, len(str(len(begins) - 1)))
    return [
        Shard(output.with_name(f'{output.stem}-{number:0{digits}d}{output.suffix}'), files[begin:end])
        for number, (begin, end) in enumerate(zip(begins, [*begins[1:], len(files)]))
    ]


def check_free(shards: Sequence[Shard], writer: Type[Writer], force: bool) -> None:
    """Check that nothing is where ``shards`` go, or with ``force`` nothing but regular files.

    Raises:
        FileExistsError: something is.
    """
    for path in (path for shard in shards for path in shard.paths(writer)):
        if os.path.lexists(path):
            _check_replaceable(path)
            if not force:
                raise FileExistsError(f'{path}: is there already. Choose another name, or --force to replace it')


def find_stale(output: Path, shards: Sequence[Shard], writer: Type[Writer], force: bool) -> List[Path]:
    """Shards of an earlier run that ``output-*`` would find together with ``shards``: to be removed, with ``force``.

    Raises:
        FileExistsError: there are some and it is not forced, or there are other files that the pattern would find.
    """
    new = {path.name for shard in shards for path in shard.paths(writer)}
    endings = '|'.join(map(re.escape, writer.suffixes))
    ours = re.compile(rf'{re.escape(output.stem)}-\d{{{_MIN_DIGITS},}}({endings})', re.ASCII)
    stale = []
    for name in sorted(os.listdir(output.parent)):
        path = output.parent / name
        if name in new:
            continue
        if ours.fullmatch(name):
            _check_replaceable(path)
            stale.append(path)
        elif name.startswith(f'{output.stem}-') and name.endswith(output.suffix):
            raise FileExistsError(
                f'{path}: is no shard of {output.name}, but {pattern(output)} would find it. Move it, or choose '
                'another name'
            )
    if stale and not force:
        raise FileExistsError(
            f'{stale[0]}: would be found together with the new shards (as {len(stale) - 1} more). Choose another name, '
            'or --force to remove what an earlier run wrote'
        )
    return stale


def pattern(output: Path) -> Path:
    """What :func:`glob.glob` finds all shards of ``output`` by."""
    return Path(f'{glob.escape(os.fspath(output.with_suffix("")))}-*{output.suffix}')


def _check_replaceable(path: Path) -> None:
    if os.path.islink(path) or not os.path.isfile(path):
        raise FileExistsError(f'{path}: is not a regular file. Choose another name')
