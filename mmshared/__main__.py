"""``python -m mmshared``: the same as the command ``mmshared``."""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


def start() -> int:
    """Run the command with the arguments of this process; returns its exit status.

    Its imports take part of a second, in which it may be interrupted, or find that something is not installed.
    """
    # C code that is being imported makes an ImportError of a KeyboardInterrupt, so until then the signal just ends it.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from mmshared.cli.main import main

        signal.signal(signal.SIGINT, handler)
        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        os.write(2, f'mmshared: error: {error.name} is not installed. Install mmshared with pip\n'.encode())
        return 1


if __name__ == '__main__':
    sys.exit(start())
