"""One process of a job that opens a store: ``cache_worker.py SOURCE CACHE [seconds of the build] [go] [hold]``.

It prints BUILD when it builds, and OK with a hash of the store's content at the end. With ``go`` it prints READY first
and waits for a line, with ``hold`` it stays and keeps the store in use.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# The cache needs neither torch nor mmengine; not to load them saves seconds in each of many processes.
package = types.ModuleType('mmshared')
package.__path__ = [os.fspath(ROOT / 'mmshared')]
package.__spec__ = importlib.util.spec_from_loader('mmshared', None, is_package=True)
sys.modules['mmshared'] = package
sys.path.insert(0, os.fspath(Path(__file__).parent))

from fake_store import check, decode, encode  # noqa: E402

from mmshared.annotations.cache import StoreCache  # noqa: E402


def tell(*words) -> None:
    os.write(1, (' '.join(map(str, words)) + '\n').encode())  # at once: the processes of a job share the pipe


def main() -> None:
    source, folder = sys.argv[1:3]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0

    def build(source, out, progress, scratch):
        tell('BUILD', os.getpid())
        data = encode(Path(source).read_bytes())
        steps = 20
        for i in range(steps):
            out.write(data[len(data) * i // steps : len(data) * (i + 1) // steps])
            out.flush()
            progress(i * 100_000_000 // steps, 100_000_000)
            time.sleep(seconds / steps)
        if data.endswith(b'bad'):
            raise ValueError('record 7: bad')

    if 'go' in sys.argv:
        tell('READY')
        sys.stdin.readline()
    try:
        held = StoreCache(folder, version=1).acquire(source, build, check)
    except ValueError as error:
        tell('FAILED', error)
        return
    tell('OK', hashlib.sha256(decode(held.path)).hexdigest())
    if 'hold' in sys.argv:
        time.sleep(60)


main()
