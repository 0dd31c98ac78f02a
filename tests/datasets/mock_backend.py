"""A file backend that serves from a folder and logs every fetch; its addresses begin with ``mock://``."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from mmengine.fileio import BaseStorageBackend, LocalBackend, register_backend


@register_backend('mock', prefixes='mock')
class MockBackend(BaseStorageBackend):
    """Serves ``$MOCK_FOLDER``; while a file ``stall`` is there, a fetch stops half way."""

    def __init__(self, bucket: str = '') -> None:
        self.bucket = bucket
        self.log('made')

    @property
    def folder(self) -> Path:
        return Path(os.environ['MOCK_FOLDER'])  # mmengine keeps instances, from one test to the next

    def join_path(self, filepath: str, *filepaths: str) -> str:
        return '/'.join([filepath.rstrip('/'), *filepaths])

    def log(self, what: str) -> None:
        with open(self.folder / 'log', 'a', encoding='utf-8') as file:
            file.write(f'{what} {os.getpid()}\n')

    def get(self, filepath: str) -> bytes:
        self.log('fetch')
        return (self.folder / self.bucket / filepath.partition('://')[2]).read_bytes()

    def get_text(self, filepath: str) -> str:
        return self.get(filepath).decode()

    @contextmanager
    def get_local_path(self, filepath: str) -> Iterator[str]:
        data = self.get(filepath)
        file = tempfile.NamedTemporaryFile(delete=False)  # noqa: SIM115, as the backends of mmengine do it
        try:
            file.write(data[: len(data) // 2])
            file.flush()
            self.log('half')
            while (self.folder / 'stall').exists():
                time.sleep(0.02)
            file.write(data[len(data) // 2 :])
            file.close()
            yield file.name
        finally:
            os.remove(file.name)


@register_backend('other-local')
class OtherLocalBackend(LocalBackend):
    """A local backend by another name."""


def identity(batch: list) -> list:
    """Collate function of workers: to unpickle it they import this module, which registers the backends."""
    return batch


def fetches(folder: Path, what: str = 'fetch') -> list[int]:
    """Return the ids of the processes that fetched something, in order."""
    path = folder / 'log'
    lines = path.read_text(encoding='utf-8').splitlines() if path.exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == what]
