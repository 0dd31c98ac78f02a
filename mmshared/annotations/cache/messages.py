"""Log lines that people see.

A plain Python program shows only warnings of a logger that nobody configured, and mmengine configures a logger of its
own, not the root one: 'still building, 40 %' would go nowhere. Whoever has configured logging (a handler or a level for
'mmshared' or the root) gets exactly what they asked for. Otherwise the line goes to stderr, and no logger is changed.
"""

from __future__ import annotations

import logging

logger = logging.getLogger('mmshared')

_FORMAT = logging.Formatter('%(asctime)s - %(name)s - %(levelname)s - %(message)s')


def say(message: str, *args: object, level: int = logging.INFO) -> None:
    """Log ``message % args`` to the logger 'mmshared', on stderr if no logging is configured."""
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        logger.log(level, message, *args)
    elif level >= logging.INFO:
        handler = logging.StreamHandler()  # not kept: stderr may be another one by the next line
        handler.setFormatter(_FORMAT)
        handler.handle(logger.makeRecord(logger.name, level, __file__, 0, message, args, None))
