"""``mmshared inspect``: what an annotation file holds and what in it will bite; whether a store is whole."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
import time
from typing import Any, Dict, List, Optional

from mmshared.annotations import AnnotationStore, Fingerprint, StoreError, find_store, has_store_magic, open_store
from mmshared.annotations.errors import AnnotationFileError
from mmshared.annotations.summary import Oddity, Overview, find_oddities, overview
from mmshared.annotations.summary.stock import stock_cost
from mmshared.annotations.verify import faults

from .errors import complain
from .text import columns, emit, paint, printable, size_text, terminal_width

DESCRIPTION = """
Shows what a COCO annotation file, or a store of one, holds: counts, classes, masks, and what in it will bite in
training or evaluation. A file that has no store yet gets one in the cache.
"""
TOP_CLASSES = 20
_NAME = 48
_KINDS = {
    'polygons': 'polygons',
    'rle_string': 'RLE, compressed (text)',
    'rle_list': 'RLE, "counts" as a list',
    'empty': 'empty',
    'null': 'null',
    'missing': 'missing',
    'other': 'something else',
}


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        'inspect', help='show what a file holds, and what in it will bite', description=DESCRIPTION
    )
    parser.add_argument('file', metavar='ANN.json|STORE', help='COCO annotation file, or a store')
    parser.add_argument('--classes', action='store_true', help=f'all classes, not only the {TOP_CLASSES} largest')
    parser.add_argument('--verify', action='store_true', help='read the whole store and check it: exit status 1 if bad')
    parser.add_argument(
        '--cache-dir', metavar='DIR', help="the cache folder, where the config's dataset has a cache_dir"
    )
    parser.add_argument('--json', action='store_true', help='for programs')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Inspect, or verify, one file."""
    began = time.monotonic()
    store, origin = _open(arguments.file, arguments.cache_dir)
    if arguments.verify:
        return _verify(store, arguments.json)
    try:
        found, oddities = overview(store), find_oddities(store)
    except Exception as error:
        for fault in faults(store):
            raise StoreError(f'{store.path}: {fault}') from error
        raise  # a good store: then it is no fault of the file
    seconds = time.monotonic() - began
    if arguments.json:
        emit(json.dumps(_record(arguments.file, store, origin, found, oddities), indent=2))
    else:
        _print(arguments.file, store, origin, found, oddities, arguments.classes)
        emit(f'\ninspected in {seconds:.1f} s')
    return 0


def _open(file: str, cache_dir: Optional[str]) -> tuple[AnnotationStore, str]:
    """The store, and how it was come by: 'given', 'cache' or 'built'. What CocoDataset refuses is no hindrance."""
    if has_store_magic(file):
        return open_store(file, refuse=False), 'given'
    mark = Fingerprint.of_file(file)
    try:
        known = find_store(mark, cache_dir)
    except AnnotationFileError:  # in the cache, and refused
        return open_store(file, cache_dir, refuse=False), 'cache'
    return (known, 'cache') if known is not None else (open_store(file, cache_dir, refuse=False), 'built')


def _verify(store: AnnotationStore, as_json: bool) -> int:
    began, size = time.monotonic(), os.path.getsize(store.path)
    try:
        found = list(faults(store))
    except StoreError as error:
        found = [str(error)]
    if as_json:
        emit(json.dumps({'store': store.path, 'good': not found, 'faults': found}, indent=2))
    elif not found:
        emit(f'{printable(store.path)}: good, {size_text(size)} read in {time.monotonic() - began:.1f} s')
    for fault in found if not as_json else ():
        complain(fault if fault.startswith(store.path) else f'{store.path}: {fault}')
    return 1 if found else 0


def _json_size(file: str, store: AnnotationStore) -> Optional[int]:
    """Bytes of the annotation file; None if a store was given whose source is not there."""
    path = store.source if has_store_magic(file) else file
    try:
        return os.path.getsize(path)
    except (OSError, ValueError):
        return None


def _record(file: str, store: AnnotationStore, origin: str, found: Overview, oddities: List[Oddity]) -> Dict[str, Any]:
    size = _json_size(file, store)
    cost = None if size is None else stock_cost(size)
    return {
        'file': file,
        'source': store.source,
        'source_size': size,
        'store': {'path': store.path, 'size': os.path.getsize(store.path), 'origin': origin},
        'images': found.images,
        'annotations': found.annotations,
        'kept': found.kept,
        'crowd': found.crowd,
        'ignored': found.ignored,
        'instances_per_image': {
            **found.per_image,
            'histogram': [{'from': low, 'to': high, 'images': images} for low, high, images in found.histogram],
        },
        'classes': [
            {'id': repr(key) if key != key else key, 'name': name, 'annotations': count}  # NaN is no JSON
            for key, name, count in found.categories
        ],
        'segmentation': found.segmentation,
        'oddities': [{**oddity._asdict(), 'level': oddity.level.value} for oddity in oddities],
        'stock_estimate': cost and {'memory': cost.memory, 'peak_memory': cost.peak, 'seconds': list(cost.seconds)},
    }


def _print(
    file: str, store: AnnotationStore, origin: str, found: Overview, oddities: List[Oddity], all_classes: bool
) -> None:
    size, store_size = _json_size(file, store), os.path.getsize(store.path)
    emit(f'file         {printable(file)}' + (f', {size_text(size)}' if size is not None and origin != 'given' else ''))
    if origin == 'given':
        emit(
            f'made from    {printable(store.source)}' + (f', {size_text(size)}' if size is not None else ', not there')
        )
    where = {'given': '', 'cache': ', from the cache', 'built': ', built now'}[origin]
    emit(f'store        {printable(store.path)}, {size_text(store_size)}{where}')
    emit(f'images       {found.images:,}')
    emit(
        f'annotations  {found.annotations:,}: {found.kept:,} train, {found.crowd:,} are crowds ("iscrowd"), '
        f'{found.ignored:,} are ignored ("ignore")'
    )
    if found.per_image:
        _print_histogram(found)
    _print_segmentation(found)
    _print_classes(found, all_classes)
    _print_oddities(oddities)
    if size is not None:
        _print_cost(size, store_size)


def _print_histogram(found: Overview) -> None:
    stats = found.per_image
    emit(
        f'\ninstances per image: min {stats["min"]:,}, median {stats["median"]:,g}, mean {stats["mean"]:,.1f}, '
        f'max {stats["max"]:,}'
    )
    most = max(images for _, _, images in found.histogram)
    rows = [
        (f'{low:,}' if low == high else f'{low:,}-{high:,}', f'{images:,}') for low, high, images in found.histogram
    ]
    room = max(10, min(50, terminal_width() - 4 - sum(max(map(len, column)) + 2 for column in zip(*rows))))
    for line, (_, _, images) in zip(columns(rows, right=(0, 1)), found.histogram):
        emit(f'  {line}  {"#" * -(-images * room // most)}'.rstrip())


def _print_segmentation(found: Overview) -> None:
    if found.segmentation:
        emit('\nsegmentation')
        rows = [(_KINDS[kind], f'{count:,}') for kind, count in found.segmentation.items()]
        for line in columns(rows, right=(1,)):
            emit(f'  {line}')


def _print_classes(found: Overview, all_classes: bool) -> None:
    ranked = sorted(found.categories, key=lambda category: -category[2])
    shown = ranked if all_classes else ranked[:TOP_CLASSES]
    emit(f'\nclasses: {len(ranked):,}')
    rows = [
        (
            '(no name)' if name is None else printable(name, _NAME),
            f'id {printable(key if isinstance(key, int) else repr(key), _NAME)}',
            f'{count:,}',
        )
        for key, name, count in shown
    ]
    for line in columns(rows, right=(2,)) if rows else ():
        emit(f'  {line}')
    if len(shown) < len(ranked):
        emit(f'  ... and {len(ranked) - len(shown):,} more: --classes')


def _print_oddities(oddities: List[Oddity]) -> None:
    emit('\nwhat will bite' if oddities else '\nnothing that will bite was found')
    width = terminal_width()
    for oddity in oddities:
        level = oddity.level.value
        emit(f'  {paint(f"{level:7}", level)}  {oddity.count:,} x {printable(oddity.title)}')
        more = ', ...' if oddity.count > len(oddity.examples) else ''
        texts = [printable(', '.join(oddity.examples)) + more] if oddity.examples else []
        for text in (*texts, printable(oddity.bites)):
            for line in textwrap.wrap(text, width, initial_indent=' ' * 11, subsequent_indent=' ' * 13):
                emit(line)


def _print_cost(size: int, store_size: int) -> None:
    cost = stock_cost(size)
    low, high = (f'{seconds:,.0f}' if seconds >= 1 else f'{seconds:.1f}' for seconds in cost.seconds)
    emit('\nestimate, from measurements on other files')
    memory, peak = size_text(cost.memory), size_text(cost.peak)
    emit(f'  CocoDataset, in every rank        {memory} of memory, {peak} at its peak, {low} to {high} s')
    emit(f'  SharedCocoDataset, once per node  {size_text(store_size)} on disk, mapped; memory that can be evicted')
