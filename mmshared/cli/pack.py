"""``mmshared pack``: make the stores of annotation files ahead of a job."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from mmshared.annotations import Fingerprint, find_store, open_store
from mmshared.annotations.layout import PATH_FIELDS
from mmshared.annotations.packing import pack_store, refuse_store, store_name

from .errors import FORESEEABLE, complain
from .text import emit, printable, size_text

DESCRIPTION = """
Reads COCO annotation files into memory-mapped stores, so that the jobs that use them need not. Without -o they go to
the cache, where a job on this machine finds them. With -o they go where you say: use that file as ann_file.
"""


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser('pack', help='build stores ahead of a job', description=DESCRIPTION)
    parser.add_argument('files', nargs='+', metavar='ANN.json', help='COCO annotation file')
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        '-o', '--output', metavar='PATH', help='a file, or for several inputs a folder, to put stores in'
    )
    where.add_argument(
        '--cache-dir', metavar='DIR', help="the cache folder, where the config's dataset has a cache_dir"
    )
    parser.add_argument('--force', action='store_true', help='with -o: replace a file even if it is no store')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack each file; one that cannot be packed does not keep the others from it."""
    targets = _targets(arguments.files, arguments.output)
    failed = 0
    with _folder(arguments.output, targets):
        for file in arguments.files:
            try:
                if arguments.output is None:
                    _into_cache(file, arguments.cache_dir)
                else:
                    _to_target(file, targets[file], arguments.force)
            except BrokenPipeError:
                raise
            except FORESEEABLE as error:
                failed += 1
                complain(error)
    return 1 if failed else 0


def _into_cache(file: str, cache_dir: Optional[str]) -> None:
    began = time.monotonic()
    _check_local(file)
    refuse_store(file)
    known = find_store(Fingerprint.of_file(file), cache_dir, path_fields=PATH_FIELDS)
    store = open_store(file, cache_dir, path_fields=PATH_FIELDS) if known is None else known
    _report(file, store.path, 'packed in' if known is None else 'is there already, found in', time.monotonic() - began)


def _to_target(file: str, target: Path, force: bool) -> None:
    began = time.monotonic()
    _check_local(file)
    pack_store(file, target, force)
    _report(file, os.fspath(target), 'packed in', time.monotonic() - began)


def _report(file: str, store: str, what: str, seconds: float) -> None:
    before, after = os.path.getsize(file), os.path.getsize(store)
    ratio = f'{after / before:.2f} of {size_text(before)}' if before else size_text(before)
    emit(f'{printable(file)}: {what} {seconds:.2f} s, {size_text(after)} ({ratio}): {printable(store)}')


def _check_local(file: str) -> None:
    if '://' in file and not os.path.exists(file):
        raise ValueError(f'{file}: only local files can be packed. The first process of a job fetches a remote one')


def _targets(files: List[str], output: Optional[str]) -> Dict[str, Path]:
    """Where each file's store goes.

    Raises:
        ValueError: two would go to one place, or several to something that is no folder.
    """
    if output is None:
        return {}
    files = list(dict.fromkeys(files))
    if len(files) == 1 and not output.endswith(os.sep) and not os.path.isdir(output):
        return {files[0]: Path(output)}
    if os.path.exists(output) and not os.path.isdir(output):
        raise ValueError(f'{output}: is not a folder, which the stores of {len(files)} files need')
    targets = {file: Path(output, store_name(file)) for file in files}
    owners: Dict[Path, str] = {}
    for file, target in targets.items():
        other = owners.setdefault(target, file)
        if other != file:
            raise ValueError(f'{other} and {file} would both go to {target}. Pack them one by one')
    return targets


@contextlib.contextmanager
def _folder(output: Optional[str], targets: Dict[str, Path]) -> Any:
    """Make the folders of ``targets``; one that is still empty in the end goes again."""
    made = []
    for target in targets.values():
        if target.parent.exists() and not target.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(target.parent))
        missing = [path for path in (target.parent, *target.parent.parents) if not path.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        made += missing
    try:
        yield
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
