"""A measured process, as seen from the benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Optional

#: Workers pass descriptors through Unix sockets in $TMPDIR; a path of more than 107 bytes makes them wait for ever.
LONGEST = 107 - len('/pymp-12345678/listener-12345678')
HERE = Path(__file__).resolve().parent
Reply = Dict[str, Any]


class ProbeError(RuntimeError):
    """A measured process ended early; the message has what it said last."""


class Probe:
    """A fresh process that runs a task of :mod:`tasks`; it and its children end with the ``with`` block.

    Args:
        task: name of the task.
        temporary: where its temporary files go, as it may be killed before it removes them; None: as this process's.
        settings: its keyword arguments.

    Raises:
        ProbeError: the path of ``temporary`` is too long.
    """

    def __init__(self, task: str, temporary: Optional[Path] = None, **settings: Any) -> None:
        if temporary is not None and len(os.fsencode(temporary)) > LONGEST:
            raise ProbeError(f'the path {temporary} is too long for sockets: set TMPDIR to a shorter one')
        self.task = task
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        path = os.pathsep.join(filter(None, [str(HERE.parents[1]), os.environ.get('PYTHONPATH')]))
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / 'tasks.py'), task, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, 'PYTHONPATH': path, **({} if temporary is None else {'TMPDIR': str(temporary)})},
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def go(self) -> None:
        """Let the task run to its next stop."""
        with contextlib.suppress(BrokenPipeError):  # wait() tells why
            self._process.stdin.write('\n')
            self._process.stdin.flush()

    def wait(self) -> Reply:
        """Wait for the task's next stop and return what it tells there."""
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors='replace').strip()[-2000:]
        raise ProbeError(f'the measured process {self.task!r} ended with code {self._process.returncode}:\n{said}')

    def step(self) -> Reply:
        """:meth:`go` and :meth:`wait`."""
        self.go()
        return self.wait()

    def end(self, seconds: float = 5.0) -> None:
        """Let the process end by itself, so that it removes its temporary files; if it does not, it is killed later."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(seconds)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
