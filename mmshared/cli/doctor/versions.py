"""Which versions are installed, told without importing them: that takes seconds, and may fail."""

from __future__ import annotations

import re
from typing import Iterator, List, NamedTuple, Tuple

from mmshared.utils.stack import DISTRIBUTIONS

from .finding import Finding, ok, problem, warning
from .system import System


class Package(NamedTuple):
    """A package that a job needs.

    Attributes:
        name: what is imported.
        distributions: what may provide it, by the names that pip knows.
        least: the oldest version that will do.
        wrong: a distribution of the same import name that will not do.
    """

    name: str
    distributions: Tuple[str, ...]
    least: Tuple[int, ...]
    wrong: str = ''


PACKAGES = (
    Package('numpy', ('numpy',), (1,)),
    Package('msgspec', ('msgspec',), (0, 18)),
    Package('simdjson', ('pysimdjson',), (6,)),
    Package('torch', ('torch',), (2,)),
    Package('mmengine', DISTRIBUTIONS['mmengine'], (0, 10, 7), 'mmengine-lite'),
    Package('mmcv', DISTRIBUTIONS['mmcv'], (2,), 'mmcv-lite'),
    Package('mmdet', DISTRIBUTIONS['mmdet'], (3, 3)),
    Package('pycocotools', ('pycocotools',), (2,)),
)
_PYTHON = (3, 9)


def check_versions(system: System) -> Iterator[Finding]:
    """Python, and each of :data:`PACKAGES`."""
    python = system.python()
    if _parts(python) < _PYTHON:
        yield problem('python', python, 'use Python 3.9 or newer')
    else:
        yield ok('python', python)
    used = set()
    for package in PACKAGES:
        found = [(name, version) for name in package.distributions if (version := system.version(name))]
        yield _judge(system, package, found)
        if package.name in DISTRIBUTIONS and len(found) == 1:
            used.add(found[0][0].startswith('onedl-'))
    if len(used) > 1:
        yield problem('stack', 'packages of OpenMMLab and of the onedl fork are mixed', 'install all of them from one')


def _judge(system: System, package: Package, found: List[Tuple[str, str]]) -> Finding:
    least = '.'.join(map(str, package.least))
    if len(found) > 1:
        both = ' and '.join(f'{name} {version}' for name, version in found)
        advice = f'pip uninstall {" ".join(name for name, _ in found)}, then install one of them again'
        return problem(package.name, f'{both} overwrite each other', advice)
    wrong = system.version(package.wrong) if package.wrong else None
    if wrong and package.wrong == 'mmcv-lite':
        return problem(package.name, f'{package.wrong} {wrong} has no compiled operators', 'install mmcv instead')
    if wrong and not found:
        return ok(package.name, f'{wrong} ({package.wrong})')
    if not found:
        return problem(package.name, 'is not installed', f'install {" or ".join(package.distributions)} >= {least}')
    name, version = found[0]
    text = version if name == package.name else f'{version} ({name})'
    if _parts(version) < package.least:
        return warning(package.name, text, f'install {name} >= {least}')
    return ok(package.name, text)


def _parts(version: str) -> Tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is (2, 13, 0)."""
    match = re.match(r'\d+(?:\.\d+)*', version)
    return tuple(map(int, match[0].split('.'))) if match else ()
