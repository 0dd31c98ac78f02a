"""Log lines that people see.

A plain Python program shows only warnings of a logger that nobody configured, and mmengine configures a logger of its
own, not the root one: 'still building, 40 %' would go nowhere. Whoever has chosen a level (for 'mmshared', or another
than the usual one for the root) gets exactly what they asked for. Otherwise the line goes to the handlers that are
there (the package lvis adds one to the root as soon as mmdet is imported), or to stderr; no logger is changed.
"""

from __future__ import annotations

import logging

logger = logging.getLogger('mmshared')

_FORMAT = logging.Formatter('%(asctime)s - %(name)s - %(levelname)s - %(message)s')


def printable(text: object, limit: int = 0) -> str:
    """``str(text)`` on one line, cut to ``limit`` characters (0: whole), with what a terminal acts on escaped.

    Class names and paths come from elsewhere: line ends, escape sequences, marks that turn the direction of writing and
    lone surrogates become ``\\n``, ``\\x1b``, ``\\u202e``...
    """
    text = str(text)
    if limit:
        text = _cut(text, limit)  # first: a name may have megabytes
    if not text.isprintable():
        text = ''.join(c if c.isprintable() else c.encode('unicode_escape').decode('ascii') for c in text)
    return _cut(text, limit) if limit else text


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + '...'


def say(message: str, *args: object, level: int = logging.INFO) -> None:
    """Log ``message % args``, on one line, to the logger 'mmshared', on stderr if no logging is configured."""
    message, args = '%s', (printable(message % args),)
    if logger.level != logging.NOTSET or logger.root.level != logging.WARNING:
        logger.log(level, message, *args)
    elif level >= logging.INFO:
        record = logger.makeRecord(logger.name, level, __file__, 0, message, args, None)
        if logger.hasHandlers():
            logger.handle(record)
            return
        handler = logging.StreamHandler()  # not kept: stderr may be another one by the next line
        handler.setFormatter(_FORMAT)
        handler.handle(record)
