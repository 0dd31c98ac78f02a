"""One rank of a job: ``remote_worker.py URI CACHE OUT``. It stays until all ranks have theirs, as in training."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from mmshared.datasets import SharedCocoDataset
from tests.datasets import mock_backend  # noqa: F401
from tests.datasets.helpers import describe, options

uri, cache, out = sys.argv[1:]
rank, ranks = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
result = describe(SharedCocoDataset(ann_file=uri, cache_dir=cache, **options()))
Path(out, f'{rank}.part').write_text(json.dumps(result), encoding='utf-8')
os.rename(Path(out, f'{rank}.part'), Path(out, f'{rank}.json'))
end = time.monotonic() + 120
while not all(Path(out, f'{i}.json').exists() for i in range(ranks)) and time.monotonic() < end:
    time.sleep(0.05)
