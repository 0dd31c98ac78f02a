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
from pathlib import Path
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple, Union

try:
    import fcntl
except ImportError:  # on Windows, where this process parses alone
    fcntl = None  # type: ignore[assignment]

from .ids import IdTable
from .ingest import AnnotationIngest, ImageIngest
from .stream import Cut, Elements, JsonFile

Table = Union[ImageIngest, AnnotationIngest]
#: The package without its ``__init__``, which would import all of torch and mmdet.
_CODE = """
import json, os, sys, threading, types
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()  # nothing is ever written there
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
_LOWEST = 10


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
        self._lines, self._running, self._complete = b'', True, False
        spools = {'rows': self.table.rows, **self.table.spools}
        self._process, self._replies = _launch(
            {
                'path': [entry for entry in sys.path if isinstance(entry, str)],
                'package': str(Path(__file__).parents[2]),
                'source': os.path.abspath(file.file.name),
                'identity': _identity(file.file),
                'label': file.path,
                'key': key,
                'start': start,
                'stop': stop,
            },
            [spool.file.fileno() for spool in spools.values()],
        )
        self._poller = select.poll()
        self._poller.register(self._replies, select.POLLIN)

    def poll(self, seconds: float = 0.0) -> bool:
        """Takes in what the process has told, waiting up to ``seconds`` for it; whether it may tell more."""
        while self._running and self._poller.poll(seconds * 1000):
            data = os.read(self._replies, 1 << 16)
            *lines, self._lines = (self._lines + data).split(b'\n')
            self._running = bool(data)
            for message in map(json.loads, lines):
                self.offset = message['offset']
                if 'table' in message:
                    self.end = message['end']
                    self.table.restore(message['table'])
                    self._complete = True
            seconds = 0.0
        return self._running

    def wait(self, progress: Callable[[], None]) -> bool:
        """Waits until the process is through; False if it failed, for whatever reason."""
        while self.poll(_POLL_SECONDS):
            progress()
        return self._complete  # its exit status is lost where SIGCHLD is ignored

    def close(self) -> None:
        """Stops the process if it is still at work."""
        self._process.kill()
        self._process.communicate()
        if self._replies >= 0:
            os.close(self._replies)
            self._replies = -1
        for spool in (self.table.rows, *self.table.spools.values()):
            spool.file.close()


def _launch(request: Dict[str, Any], files: List[int]) -> Tuple[subprocess.Popen, int]:
    """Starts a process that does what is requested with ``files``; returns it, and where it replies."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, '1')}
    replies, end = os.pipe()
    passed: List[int] = [end]
    try:
        # Low numbers may be those of closed standard streams, which the process gets anew. The pipe is its own,
        # since whatever else runs in the process may print.
        for number in (end, *files):
            passed.append(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _LOWEST))
        process = subprocess.Popen(
            [sys.executable, '-I', '-c', _CODE, json.dumps({**request, 'replies': passed[1], 'files': passed[2:]})],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # whatever is wrong, the parent finds it too, and says it better
            pass_fds=passed[1:],
            env=environment,
        )
    except BaseException:
        os.close(replies)
        raise
    finally:
        for number in passed:
            os.close(number)
    return process, replies


def _identity(file: BinaryIO) -> list:
    info = os.fstat(file.fileno())
    return [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns]


def main(request: Dict[str, Any]) -> None:
    """What the process does. Tells the offset after each piece, and in the end what it knows of its table."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    files = iter(request['files'])
    with open(request['source'], 'rb') as source, os.fdopen(request['replies'], 'w') as replies:
        if _identity(source) != request['identity']:
            sys.exit('the file has been replaced')
        stop = request['stop'] and Cut(*request['stop'])
        table = new_table(request['key'], request['label'], lambda: os.fdopen(next(files), 'r+b', 1 << 20))
        elements = Elements(
            JsonFile(source, request['label']), request['start'], table.schema.decode, request['key'], stop=stop
        )
        for batch in elements:
            table.add(batch)
            print(json.dumps({'offset': elements.offset}), file=replies, flush=True)
        if getattr(table, 'bad_category', None):
            sys.exit('an error that names a position')  # which only the parent knows
        done = {'offset': elements.offset, 'end': elements.end, 'table': table.state()}
        print(json.dumps(done), file=replies, flush=True)
