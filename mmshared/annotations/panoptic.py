"""Panoptic annotations (COCO's panoptic format), mapped: the segments of an image are decoded when they are asked for.

An annotation of that format is about a whole image and holds a list ``segments_info``, so the columns of
:mod:`~.layout` do not fit it. Its text is kept instead, sorted by image.

Format: https://cocodataset.org/#format-data, "4. Panoptic Segmentation".
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple, Union

import msgspec
import numpy as np

from .cache import Fingerprint, StoreCache, hold
from .categories import read_categories
from .container import FORMAT_VERSION, Container, ContainerWriter
from .errors import AnnotationFileError, StoreError, shorten
from .parsing.stream import Elements, JsonFile, Odd

KIND = 'p'
_SECTIONS = ('images', 'annotations')


class PanopticStore:
    """The panoptic annotations of one file, opened by path. It pickles to its path.

    Args:
        path: the store's file.

    Attributes:
        path: the store's file.
        source: path of the annotation file, as it was when parsed.
        image_ids: ids of the images that have segments, in order of first appearance among the annotations.

    Raises:
        StoreError: the file is torn, foreign or of another version.
    """

    def __init__(self, path: Union[str, os.PathLike]) -> None:
        self.path = os.fspath(path)
        self._hold = hold(Path(path))
        container = Container(self.path, self._hold.fileno())
        try:
            self.source: str = container.attributes['source']
            self._columns = container.columns
            self._text = memoryview(container.columns['segments'])
            ends = container.columns['image_ends']
            if ends.size and (int(ends[-1]) != self._text.nbytes or (np.diff(ends) < 0).any() or int(ends[0]) < 0):
                raise ValueError('its offsets do not add up')
            self.image_ids: List[Any] = json.loads(self._json('image_ids'))
            self._rows = {image_id: row for row, image_id in enumerate(self.image_ids)}
            if len(self._rows) != ends.size:
                raise ValueError(f'{ends.size} offsets for {len(self._rows)} images')
            self._ends = ends
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f'{self.path}: is no store of panoptic annotations ({error!r})') from error

    def __reduce__(self) -> tuple:
        return type(self), (self.path,)

    def __copy__(self) -> PanopticStore:
        return self

    def __deepcopy__(self, memo: dict) -> PanopticStore:
        return self

    def __contains__(self, image_id: Any) -> bool:
        return image_id in self._rows

    def segments(self, image_id: Any) -> List[Dict[str, Any]]:
        """The segments of an image, each with its ``image_id``, in fresh objects; none if it is unknown."""
        row = self._rows.get(image_id)
        if row is None:
            return []
        start = int(self._ends[row - 1]) if row else 0
        found = json.loads(f'[{str(self._text[start : int(self._ends[row])], "utf-8")}]')
        return [segment for segments in found for segment in segments]

    @property
    def categories(self) -> List[Dict[str, Any]]:
        """The file's category records; AnnotationFileError if there are none or they cannot serve as such."""
        if 'categories' not in self._columns:
            raise AnnotationFileError(self.source, 'the file has no "categories"')
        return read_categories(self._json('categories'), self.source)

    @property
    def images(self) -> List[Dict[str, Any]]:
        """The file's image records, in fresh objects."""
        return json.loads(self._json('images'))

    def _json(self, name: str) -> bytes:
        return self._columns[name].tobytes()


def open_panoptic(
    source: Union[str, os.PathLike, Fingerprint], cache_dir: Optional[str] = None, content: Optional[str] = None
) -> PanopticStore:
    """The store of a panoptic annotation file; the first process of a node to ask builds it, the others wait for it.

    Args:
        source: path of the file, or a fingerprint (of kind :data:`KIND`) of something that is no local file.
        cache_dir: folder of the stores; see :class:`~.cache.StoreCache`.
        content: local path to read from, where ``source`` is a fingerprint.

    Raises:
        AnnotationFileError: the file does not hold panoptic annotations.
        FileNotFoundError, IsADirectoryError, PermissionError: the file cannot be read.
        CacheError: no store can be written.
    """

    def build(path: str, out: BinaryIO, progress: Callable[[int, int], None], scratch: Callable[[], BinaryIO]) -> None:
        with open(path if content is None else content, 'rb') as file:
            _build(file, path, out, progress, scratch)

    mark = source if isinstance(source, Fingerprint) else Fingerprint.of_file(source, KIND)
    with StoreCache(cache_dir, FORMAT_VERSION).acquire(mark, build, _is_store) as held:
        return PanopticStore(held.path)


def find_panoptic(source: Fingerprint, cache_dir: Optional[str] = None) -> Optional[PanopticStore]:
    """As :func:`open_panoptic`, but None where it would have to be built."""
    held = StoreCache(cache_dir, FORMAT_VERSION).find(source, _is_store)
    if held is None:
        return None
    with held:
        return PanopticStore(held.path)


def _is_store(path: Path) -> bool:
    try:
        PanopticStore(path)
    except (StoreError, OSError):
        return False
    return True


def _build(
    source: BinaryIO,
    path: str,
    out: BinaryIO,
    progress: Callable[[int, int], None],
    scratch: Callable[[], BinaryIO],
) -> None:
    file, tables, top = JsonFile(source, path), dict.fromkeys(_SECTIONS), {}
    for key, offset, cursor in file.members():
        if key in _SECTIONS and file.token(offset)[1] == b'[':
            take = _Annotations(path, scratch()) if key == 'annotations' else _Images(path)
            tables[key], cursor.offset = take, _read(file, key, offset, take, progress)
        else:
            cursor.offset = file.value(offset, key)[1]
            text = file.read(offset, cursor.offset - offset)
            if key == 'categories':
                top[key] = text
            elif key in _SECTIONS and json.loads(text) not in ({}, ''):
                raise AnnotationFileError(path, f'is {shorten(json.loads(text))}, should be a list of objects', key)
    if 'categories' in top:
        read_categories(top['categories'], path)
    annotations, images = tables['annotations'] or _Annotations(path, scratch()), tables['images'] or _Images(path)
    writer = ContainerWriter(out)
    annotations.write(writer)
    for name, text in (('images', images.text()), *top.items()):
        writer.add_stream(name, 'u1', [text])
    writer.close({'source': path})


def _read(file: JsonFile, key: str, offset: int, table: Any, progress: Callable[[int, int], None]) -> int:
    elements = Elements(file, offset + 1, lambda array: msgspec.json.decode(array, type=List[msgspec.Raw]), key)
    for batch in elements:
        for element in batch:
            table.add(element.value if type(element) is Odd else json.loads(bytes(element)))
        progress(elements.offset, file.size)
    return elements.end


class _Records:
    """Takes the records of one array, and knows their names for errors."""

    section = ''

    def __init__(self, path: str) -> None:
        self._path, self._count = path, 0

    def add(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise self._error(f'is {shorten(record)}, should be an object')
        self._take(record)
        self._count += 1

    def _take(self, record: Dict[str, Any]) -> None:
        raise NotImplementedError

    def _field(self, record: Dict[str, Any], field: str, kind: Any = object, where: str = '') -> Any:
        if field not in record:
            raise self._error('is missing', field, where)
        if not isinstance(record[field], kind):
            raise self._error(f'is {shorten(record[field])}, should be a {kind.__name__}', field, where)
        return record[field]

    def _key(self, record: Dict[str, Any], field: str, where: str = '') -> Any:
        value = self._field(record, field, where=where)
        if isinstance(value, (list, dict)):
            raise self._error(f'is {shorten(value)}, cannot serve as a key', field, where)
        return value

    def _error(self, problem: str, field: Optional[str] = None, where: str = '') -> AnnotationFileError:
        return AnnotationFileError(self._path, problem, f'{self.section}[{self._count}]{where}', field)


class _Images(_Records):
    section = 'images'

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._texts: List[str] = []

    def _take(self, record: Dict[str, Any]) -> None:
        self._key(record, 'id')
        self._field(record, 'file_name', str)
        self._texts.append(json.dumps(record))

    def text(self) -> bytes:
        return f'[{",".join(self._texts)}]'.encode()


class _Annotations(_Records):
    """The texts go to a scratch file in the order of the file, and from there to the store by image."""

    section = 'annotations'

    def __init__(self, path: str, spool: BinaryIO) -> None:
        super().__init__(path)
        self._spool, self._rows = spool, {}
        self._places: List[Tuple[int, int, int]] = []  # image, where its text is, how long it is

    def _take(self, record: Dict[str, Any]) -> None:
        segments = self._field(record, 'segments_info', list)
        if not segments:
            return
        image_id = self._key(record, 'image_id')
        for i, segment in enumerate(segments):
            where = f' segments_info[{i}]'
            if not isinstance(segment, dict):
                raise self._error(f'is {shorten(segment)}, should be an object', where=where)
            self._key(segment, 'id', where)
            self._key(segment, 'category_id', where)
            segment['image_id'] = image_id
        text = json.dumps(segments).encode()
        self._places.append((self._rows.setdefault(image_id, len(self._rows)), self._spool.tell(), len(text)))
        self._spool.write(text)

    def write(self, writer: ContainerWriter) -> None:
        places = sorted(self._places)
        sizes, seen = np.zeros(len(self._rows), np.int64), -1
        for image, _, length in places:
            sizes[image] += length + (image == seen)
            seen = image
        writer.add_stream('segments', 'u1', self._texts(places))
        writer.add_stream('image_ends', '<i8', [np.cumsum(sizes)])
        writer.add_stream('image_ids', 'u1', [json.dumps(list(self._rows)).encode()])

    def _texts(self, places: List[Tuple[int, int, int]]) -> Iterator[bytes]:
        seen = -1
        for image, offset, length in places:
            self._spool.seek(offset)
            yield (b',' if image == seen else b'') + self._spool.read(length)
            seen = image
