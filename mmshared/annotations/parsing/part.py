"""A part of a table, parsed by a process of its own.

The process is a bare interpreter, not a fork: whoever builds a store may have threads, CUDA and sockets open. It gets
the scratch files it writes as open descriptors, so whatever happens to it, there is nothing to remove. It ends by
itself when its parent does, because it sees the end of its standard input.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, Optional, Union

from .ids import IdTable
from .ingest import AnnotationIngest, ImageIngest
from .stream import Cut, Elements, JsonFile

Table = Union[ImageIngest, AnnotationIngest]
#: The package without its ``__init__``, which would import all of torch and mmdet.
_CODE = """
import json, sys, types
request = json.loads(sys.argv[1])
sys.path[:] = request['path']
package = types.ModuleType('mmshared')
package.__path__ = [request['package']]
sys.modules['mmshared'] = package
from mmshared.annotations.parsing.part import main
main(request)
"""
_THREADS = ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')  # each costs memory, and has nothing to do
_POLL_SECONDS = 0.2


def new_table(key: str, path: str, scratch: Callable[[], BinaryIO], image_ids: Optional[IdTable] = None) -> Table:
    """An empty table for the array ``images`` or ``annotations`` of the file ``path``."""
    ids = IdTable() if image_ids is None else image_ids
    return ImageIngest(path, scratch, ids) if key == 'images' else AnnotationIngest(path, scratch, ids)


class Part:
    """The elements from offset ``start`` on, being parsed by another process.

    Args:
        file: the annotation file, a real one.
        key: ``images`` or ``annotations``.
        start: offset of the first element.
        stop: where to stop; None for the end of the array.
        scratch: makes empty temporary files.

    Attributes:
        start: as given.
        offset: how far it has come.
        end: offset behind the array's closing bracket, -1 if it lies behind this part. Valid once :meth:`wait` is over.
        table: what it found, valid then.
    """

    def __init__(
        self, file: JsonFile, key: str, start: int, stop: Optional[Cut], scratch: Callable[[], BinaryIO]
    ) -> None:
        self.start = self.offset = start
        self.end = -1
        self.table = new_table(key, file.path, scratch)
        self._lines, self._done = b'', False
        spools = {'rows': self.table.rows, **self.table.spools}
        self._process = _launch(
            {
                'path': sys.path,
                'package': str(Path(__file__).parents[2]),
                'source': os.path.abspath(file.file.name),
                'identity': _identity(file.file),
                'label': file.path,
                'key': key,
                'start': start,
                'stop': stop,
                'files': [spool.file.fileno() for spool in spools.values()],
            }
        )

    def poll(self, seconds: float = 0.0) -> bool:
        """Takes in what the process has told, waiting up to ``seconds`` for it; whether it may tell more."""
        pipe = self._process.stdout
        assert pipe is not None
        while not self._done and select.select([pipe], [], [], seconds)[0]:
            data = os.read(pipe.fileno(), 1 << 16)
            *lines, self._lines = (self._lines + data).split(b'\n')
            self._done = not data
            for message in map(json.loads, lines):
                self.offset = message['offset']
                if 'table' in message:
                    self.end = message['end']
                    self.table.restore(message['table'])
            seconds = 0.0
        return not self._done

    def wait(self, progress: Callable[[], None]) -> bool:
        """Waits until the process is through; False if it failed, for whatever reason."""
        while self.poll(_POLL_SECONDS):
            progress()
        return self._process.wait() == 0

    def close(self) -> None:
        """Stops the process if it is still at work."""
        self._process.kill()
        self._process.communicate()


def _launch(request: Dict[str, Any]) -> subprocess.Popen:
    environment = {**os.environ, **dict.fromkeys(_THREADS, '1')}
    return subprocess.Popen(
        [sys.executable, '-I', '-c', _CODE, json.dumps(request)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # whatever is wrong, the parent finds it too, and says it better
        pass_fds=request['files'],
        env=environment,
    )


def _identity(file: BinaryIO) -> list:
    info = os.fstat(file.fileno())
    return [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns]


def main(request: Dict[str, Any]) -> None:
    """What the process does. Tells the offset after each piece, and in the end what it knows of its table."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    files = iter(request['files'])
    with open(request['source'], 'rb') as source:
        if _identity(source) != request['identity']:
            sys.exit('the file has been replaced')
        stop = request['stop'] and Cut(*request['stop'])
        table = new_table(request['key'], request['label'], lambda: os.fdopen(next(files), 'r+b', 1 << 20))
        elements = Elements(
            JsonFile(source, request['label']), request['start'], table.schema.decode, request['key'], stop=stop
        )
        for batch in elements:
            table.add(batch)
            print(json.dumps({'offset': elements.offset}), flush=True)
    if getattr(table, 'bad_category', None):
        sys.exit('an error that names a position')  # which only the parent knows
    print(json.dumps({'offset': elements.offset, 'end': elements.end, 'table': table.state()}), flush=True)


def _end_with_parent() -> None:
    os.read(0, 1)  # nothing is ever written there
    os._exit(1)
