"""The keys of annotation and image records, and a decoder for each that learns further keys as it meets them."""

from __future__ import annotations

import functools
import json
import operator
import re
from typing import Annotated, Any, Dict, Iterable, List, Tuple, Union

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

#: An id that fits a column; others stay text.
_Id = Union[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], str]
_Pixels = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Flag = Union[int, bool, None, UnsetType]
ANNOTATION: Dict[str, Any] = {
    'id': _Id,
    'image_id': _Id,
    'category_id': _Id,
    'bbox': Raw,
    'area': Raw,
    'iscrowd': _Flag,
    'ignore': _Flag,
    'segmentation': Union[List[Raw], Dict[str, Raw], None, UnsetType],
}
IMAGE: Dict[str, Any] = {'id': _Id, 'height': _Pixels, 'width': _Pixels, 'file_name': Union[str, UnsetType]}
_OPTIONAL = ('iscrowd', 'ignore', 'segmentation', 'file_name')
#: A file with more different keys than this has its further ones kept as text, record by record.
_MAX_EXTRAS = 64
#: Keys with one of these cannot be learnt: msgspec does not take them for a field's name.
_UNFIT = re.compile(r'["\\\x00-\x1f]')


class Schema:
    """Decodes a JSON array of records of one table into structs; keys it does not know it learns, as raw text.

    Args:
        fields: name -> type of the known keys.

    Attributes:
        extras: the further keys seen so far; the struct's attribute for ``extras[i]`` is ``f'extra{i}'``.
    """

    def __init__(self, fields: Dict[str, Any]) -> None:
        self._fields, self.extras, self._full = fields, [], False
        self._decoder = self._make()

    def decode(self, array: bytes) -> List[Any]:
        """The records of ``array``.

        Raises:
            msgspec.ValidationError: a record lacks a key or has a value of another type.
            msgspec.DecodeError: it is not JSON, to a decoder stricter than Python's.
        """
        try:
            return self._decoder.decode(array)
        except msgspec.ValidationError as error:
            if self._full or 'unknown field' not in str(error) or not self._learn(array):
                raise
            return self.decode(array)

    def values(self, records: List[Any], key: str) -> List[Any]:
        """What each of ``records`` has for ``key``, a known one or not: UNSET where it has none."""
        if key in self._fields:
            return [getattr(record, key) for record in records]
        if key not in self.extras:
            return [UNSET] * len(records)
        # A record of a struct made before the key was learnt does not even have the attribute.
        name = f'extra{self.extras.index(key)}'
        return [getattr(record, name, UNSET) for record in records]

    def extra_text(self, records: List[Any]) -> Tuple[List[bytes], bool]:
        """For each record the JSON object of its further keys, ``b''`` without any; and whether one has some."""
        if not self.extras:
            return [b''] * len(records), False
        names = [f'extra{i}' for i in range(len(self.extras))]
        template = b'{%b}' % b', '.join(_key_text(key).replace(b'%', b'%%') + b'%b' for key in self.extras)
        values_of = operator.attrgetter('id', *names)  # a tuple, also of one further key
        try:
            return [template % values_of(record)[1:] for record in records], True
        except (TypeError, AttributeError):  # a record lacks one of them
            pass
        texts = []
        for record in records:
            # A record of a struct made before a key was learnt does not even have the attribute.
            pairs = [(key, getattr(record, name, UNSET)) for key, name in zip(self.extras, names)]
            pairs = [pair for pair in pairs if pair[1] is not UNSET]
            texts.append(object_text(pairs) if pairs else b'')
        return texts, any(texts)

    def _learn(self, array: bytes) -> bool:
        records = msgspec.json.decode(array, type=List[Dict[str, Raw]])
        keys = {key: None for record in records for key in record}
        new = [key for key in keys if key not in self._fields and key not in self.extras and not _UNFIT.search(key)]
        self._full = self._full or len(self.extras) + len(new) > _MAX_EXTRAS
        if not new or self._full:
            return False
        self.extras += new
        self._decoder = self._make()
        return True

    def _make(self) -> msgspec.json.Decoder:
        fields: List[tuple] = [
            (name, kind, UNSET) if name in _OPTIONAL else (name, kind) for name, kind in self._fields.items()
        ]
        fields += [(f'extra{i}', Union[Raw, UnsetType], UNSET) for i in range(len(self.extras))]
        rename = {f'extra{i}': key for i, key in enumerate(self.extras)}
        struct = msgspec.defstruct('Record', fields, gc=False, forbid_unknown_fields=True, kw_only=True, rename=rename)
        return msgspec.json.Decoder(List[struct])


def object_text(pairs: Iterable[Tuple[str, Raw]]) -> bytes:
    """The JSON object with these keys and values."""
    return b'{%b}' % b', '.join([_key_text(key) + bytes(value) for key, value in pairs])


@functools.lru_cache(maxsize=1024)
def _key_text(key: str) -> bytes:
    return json.dumps(key).encode() + b': '
