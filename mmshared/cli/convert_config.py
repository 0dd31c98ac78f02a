"""``mmshared convert-config``: a whole config from stock types to shared and lean ones, and back."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Tuple

from mmshared.annotations.cache.publish import Draft

from .text import emit, printable

DESCRIPTION = """
Gives every type of a config that has a shared or lean counterpart that one, at any depth, and says what it changed and
what it left and why. The result is one file that inherits from no other. Without -o it goes to stdout, and the report
to stderr.
"""


def add_to(commands: Any) -> None:
    """Add the subcommand to the parser's ``commands``."""
    parser = commands.add_parser(
        'convert-config', help="give a config's types their shared and lean counterparts", description=DESCRIPTION
    )
    parser.add_argument('config', metavar='CONFIG', help='a config of MMEngine: .py, .json or .yaml')
    parser.add_argument('-o', '--output', metavar='OUT.py', help='where to write the converted config')
    parser.add_argument('--force', action='store_true', help='with -o: replace a file that is there')
    parser.add_argument(
        '--back', action='store_true', help='the other way round: a stock config, for those who do not have mmshared'
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert one config."""
    if arguments.output is not None:
        _check_output(arguments.output, arguments.force)
    # What is imported, and what a config prints, is no part of the result.
    with contextlib.redirect_stdout(sys.stderr):
        text, lines = _converted(arguments.config, arguments.back)
    if arguments.output is None:
        emit(text.rstrip('\n'))
    else:
        output = Path(os.path.realpath(arguments.output))  # what a link leads to is replaced, not the link
        with Draft(output.parent) as draft:
            draft.file.write(text.encode())
            draft.publish(output)
    for line in lines:
        emit(printable(line), sys.stderr if arguments.output is None else sys.stdout)
    return 0


def _converted(file: str, back: bool) -> Tuple[str, list]:
    """The converted config as text, and the lines of the report.

    Raises:
        ValueError: MMEngine is not installed, or the config does not load, or cannot be written.
        OSError: the config cannot be read.
    """
    _import_stack()
    from mmengine.config import Config

    from mmshared.conversion import convert, convert_back
    from mmshared.conversion.writing import as_text

    try:
        with open(file, 'rb'):
            pass
        cfg = Config.fromfile(file)
    except OSError as error:
        if error.filename in (file, None) and not os.path.isfile(file):
            raise
        raise ValueError(f'{file}: does not load: {type(error).__name__}: {error}') from error
    except Exception as error:  # a config is code
        raise ValueError(f'{file}: does not load: {type(error).__name__}: {error}') from error
    report = convert_back(cfg) if back else convert(cfg)
    try:
        return as_text(cfg), [*report.lines(), f'{file}: {report.summary()}']
    except ValueError as error:
        raise ValueError(f'{file}: {error}') from error


def _import_stack() -> None:
    """Register what this command else does without.

    Raises:
        ValueError: a package that it needs is not installed.
    """
    missing = [name for name in ('torch', 'mmengine') if find_spec(name) is None]
    if missing:
        raise ValueError(
            f'convert-config needs the packages that configs are for: {" and ".join(missing)} cannot be imported'
        )
    from mmshared import register_components

    register_components()


def _check_output(output: str, force: bool) -> None:
    """Whether a config may be put there.

    Raises:
        ValueError: it would be no Python file.
        FileExistsError: there is something already.
    """
    if not output.endswith('.py'):
        raise ValueError(f'{output}: a config is written as a Python file: its name has to end in .py')
    if os.path.lexists(output) and not os.path.isfile(output):
        raise FileExistsError(f'{output}: is not a regular file. Choose another name')
    if os.path.lexists(output) and not force:
        raise FileExistsError(f'{output}: is there already. Choose another name, or --force to replace it')
