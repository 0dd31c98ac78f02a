"""``mmshared pack | pack-images | inspect | cache | ...``: arguments in, exit status out, errors as one line."""

from __future__ import annotations

import argparse
import signal
from typing import List, Optional

from mmshared.version import __version__

from . import cache, convert_config, doctor, inspect, pack, pack_images
from .errors import FORESEEABLE, complain
from .text import drop_output, flush

INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell reports a process that SIGINT or SIGPIPE ended


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command.

    Args:
        argv: its arguments; None for those of the process.

    Returns:
        Exit status: 0 all is well, 1 something is wrong (a line on stderr says what), 2 the arguments are wrong,
        130 interrupted, 141 nobody reads the output any more.
    """
    parser = _parser()
    try:
        arguments = parser.parse_args(argv)
        try:
            status = arguments.run(arguments)
        finally:
            flush()
        return status
    except BrokenPipeError:
        drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        if argv is None:  # this process is at its end: an impatient second Ctrl-C must not print a traceback
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        complain('interrupted')
        return INTERRUPTED
    except FORESEEABLE as error:
        complain(error)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='mmshared',
        description='Pack annotation files and images for MMDetection, look after them, and convert configs.',
    )
    parser.add_argument('--version', action='version', version=f'mmshared {__version__}')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for module in (pack, pack_images, inspect, cache, doctor, convert_config):
        module.add_to(commands)
    return parser
