"""One rank of a job: ``remote_worker.py URI CACHE OUT``. It stays until all ranks have their store, as in training."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Only torchrun is at stake here; not to load torch and mmdet saves 8 seconds in each of many processes.
for name in ('mmshared', 'mmshared.datasets'):
    package = types.ModuleType(name)
    package.__path__ = [os.fspath(ROOT.joinpath(*name.split('.')))]
    package.__spec__ = importlib.util.spec_from_loader(name, None, is_package=True)
    sys.modules[name] = package

from mmshared.datasets.remote import open_annotations  # noqa: E402
from tests.datasets import mock_backend  # noqa: E402, F401

uri, cache, out = sys.argv[1:]
rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
store = open_annotations(uri, None, cache)
digest = hashlib.sha256(json.dumps(store.to_dict()).encode()).hexdigest()
result = {'digest': digest, 'count': store.num_images, 'inode': os.stat(store.path).st_ino}
Path(out, f'{rank}.part').write_text(json.dumps(result), encoding='utf-8')
os.rename(Path(out, f'{rank}.part'), Path(out, f'{rank}.json'))
end = time.monotonic() + 120
while not all(Path(out, f'{i}.json').exists() for i in range(ranks)) and time.monotonic() < end:
    time.sleep(0.05)
