"""JSON file -> complete store, in bounded memory.

Pass one streams the file onto scratch files, in its own order; pass two (:mod:`.writer`) writes each column grouped
by image, so that whatever belongs to one image lies together. Only a few numbers per annotation are ever in memory.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

import msgspec

from ..categories import read_categories
from ..container import ContainerWriter
from ..errors import AnnotationFileError, Violations, shorten
from .crew import PART_BYTES, Crew
from .ids import IdTable
from .part import Table, new_table
from .stream import Elements, JsonFile, Odd
from .writer import StoreWriter

Progress = Callable[[int, int], None]
Scratch = Callable[[], BinaryIO]


def build_store(
    source: BinaryIO,
    path: str,
    out: BinaryIO,
    scratch: Scratch,
    progress: Optional[Progress] = None,
    part_bytes: int = PART_BYTES,
) -> Violations:
    """Parses the COCO file ``source`` and writes its store.

    Args:
        source: the annotation file, open for reading in binary.
        path: its name, for errors.
        out: where the store goes; empty, seekable.
        scratch: makes empty temporary files; together they grow about as large as the JSON.
        progress: called with bytes parsed and bytes in all, every two megabytes.
        part_bytes: how much of the file is worth a process; :func:`~.crew.processes` says how many there may be.

    Returns:
        What mmdet's datasets would choke on, which the store remembers too.

    Raises:
        AnnotationFileError: the file is not COCO annotations that pycocotools' ``COCO`` would take.
    """
    with _no_collection():
        tables = _Tables(path, scratch, part_bytes)
        file = JsonFile(source, path)
        for key, offset, cursor in file.members():
            cursor.offset = tables.take(file, key, offset, progress)
        tables.check()
        return StoreWriter(tables.images, tables.annotations, ContainerWriter(out), scratch).write(
            {'source': path, 'sections': tables.sections}, tables.top
        )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps the garbage collector from looking for cycles, of which a build makes none, among millions of objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Tables:
    """What pass one makes of the file."""

    def __init__(self, path: str, scratch: Scratch, part_bytes: int) -> None:
        self._path, self._scratch, self._part_bytes, self._image_ids = path, scratch, part_bytes, IdTable()
        self.top: Dict[str, bytes] = {}
        self.sections: Dict[str, bool] = {'images': False, 'annotations': False}
        self._faults: Dict[str, Optional[AnnotationFileError]] = {}
        self.images, self.annotations = self._new_table('images'), self._new_table('annotations')

    def _new_table(self, key: str) -> Table:
        return new_table(key, self._path, self._scratch, self._image_ids)

    def take(self, file: JsonFile, key: str, offset: int, progress: Optional[Progress]) -> int:
        """Takes the value at ``offset`` of the top object's member ``key``; returns the offset behind it.

        A key that is given twice counts as given last, so what is wrong with its value is told in the end.
        """
        _, first = file.token(offset)
        if key == 'images':
            table = self.images = self._new_table(key)
        elif key == 'annotations':
            table = self.annotations = self._new_table(key)
        else:
            if first == b'[' and key != 'categories':
                self.top[key], end = _array_text(file, offset, key)
            else:
                end = file.value(offset, key)[1]
                self.top[key] = file.read(offset, end - offset)
            return end
        self.top.pop(key, None)
        self.sections[key] = first == b'['
        if first != b'[':
            value, end = file.value(offset, key)
            self.top[key] = file.read(offset, end - offset)
            # what can be iterated, and holds nothing, is as good as an empty list
            self._faults[key] = (
                None
                if value in ({}, '')
                else AnnotationFileError(self._path, f'is {shorten(value)}, should be a list of objects', key)
            )
            return end
        return self._take_records(file, key, offset + 1, table, progress)

    def _take_records(self, file: JsonFile, key: str, offset: int, table: Table, progress: Optional[Progress]) -> int:
        """Takes the array's elements, from ``offset`` on; returns the offset behind its closing bracket."""
        self._faults[key], count, end, parsed = None, 0, -1, offset
        others = {'images', 'annotations', 'categories'}.difference(self._faults, self.top)

        def report() -> None:
            if progress:
                progress(parsed + crew.done(), file.size)

        with contextlib.closing(Crew(file, key, offset, others, self._scratch, self._part_bytes)) as crew:
            while end < 0:
                part = None if self._faults[key] else crew.take(offset, report)
                if part:
                    table.merge(part.table)
                    offset, end, count = part.offset, part.end, count + part.table.count
                    report()
                    continue
                elements = Elements(file, offset, table.schema.decode, key, count, crew.stop(offset))
                for batch in elements:
                    if not self._faults[key]:
                        self._faults[key] = _fault(table, batch)
                    parsed, offset = parsed + elements.offset - offset, elements.offset
                    report()
                end, count = elements.end, elements.count
        return end

    def check(self) -> None:
        """Raises the error about the file's content, if there is one: not before its end, as a key may come again."""
        faults = [self._faults.get('annotations'), self._faults.get('images')]
        if 'categories' in self.top:
            faults.append(self.annotations.bad_category)
        for fault in filter(None, faults):
            raise fault
        if 'categories' in self.top:
            read_categories(self.top['categories'], self._path)


def _fault(table: Table, batch: List[Any]) -> Optional[AnnotationFileError]:
    """What is wrong with a record of ``batch``; None after adding all to ``table``."""
    try:
        table.add(batch)
    except AnnotationFileError as error:
        return error
    return None


def _array_text(file: JsonFile, offset: int, name: str) -> Tuple[bytes, int]:
    """Text of an array that is none of ours, checked piece by piece."""
    elements = Elements(file, offset + 1, lambda array: msgspec.json.decode(array, type=List[msgspec.Raw]), name)
    parts = [element.text if type(element) is Odd else bytes(element) for batch in elements for element in batch]
    return b'[' + b', '.join(parts) + b']', elements.end
