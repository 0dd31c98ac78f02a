"""The console script ``mmshared``.

Importing the package mmshared registers its components with mmengine and mmdet, so it imports PyTorch and all of them,
which takes seconds. The command needs none of it. So it puts the package in place without running its ``__init__``:
the modules in it can be imported as always. It is a module of its own, since importing one of the package would be too
late.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec


def main() -> int:
    """Run the command with the arguments of this process; returns its exit status."""
    if 'mmshared' not in sys.modules:
        sys.modules['mmshared'] = module_from_spec(find_spec('mmshared'))
    from mmshared.__main__ import start

    return start()


if __name__ == '__main__':
    sys.exit(main())
