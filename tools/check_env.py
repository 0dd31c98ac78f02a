"""What is wrong with this interpreter for a stack? ``python check_env.py requirements/stack-NAME.txt``.

Prints nothing if every package is there, of this stack and of no other, and mmcv has its compiled operators. (All
stacks have the same import names: with two in one environment, the one installed last has overwritten files of the
other.) It looks, and imports nothing big. It has to work before anything is installed.
"""

import os
import re
import sys

IMPORTS = ['torch', 'numpy', 'mmengine', 'mmdet', 'mmcv', 'pycocotools', 'cv2', 'msgspec', 'simdjson', 'zlib_ng']
IMPORTS += ['faster_coco_eval', 'pytest', 'xdist', 'hypothesis', 'psutil', 'ruff', 'lvis', 'ultrafast_pycocotools']
IMPORTS += ['lmdb']


def distributions(stack):
    """The names that a stack's file pins, as pip knows them: a set of str."""
    with open(stack, encoding='utf-8') as file:
        return set(re.findall('^([a-z-]+)==', file.read(), re.MULTILINE))


def installed():
    """What pip knows as installed: a set of str."""
    from importlib.metadata import distributions as found

    return {re.sub('[-_.]+', '-', package.metadata['Name'] or '').lower() for package in found()}


def foreign(stack, present):
    """Pairs of a name and a list: each other stack that has packages among ``present``, and these."""
    folder, mine = os.path.split(os.path.abspath(stack))
    for name in sorted(os.listdir(folder)):
        if name.startswith('stack-') and name != mine:
            packages = (distributions(os.path.join(folder, name)) - distributions(stack)) & present
            if packages:
                yield name[len('stack-') : -len('.txt')], sorted(packages)


def wrong(stack):
    """What is wrong, in words; an empty str if nothing is."""
    if sys.version_info < (3, 9):  # noqa: UP036  (whatever is active is asked)
        return 'is older than Python 3.9'
    from importlib.util import find_spec

    present = installed()
    for name, packages in foreign(stack, present):
        return f'has {", ".join(packages)}, of MMSHARED_STACK={name}'
    specs = {name: find_spec(name) for name in IMPORTS}
    missing = sorted(distributions(stack) - present) + [name for name in IMPORTS if specs[name] is None]
    if missing:
        more = f' and {len(missing) - 4} more' if len(missing) > 4 else ''
        return f'lacks {", ".join(missing[:4])}{more}'
    if not any(file.startswith('_ext.') for file in os.listdir(os.path.dirname(specs['mmcv'].origin))):
        return 'has mmcv without its compiled operators'
    return ''


if __name__ == '__main__':
    print(wrong(sys.argv[1]), end='')
