"""``python -m mmshared``: the same as the command ``mmshared``."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


def start() -> int:
    """Run the command with the arguments of this process; returns its exit status.

    Its imports take part of a second, in which it may be interrupted, or find that something is not installed.
    """
    try:
        from mmshared.cli.main import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ModuleNotFoundError as error:
        os.write(2, f'mmshared: error: {error.name} is not installed. Install mmshared with pip\n'.encode())
        return 1


if __name__ == '__main__':
    sys.exit(start())
