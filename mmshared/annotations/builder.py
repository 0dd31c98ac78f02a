"""JSON file -> complete store, in bounded memory.

Pass one streams the file onto scratch files, in its own order; pass two (:mod:`.writer`) writes each column grouped
by image, so that whatever belongs to one image lies together. Only a few numbers per annotation are ever in memory.
"""
from __future__ import annotations

from typing import BinaryIO, Callable, Dict, List, Optional, Tuple

import msgspec

from .container import ContainerWriter
from .errors import AnnotationFileError, shorten
from .ids import IdTable
from .ingest import AnnotationIngest, ImageIngest
from .stream import Elements, JsonFile, Odd
from .writer import StoreWriter

Progress = Callable[[int, int], None]
Scratch = Callable[[], BinaryIO]


def build_store(source: BinaryIO, path: str, out: BinaryIO, scratch: Scratch,
                progress: Optional[Progress] = None) -> Optional[AnnotationFileError]:
    """Parses the COCO file ``source`` and writes its store.

    Args:
        source: the annotation file, open for reading in binary.
        path: its name, for errors.
        out: where the store goes; empty, seekable.
        scratch: makes empty temporary files; together they grow about as large as the JSON.
        progress: called with bytes parsed and bytes in all, every half megabyte.

    Returns:
        What mmdet's ``CocoDataset`` would choke on, which the store remembers too; None if nothing.

    Raises:
        AnnotationFileError: the file is not COCO annotations that pycocotools' ``COCO`` would take.
    """
    tables = _Tables(path, scratch)
    file = JsonFile(source, path)
    for key, offset, cursor in file.members():
        cursor.offset = tables.take(file, key, offset, progress)
    tables.check()
    return StoreWriter(tables.images, tables.annotations, ContainerWriter(out)).write(
        {'source': path, 'sections': tables.sections}, tables.top)


class _Tables:
    """What pass one makes of the file."""

    def __init__(self, path: str, scratch: Scratch) -> None:
        self._path, self._scratch, self._image_ids = path, scratch, IdTable()
        self.top: Dict[str, bytes] = {}
        self._problems: Dict[str, AnnotationFileError] = {}
        self.sections: Dict[str, bool] = {'images': False, 'annotations': False}
        self.images = self._new_images()
        self.annotations = self._new_annotations()

    def _new_images(self) -> ImageIngest:
        return ImageIngest(self._path, self._scratch, self._image_ids)

    def _new_annotations(self) -> AnnotationIngest:
        return AnnotationIngest(self._path, self._scratch, self._image_ids)

    def take(self, file: JsonFile, key: str, offset: int, progress: Optional[Progress]) -> int:
        """Takes the value at ``offset`` of the top object's member ``key``; returns the offset behind it.

        A key that is given twice counts as given last, so what is wrong with its value is told in the end.
        """
        self._problems.pop(key, None)
        _, first = file.token(offset)
        if key == 'images':
            table = self.images = self._new_images()
        elif key == 'annotations':
            table = self.annotations = self._new_annotations()
        else:
            if first == b'[' and key != 'categories':
                self.top[key], end = _array_text(file, offset, key)
            else:
                end = file.value(offset, key)[1]
                self.top[key] = file.read(offset, end - offset)
            return end
        self.sections[key] = True
        if first != b'[':
            value, end = file.value(offset, key)
            if value not in ({}, ''):      # what can be iterated, and holds nothing, is as good as an empty list
                self._problems[key] = AnnotationFileError(
                    self._path, f'is {shorten(value)}, should be a list of objects', key)
            return end
        elements = Elements(file, offset, table.schema.decode, key)
        for batch in elements:
            if key not in self._problems:
                try:
                    table.add(batch)
                except AnnotationFileError as error:
                    self._problems[key] = error
            if progress:
                progress(elements.offset, file.size)
        return elements.end

    def check(self) -> None:
        """Raises the first problem with the values that count."""
        for problem in self._problems.values():
            raise problem
        if self.annotations.bad_category and 'categories' in self.top:
            raise self.annotations.bad_category


def _array_text(file: JsonFile, offset: int, name: str) -> Tuple[bytes, int]:
    """Text of an array that is none of ours, checked piece by piece."""
    elements = Elements(file, offset, lambda array: msgspec.json.decode(array, type=List[msgspec.Raw]), name)
    parts = [element.text if type(element) is Odd else bytes(element) for batch in elements for element in batch]
    return b'[' + b', '.join(parts) + b']', elements.end
