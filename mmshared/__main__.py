"""``python -m mmshared``: the same as the command ``mmshared``."""

import sys

from mmshared.cli.main import main

if __name__ == '__main__':
    sys.exit(main())
