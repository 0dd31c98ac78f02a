"""``mmshared pack-images``: a folder of images into one archive, or into shards."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, Sequence

from mmshared.fileio.packing import pack_images
from mmshared.fileio.packing.targets import pattern

from .cache import parse_size
from .text import emit, printable, size_text

DESCRIPTION = """
Writes all files below a folder to an archive, from which datasets read them at random with any number of workers:
tar, zip (stored) or MXNet's RecordIO (with .idx and .lst). Links are followed, hidden files left out. Names in the
archive begin with the folder's own name: train2017/000000000009.jpg, as in COCO's zip files. Nothing is to be seen of
the archive until it is complete, and every file has been read back and compared.
"""
_NAMED = 3
_LEAST_SHARD = 1000  # bytes: less is a unit that was forgotten


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser('pack-images', help='write a folder of images to an archive', description=DESCRIPTION)
    parser.add_argument('folder', metavar='FOLDER', help='the folder, such as data/coco/train2017')
    parser.add_argument('-o', '--output', required=True, metavar='OUT.tar|OUT.zip|OUT.rec', help='the archive')
    parser.add_argument(
        '--shard-size',
        type=_shard_size,
        metavar='SIZE',
        help='several archives, OUT-00000.tar and so on, of at most so much each, such as 5GB (1 GB is 10**9 bytes)',
    )
    parser.add_argument(
        '--force', action='store_true', help='replace what is there, further shards of an earlier run included'
    )
    parser.add_argument('--no-verify', action='store_true', help='do not read back what was written')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack one folder."""
    began = time.monotonic()
    sharded = arguments.shard_size is not None
    packed = pack_images(
        arguments.folder, arguments.output, arguments.shard_size, arguments.force, not arguments.no_verify
    )
    seconds = time.monotonic() - began
    files, output = packed.contents.files, Path(arguments.output)
    where = f'{len(packed.archives)} shards, {pattern(output)}' if sharded else output
    what = f'{len(files):,} files, {size_text(sum(file.size for file in files))}'
    done = f'{"packed" if arguments.no_verify else "packed and verified"} in {seconds:.2f} s'
    emit(f'{printable(arguments.folder)}: {what}, {done}, {size_text(packed.size)}: {printable(where)}')
    _note('removed, of an earlier run', packed.removed, output.parent)
    _note('left out, hidden', packed.contents.hidden, arguments.folder)
    _note('left out, neither a file nor a folder', packed.contents.special, arguments.folder)
    _note('left out, links to a folder that they are in', packed.contents.loops, arguments.folder)
    emit('in the config, for LoadImageFromFile:')
    archive = pattern(output) if sharded else output
    emit(f"    backend_args=dict(backend='record', archive={printable(repr(str(archive)))})")
    return 0


def _note(what: str, paths: Sequence[Any], folder: Any) -> None:
    """Say ``what`` of the files at ``paths``, which are below ``folder``."""
    if paths:
        more = '' if len(paths) <= _NAMED else ', ...'
        names = ', '.join(os.path.relpath(path, folder) for path in paths[:_NAMED])
        emit(f'{what}: {len(paths):,} ({printable(names + more, 300)})')


def _shard_size(text: str) -> int:
    size = parse_size(text)
    if size < _LEAST_SHARD:
        raise argparse.ArgumentTypeError(f'{printable(text, 40)} is {size} bytes, no size of an archive: write 5GB')
    return size
