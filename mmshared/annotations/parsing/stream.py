"""Walk a JSON file of any size in bounded memory: the members of its object, the elements of its arrays.

A piece of the file is cut at its last ``}, {`` and decoded as ``[piece]``: if that decodes, brackets balance, so the
cut was a true element boundary. Only the piece is ever in memory. What the fast decoder refuses goes to Python's
``json``, which alone decides what is valid: it takes NaN, huge integers and lone surrogates, and so do we.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from typing import Any, BinaryIO, Callable, Iterator, List, NamedTuple, Optional, Tuple

import msgspec

from ..errors import AnnotationFileError, clip, shorten

PIECE = 1 << 21
_DECODER = json.JSONDecoder()
_SPACE = b' \t\n\r'
_COMMA = re.compile(rb'[ \t\n\r]*,[ \t\n\r]*')
_TRAILING = re.compile(r'trailing characters \(byte (\d+)\)')
_CUTS = 4
#: What the decoders raise; ``json`` has the last word on such a piece. (Deep nesting is a ``RecursionError``.)
_REFUSALS = (msgspec.DecodeError, json.JSONDecodeError, RecursionError)
#: What has been read of a number, a word or an escape that the end of a piece cuts is not longer than this.
_TAIL = 16
#: Every so many bytes one is looked at: a number of more than 4,300 digits shows as so many digits in a row.
_STRIDE = 128
_SAMPLES = 4300 // _STRIDE
_LONG_NUMBER = re.compile(rb'(?=[0-9]{%d})' % _SAMPLES)


class Odd(NamedTuple):
    """An element that the fast decoder did not take: its text and what Python's ``json`` makes of it."""

    text: bytes
    value: Any


class JsonFile:
    """A JSON file with an object at its top. Offsets are in bytes."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self.file, self.path = file, path
        self.size = file.seek(0, 2)

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        self.file.seek(offset)
        return self.file.read(size)

    def error(self, problem: str, record: Optional[str] = None) -> AnnotationFileError:
        """The error to raise for this file."""
        return AnnotationFileError(self.path, problem, record)

    def token(self, offset: int) -> Tuple[int, bytes]:
        """Offset and byte of the first non-space at or after ``offset``; the byte is empty at the end."""
        while True:
            chunk = self.read(offset, 4096)
            rest = chunk.lstrip(_SPACE)
            if rest or not chunk:
                return offset + len(chunk) - len(rest), rest[:1]
            offset += len(chunk)

    def text(self, offset: int, data: bytes, record: Optional[str] = None) -> str:
        """``data``, read at ``offset``, as text, without a character cut off at its end."""
        try:
            last = offset + len(data) >= self.size
            return codecs.getincrementaldecoder('utf-8')().decode(data, last)
        except UnicodeDecodeError as error:
            raise self.error(
                f'is not UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start} ({error.reason})',
                record,
            ) from None

    def value(self, offset: int, record: Optional[str] = None) -> Tuple[Any, int]:
        """The JSON value that begins at ``offset``, by Python's ``json``, and the offset after it."""
        size = 1 << 14
        while True:
            data = self.read(offset, size)
            text, whole = self.text(offset, data, record), offset + len(data) >= self.size
            try:
                value, end = _DECODER.raw_decode(text)
                if end < len(text) or whole:  # else a number may go on in the next bytes
                    return value, offset + len(text[:end].encode('utf-8', 'surrogatepass'))
            except json.JSONDecodeError as error:
                if whole or _is_wrong(error):
                    raise self.syntax(error, offset, text, record) from None
            except (RecursionError, ValueError) as error:
                raise self.error(f'cannot be read at byte {offset}: {clip(str(error))}', record) from None
            size *= 4

    def syntax(self, error: json.JSONDecodeError, offset: int, text: str, record: Optional[str]) -> AnnotationFileError:
        """The error for malformed JSON, with what is there and a guess at the reason."""
        at = offset + len(text[: error.pos].encode('utf-8', 'surrogatepass'))
        if at >= self.size:
            problem = f'the file ends in the middle of a value (it has {self.size} bytes): is it complete?'
        else:
            problem = f'is not valid JSON at byte {at}: {error.msg}, found {shorten(text[error.pos : error.pos + 20])}'
        return self.error(problem, record)

    def members(self) -> Iterator[Tuple[str, int, Cursor]]:
        """Key, offset of the value, and a cursor that the consumer moves to the value's end, of each top member."""
        offset, first = self.token(0)
        self._expect_object(offset, first)
        cursor = Cursor(offset + 1)
        offset, byte = self.token(cursor.offset)
        while byte != b'}':
            if byte != b'"':
                raise self.error(
                    f'is not valid JSON at byte {offset}: expected a key in double quotes, found '
                    f'{self.read(offset, 20)!r}'
                    if byte
                    else 'the file ends early: is it complete?'
                )
            key, after = self.value(offset)
            offset, byte = self.token(after)
            if byte != b':':
                raise self.error(f'is not valid JSON at byte {offset}: expected a colon after key {shorten(key)}')
            offset, _ = self.token(offset + 1)
            yield key, offset, cursor
            offset, byte = self.token(cursor.offset)
            if byte == b',':
                offset, byte = self.token(offset + 1)
                if byte == b'}':
                    raise self.error(f'is not valid JSON at byte {offset}: a comma before the closing brace')
            elif byte != b'}':
                raise self.error(
                    f'is not valid JSON at byte {offset}: expected a comma or a closing brace after '
                    f'the value of {shorten(key)}, found {self.read(offset, 20)!r}'
                    if byte
                    else 'the file ends in the middle of its top object: is it complete?'
                )
        offset, byte = self.token(offset + 1)
        if byte:
            raise self.error(f'is not valid JSON: something follows the closing brace, at byte {offset}')

    def _expect_object(self, offset: int, first: bytes) -> None:
        if first == b'{':
            return
        head = self.read(0, 8)
        if self.size == 0:
            problem = 'is empty'
        elif not first:
            problem = 'holds only white space'
        elif head.startswith(b'\x1f\x8b'):
            problem = 'is compressed with gzip: decompress it (gunzip)'
        elif head.startswith(b'PK\x03\x04'):
            problem = 'is a zip archive: extract it'
        elif head.startswith(b'\xef\xbb\xbf'):
            problem = 'begins with a byte order mark, which JSON does not allow: save it as UTF-8 without BOM'
        elif first == b'[':
            problem = (
                'has a list at its top, should have an object with "images", "annotations" and "categories" '
                '(a results file is a list: it cannot serve as annotations)'
            )
        else:
            problem = f'is not JSON: it begins with {head!r}'
        raise self.error(problem)


class Cursor:
    """An offset that whoever reads a value moves behind it."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Cut(NamedTuple):
    """Between two elements of an array: the offset behind one's ``}``, and that of the next one's ``{``."""

    end: int
    start: int


Decode = Callable[[bytes], List[Any]]


class Elements:
    """Iterates over an array, as lists of decoded elements.

    Args:
        json_file: the file.
        offset: behind the array's opening bracket, or of the element to begin with.
        decode: makes a list of elements of ``[...]``; raises ``msgspec.ValidationError`` if their types are others
            than it expects, ``msgspec.DecodeError`` if it is not JSON to it.
        name: what the array is called in errors.
        count: number of the element to begin with, for errors.
        stop: where to stop, if elements should turn out to end there; at the array's end in any case.

    Iterating yields lists whose elements are what ``decode`` makes, or :class:`Odd` where it refuses. Afterwards
    ``end`` is the offset behind the closing bracket; it is -1 if the iteration ended at ``stop``. ``offset`` moves
    along; it is that of the next element.
    """

    def __init__(
        self, json_file: JsonFile, offset: int, decode: Decode, name: str, count: int = 0, stop: Optional[Cut] = None
    ) -> None:
        self._json, self._decode, self._name = json_file, decode, name
        self.offset, self.end, self.count = offset, -1, count
        self._cuts, self._stop = _CUTS, stop

    def __iter__(self) -> Iterator[List[Any]]:
        self.offset, byte = self._json.token(self.offset)
        if byte == b']':
            self.end = self.offset + 1
        size = PIECE
        while self.end < 0:
            if self._stop and self.offset + size >= self._stop.end:
                stop, self._stop = self._stop, None  # a wrong guess is forgotten
                elements = self._up_to(stop)
                if elements:
                    self.offset = stop.start
                    self.count += len(elements)
                    yield elements
                    return
            data = self._json.read(self.offset, size)
            elements, used = self._fast(data)
            if not used:
                elements, used = self._slow(data)
            if not used:
                size *= 2
                continue
            size = PIECE
            self.offset += used
            self.count += len(elements)
            yield elements

    def _up_to(self, stop: Cut) -> List[Any]:
        """The elements before ``stop``; none if it is not between two elements."""
        data = self._json.read(self.offset, max(stop.end - self.offset, 0))
        with contextlib.suppress(*_REFUSALS, AnnotationFileError):
            if not _has_long_number(data):
                self._check_text(data)
                return self._decode_all(b'[%b]' % data)
        with contextlib.suppress(AnnotationFileError):
            elements, used = self._slow(data + b']')
            self.end = -1
            if used == len(data) + 1:
                return elements
        return []

    def _check_text(self, data: bytes) -> None:
        """Raises the error if ``data``, read at ``offset``, is not UTF-8."""
        if not data.isascii():
            self._json.text(self.offset, data, f'{self._name}[{self.count}] or later')

    def _fast(self, data: bytes) -> Tuple[List[Any], int]:
        """Elements and the bytes they take, by ``decode``; 0 bytes if it cannot."""
        if _has_long_number(data):
            return [], 0
        cut = len(data)
        for _ in range(self._cuts):
            cut = _boundary(data, cut)
            if cut < 0:
                break
            self._check_text(data[:cut])
            try:
                elements = self._decode_all(b'[%b]' % data[:cut])
                self._cuts = _CUTS
                return elements, _COMMA.match(data, cut).end()
            except _REFUSALS as error:
                trailing = _TRAILING.search(str(error))
                if trailing:  # the array's own end lies before the cut
                    return self._last(data, int(trailing[1]) - 2)
        if self.offset + len(data) >= self._json.size:
            try:
                self._decode_all(b'[%b' % data)
            except _REFUSALS as error:
                trailing = _TRAILING.search(str(error))
                if trailing:
                    return self._last(data, int(trailing[1]) - 2)
        self._cuts = 1  # the next piece is probably no better
        return [], 0

    def _last(self, data: bytes, trailing: int) -> Tuple[List[Any], int]:
        """The array's last elements: ``data[trailing]`` is the first non-space behind the closing bracket."""
        close = data.rfind(b']', 0, trailing)
        self._check_text(data[: close + 1])
        try:
            elements = self._decode_all(b'[%b]' % data[:close])
        except _REFUSALS:
            return [], 0
        self.end = self.offset + close + 1
        return elements, close + 1

    def _decode_all(self, array: bytes) -> List[Any]:
        """By ``decode``, each element by itself where the whole does not go."""
        try:
            return self._decode(array)
        except msgspec.ValidationError:
            return [self._decode_one(bytes(raw)) for raw in msgspec.json.decode(array, type=List[msgspec.Raw])]

    def _decode_one(self, text: bytes) -> Any:
        try:
            return self._decode(b'[%b]' % text)[0]
        except msgspec.DecodeError:  # ValidationError is one of them
            return Odd(text, json.loads(text))

    def _slow(self, data: bytes) -> Tuple[List[Any], int]:
        """Elements and bytes by Python's ``json``; 0 bytes if not even one is complete in ``data``."""
        text = self._json.text(self.offset, data, f'{self._name}[{self.count}] or later')
        whole = self.offset + len(data) >= self._json.size
        elements, position, spent = [], 0, 0
        while True:
            record = f'{self._name}[{self.count + len(elements)}]'
            try:
                value, end = _DECODER.raw_decode(text, position)
            except json.JSONDecodeError as error:
                if whole or _is_wrong(error):
                    raise self._json.syntax(error, self.offset, text, record) from None
                break
            except (RecursionError, ValueError) as error:
                raise self._json.error(f'cannot be read: {clip(str(error))}', record) from None
            after = _skip(text, end)
            follows = text[after : after + 1]
            if follows not in (',', ']') or (follows == ',' and _skip(text, after + 1) == len(text)):
                if whole or follows not in ('', ',') and len(text) - end > _TAIL:
                    raise self._json.error(
                        f'is not valid JSON: expected a comma or "]" after it, found {text[after : after + 20]!r}',
                        record,
                    )
                break
            size = len(text[position:end].encode('utf-8', 'surrogatepass'))
            elements.append(self._decode_one_slow(text[position:end], value))
            position = _skip(text, after + 1) if follows == ',' else after + 1
            spent += size + position - end  # what lies between elements is ASCII
            if follows == ']':
                self.end = self.offset + spent
                break
        return elements, spent

    def _decode_one_slow(self, text: str, value: Any) -> Any:
        encoded = text.encode('utf-8', 'surrogatepass')
        try:
            return self._decode(b'[%b]' % encoded)[0]
        except _REFUSALS:
            return Odd(encoded, value)


def _is_wrong(error: json.JSONDecodeError) -> bool:
    """Whether the text is malformed whatever follows it: else more of a huge file is read in vain."""
    return len(error.doc) - error.pos > _TAIL and not error.msg.startswith('Unterminated string')


def _has_long_number(data: bytes) -> bool:
    """Whether there may be a number of more than 4,300 digits: ``json`` refuses it, the fast decoder does not."""
    found = (match.start() * _STRIDE for match in _LONG_NUMBER.finditer(data[::_STRIDE]))
    return any(data[start : start + (_SAMPLES - 1) * _STRIDE].isdigit() for start in found)


def _skip(text: str, position: int) -> int:
    """Position of the first non-space at or after ``position``."""
    while position < len(text) and text[position] in ' \t\n\r':
        position += 1
    return position


def _boundary(data: bytes, end: int) -> int:
    """Offset behind the last ``}`` before ``end`` that is followed by ``, {``; -1 if there is none."""
    while True:
        brace = data.rfind(b'{', 0, end)
        close = data.rfind(b'}', 0, brace) if brace > 0 else -1
        if close < 0:
            return -1
        if data[close + 1 : brace].strip(_SPACE) == b',':
            return close + 1
        end = brace
