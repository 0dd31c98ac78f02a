"""The file of a job's looks: JSON, one line each. ``tools/analysis/plot_memory.py`` draws it."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from mmengine.logging import print_log

from .look import Look

FILE = 'node_memory.jsonl'


class Record:
    """Appends looks to ``<log_dir>/vis_data/node_memory.jsonl``.

    Further nodes write ``node_memory_rank<R>.jsonl``, after the rank that looks. A file that cannot be written is
    given up with a warning: a job must not fail for it.

    Args:
        log_dir: the runner's.
        rank: of this process.
    """

    def __init__(self, log_dir: str, rank: int) -> None:
        self.path = os.path.join(log_dir, 'vis_data', f'_rank{rank}'.join(os.path.splitext(FILE)) if rank else FILE)
        self._given_up = False

    def append(self, look: Look, **facts: Any) -> None:
        """Write one line: ``look``, and what else there is to know about it."""
        if self._given_up:
            return
        line = json.dumps(dict(time=round(time.time(), 3), **facts, total=look.total, **look._asdict()))
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, 'a', encoding='utf-8') as file:
                file.write(line + '\n')
        except OSError as error:
            self._given_up = True
            print_log(f'Node memory is not recorded any more: {error}', logger='current', level=logging.WARNING)
