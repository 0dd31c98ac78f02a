"""``mmshared cache``: what stores there are, and removing those that nobody uses."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

from mmshared.annotations import StoreCache
from mmshared.annotations.cache.inventory import Entry
from mmshared.annotations.opening import source_of

from .text import columns, emit, printable, size_text

_SIZE = re.compile(r'(\d+(?:\.\d+)?|\.\d+)\s*([kmgt]?)(i?)b?', re.IGNORECASE)
_DAY = 86400.0


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        'cache', help='list or remove the stores in the cache', description='Looks after the stores in the cache.'
    )
    actions = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    for name, run, text in (
        ('list', _list, 'list the stores'),
        ('prune', _prune, 'remove stores that were not used for long, or that take too much space; never one in use'),
        ('clear', _clear, 'remove all stores that are not in use'),
    ):
        action = actions.add_parser(name, help=text, description=f'{text.capitalize()}.')
        action.add_argument('--cache-dir', metavar='DIR', help="the folder, where the config's dataset has a cache_dir")
        action.add_argument('--json', action='store_true', help='for programs: sizes in bytes, times since the epoch')
        if name != 'list':
            action.add_argument('--dry-run', action='store_true', help='only say what would go')
        if name == 'prune':
            action.add_argument('--unused-days', type=_days, metavar='DAYS', help='not used for so many days')
            action.add_argument(
                '--max-size', type=parse_size, metavar='SIZE', help='the longest unused ones beyond it, such as 10G'
            )
        action.set_defaults(run=run)


def parse_size(text: str) -> int:
    """Bytes that ``text`` names: '10G', '1.5 GB' (1 GB is 10**9 bytes), '512MiB' (1 MiB is 2**20 bytes), '1000'.

    Raises:
        ArgumentTypeError: it names none.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f'{printable(text, 40)} is no size: write 10G, 500M or 1.5GiB')
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** ' kmgt'.index(unit.lower() or ' '))


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < 1e6:
        raise argparse.ArgumentTypeError(f'{printable(text, 40)} is no number of days')
    return days


def _list(arguments: argparse.Namespace) -> int:
    cache = StoreCache(arguments.cache_dir)
    stores = cache.list(source_of)
    if arguments.json:
        emit(json.dumps({'folders': _folders(cache), 'stores': list(map(_record, stores))}, indent=2))
    elif stores:
        _table(stores)
        emit(f'{_count(stores)}, {size_text(sum(store.size for store in stores))}')
    else:
        emit(f'no stores in {printable(", ".join(_folders(cache)))}')
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    seconds = None if arguments.unused_days is None else arguments.unused_days * _DAY
    if seconds is None and arguments.max_size is None and not arguments.json:
        emit('no store is removed without --unused-days or --max-size, only what killed processes left')
    return _remove(arguments, seconds, arguments.max_size)


def _clear(arguments: argparse.Namespace) -> int:
    return _remove(arguments, 0.0, None)


def _remove(arguments: argparse.Namespace, seconds: float | None, max_bytes: int | None) -> int:
    cache, dry_run = StoreCache(arguments.cache_dir), arguments.dry_run
    before = {store.path: store for store in cache.list(source_of)}
    gone = [before.get(store.path, store) for store in cache.prune(seconds, max_bytes, dry_run)]
    paths = {store.path for store in gone}
    stay = [store for store in cache.list(source_of) if store.path not in paths]
    if arguments.json:
        report = {'removed': list(map(_record, gone)), 'left': list(map(_record, stay)), 'dry_run': dry_run}
        emit(json.dumps(report, indent=2))
        return 0
    if gone:
        _table(gone)
    verb = 'would be removed' if dry_run else 'removed'
    emit(f'{verb}: {_count(gone)}, {size_text(sum(store.size for store in gone))}')
    used = [store for store in stay if store.in_use]
    for store in used:
        emit(f'in use, stays: {printable(store.path)} ({printable(store.source)})')
    for folder in cache.own_folders():
        problem = folder.problem() if folder.readable() else None
        if problem is not None:
            emit(f'stays as it is: {printable(folder.path)} ({problem})')
    own = {folder.path for folder in cache.own_folders()}
    for path in dict.fromkeys(store.path.parent for store in stay if store.path.parent not in own):
        emit(f'stays as it is: {printable(path)}, where stores go instead. To clean it, name it with --cache-dir')
    emit(f'left: {_count(stay)}, {size_text(sum(store.size for store in stay))}')
    return 0


def _folders(cache: StoreCache) -> List[str]:
    return [os.fspath(folder.path) for folder in cache.used_folders()]


def _count(stores: Sequence[Entry]) -> str:
    return f'{len(stores)} store{"" if len(stores) == 1 else "s"}'


def _record(store: Entry) -> Dict[str, Any]:
    return {
        'path': os.fspath(store.path),
        'source': store.source,
        'size': store.size,
        'built': store.mtime,
        'last_used': store.last_used,
        'in_use': store.in_use,
    }


def _table(stores: Sequence[Entry]) -> None:
    """Folder by folder, the longest unused store last."""
    for folder in dict.fromkeys(store.path.parent for store in stores):
        emit(f'{printable(folder)}:')
        rows = [('SIZE', 'LAST USED', 'BUILT', 'STATE', 'STORE', 'MADE FROM')]
        inside = [store for store in stores if store.path.parent == Path(folder)]
        for store in sorted(inside, key=lambda store: -store.last_used):
            state = 'in use' if store.in_use else 'free'
            rows.append(
                (
                    size_text(store.size),
                    _ago(store.last_used),
                    _ago(store.mtime),
                    state,
                    printable(store.path.name),
                    printable(store.source),
                )
            )
        for line in columns(rows, right=(0,)):
            emit(f'  {line}')


def _ago(moment: float) -> str:
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((_DAY, 'day'), (3600.0, 'hour'), (60.0, 'minute')):
        if seconds >= size:
            number = int(seconds / size)
            return f'{number} {unit}{"" if number == 1 else "s"} ago'
    return 'just now'
