"""Names in zip files: bytes whose encoding is said, or has to be guessed.

Source: PKWARE's APPNOTE.TXT 6.3.10, appendix D, and section 4.6.9 for the field of Info-ZIP.
"""

from __future__ import annotations

from typing import Dict
from zlib import crc32

from mmshared.fileio.entry import entry_name

_UTF8 = 0x800  # flag bit 11
_UNICODE_PATH = 0x7075  # tag of an extra field


def path_of(raw: bytes, flags: int, extra: bytes, backslashes: bool) -> str:
    """The name of an entry; '' for a directory, and for what nobody can ask for.

    Args:
        raw: the name as it is in the archive.
        flags: the entry's flags.
        extra: the entry's extra fields.
        backslashes: whether it was made where these are between folders, and programs may have left them so.
    """
    path = decoded(raw, flags, extra)
    if backslashes and '/' not in path:
        path = path.replace('\\', '/')
    return '' if path.endswith('/') else entry_name(path)


def decoded(raw: bytes, flags: int, extra: bytes) -> str:
    """``raw`` as text, up to its first zero byte.

    UTF-8 if the flag or the field of Info-ZIP says so. Else it should be CP437; but many programs write UTF-8 without
    saying so, and a text in another encoding is hardly ever valid UTF-8.
    """
    if raw.isascii() and not extra:
        text = raw.decode('ascii')
    else:
        text = _said(raw, extra) or _guessed(raw, flags)
    return text.partition('\0')[0]


def _said(raw: bytes, extra: bytes) -> str:
    """The name in the field of Info-ZIP; '' without, and if it is of another name that the entry had before."""
    data = extra_fields(extra).get(_UNICODE_PATH, b'')
    if data[:5] != b'\1' + crc32(raw).to_bytes(4, 'little'):
        return ''
    return data[5:].decode('utf-8', 'surrogateescape')


def _guessed(raw: bytes, flags: int) -> str:
    try:
        return raw.decode('utf-8', 'surrogateescape' if flags & _UTF8 else 'strict')
    except UnicodeDecodeError:
        return raw.decode('cp437')


def extra_fields(extra: bytes) -> Dict[int, bytes]:
    """The extra fields by tag; the first of those with one tag. What is no field ends them: some tools pad so."""
    found: Dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        tag, length = int.from_bytes(extra[at : at + 2], 'little'), int.from_bytes(extra[at + 2 : at + 4], 'little')
        if at + 4 + length > len(extra):
            break
        found.setdefault(tag, extra[at + 4 : at + 4 + length])
        at += 4 + length
    return found
