"""One rank of a real job whose datasets are shared: ``shared_ranks.py CONFIGS OUT``, started by torchrun.

Each rank reads every sample by four workers, and writes to ``OUT/RANK.json`` what it and they saw.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import torch.distributed as dist
from mmdet.registry import DATASETS
from mmengine.registry import init_default_scope
from torch.utils.data import DataLoader

import mmshared  # noqa: F401

ATTRIBUTES = ('found', 'cat2label', '_metainfo', 'label_id_mapping', 'order')
MAPPING = re.compile(r'^[0-9a-f]+-[0-9a-f]+ ', re.MULTILINE)


def look() -> Dict[str, Any]:
    """Return what this process has of the data: kB by kind, which file; and its private memory in all."""
    text = Path('/proc/self/smaps').read_text()
    starts = [match.start() for match in MAPPING.finditer(text)] + [len(text)]
    found: Dict[str, Any] = {'pid': os.getpid(), 'inodes': []}
    for mapping in (text[a:b] for a, b in zip(starts, starts[1:])):
        mine = '.mmdata' in mapping.split('\n')[0]
        if mine:
            found['inodes'].append(mapping.split()[4])
        for field in ('Private_Dirty', 'Anonymous', 'Rss'):
            size = sum(map(int, re.findall(rf'\n{field}: +(\d+)', mapping)))
            found[field] = found.get(field, 0) + size
            found[f'mapped {field}'] = found.get(f'mapped {field}', 0) + size * mine
    return found


def digest(value: Any) -> str:
    """Return what equal samples have in common."""
    if isinstance(value, dict):
        return digest([(key, digest(value[key])) for key in sorted(value)])
    if isinstance(value, set):
        return digest(sorted(value))
    if isinstance(value, np.ndarray):
        return digest([value.dtype.str, value.tolist()])
    return hashlib.sha256(repr(value).encode()).hexdigest()


def collate(batch: List[Any]) -> Dict[str, Any]:
    """Return, in a worker, what the samples are and what it has in memory."""
    placed = [{**sample, 'sample_idx': 0} if 'tags' in sample else sample for sample in batch]  # else: in any order
    return {'digests': [digest(sample) for sample in placed], **look()}


def rank_of(config: Dict[str, Any]) -> Dict[str, Any]:
    """Build the dataset, read it, and say what was seen."""
    before = look()
    dataset = DATASETS.build({'type': 'SharedDataset', 'dataset': config})
    after = look()
    loader = DataLoader(dataset, 5, num_workers=4, collate_fn=collate)
    batches = list(loader)
    return {
        'pid': os.getpid(),
        'grown': after['Private_Dirty'] - before['Private_Dirty'],
        'attributes': digest({k: repr(vars(dataset).get(k)) for k in ATTRIBUTES}),
        'digests': [one for batch in batches for one in batch.pop('digests')],
        'looks': [after, *batches],
        'size': dataset.data_bytes.nbytes // 1024,
    }


def main() -> None:
    """Run as one rank."""
    configs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    sys.path.insert(0, str(out))
    import other_package  # noqa: F401

    dist.init_process_group('gloo')
    init_default_scope('mmdet')
    seen = {}
    for name, config in configs.items():
        dist.barrier()
        seen[name] = rank_of(config)
    (out / f'{dist.get_rank()}.json').write_text(json.dumps(seen))
    dist.barrier()


if __name__ == '__main__':
    main()
