"""``mmshared doctor``: is this machine fit for a job with many processes, and what to change."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any, List

from ..text import emit, paint, printable, terminal_width
from .cache import check_cache
from .finding import Finding, Level
from .memory import check_memory, check_shm
from .processes import check_limits, check_sockets, check_start_method
from .system import System
from .versions import check_versions

__all__ = ['Finding', 'Level', 'System', 'add_to', 'examine']

DESCRIPTION = """
Looks at what a training job needs from this machine, in this environment: where stores go, space there and in /dev/shm,
the memory limit of the container, limits and start method of processes, versions. Run it where the job runs. As a job
would, it makes the cache folder if that is missing. Exit status 1: there is a problem.
"""


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser('doctor', help='check this machine, and say what to change', description=DESCRIPTION)
    parser.add_argument(
        '--cache-dir', metavar='DIR', help="the cache folder, where the config's dataset has a cache_dir"
    )
    parser.add_argument('--json', action='store_true', help='for programs')
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what :func:`examine` finds."""
    findings = examine(System(), arguments.cache_dir)
    problem = any(finding.level is Level.PROBLEM for finding in findings)
    if arguments.json:
        emit(json.dumps([{**finding._asdict(), 'level': finding.level.value} for finding in findings], indent=2))
        return 1 if problem else 0
    indent = max(len(finding.subject) for finding in findings) + 11
    for finding in findings:
        level = finding.level.value
        head = f'{paint(f"{level:7}", level)}  {finding.subject:{indent - 11}}  '
        lines = textwrap.wrap(printable(finding.text), max(30, terminal_width() - indent)) or ['']
        if finding.advice:
            lines += textwrap.wrap(f'-> {printable(finding.advice)}', max(30, terminal_width() - indent))
        for i, line in enumerate(lines):
            emit((' ' * indent if i else head) + line)
    count = sum(finding.level is not Level.OK for finding in findings)
    emit(f'\n{count} thing{"" if count == 1 else "s"} to look at' if count else '\nall is well')
    return 1 if problem else 0


def examine(system: System, cache_dir: str | None = None) -> List[Finding]:
    """All that is to be said about ``system``.

    Args:
        system: how the machine is looked at.
        cache_dir: as the dataset's; None for the usual folder.
    """
    return [
        *check_cache(system, cache_dir),
        *check_shm(system),
        *check_memory(system),
        *check_start_method(system),
        *check_sockets(system),
        *check_limits(system),
        *check_versions(system),
    ]
