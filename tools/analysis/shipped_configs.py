"""Convert every config that mmdet ships, and check the results: what does not convert, and what has no counterpart.

    python tools/analysis/shipped_configs.py                     # says what it found, as the tables of docs/swaps.md
    python tools/analysis/shipped_configs.py --only 'lvis/*'

A config is loaded, converted, written, loaded again (it must be equal), converted once more (nothing may change) and
converted back (it must be what it was). The training data of detection and instance segmentation are then built from
the config and from the converted one, on a small generated file, and must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

import mmdet
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmshared.conversion import Report, convert, convert_back
from mmshared.conversion.writing import as_text, differences

sys.path.insert(0, os.fspath(Path(__file__).resolve().parent))
from small_data import SmallData, compare

UNCONVERTED, UNBUILT = 'not converted', 'training data not built'
FOLDER = Path(mmdet.__file__).parent / '.mim' / 'configs'


class Outcome(NamedTuple):
    """What became of one config.

    Attributes:
        report: of the conversion; None if there was none.
        problem: what is wrong; None if all is as it should be.
    """

    report: Optional[Report]
    problem: Optional[str]


def shipped(pattern: str = '*') -> List[str]:
    """The names of mmdet's configs in :data:`FOLDER` that match ``pattern``, sorted."""
    names = (path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob('*.py'))
    return sorted(name for name in names if fnmatch.fnmatch(name, pattern))


def load(name: str) -> Tuple[Optional[Config], Optional[str]]:
    """One of them, or why it does not load as it is."""
    if "__name__ == '__main__'" in (FOLDER / name).read_text(encoding='utf-8'):
        return None, 'is a script, not a config'
    try:
        return Config.fromfile(FOLDER / name), None
    except Exception as error:  # a config is code
        text = str(error.__cause__ or error).partition(', the current sys.path')[0]
        return None, f'does not load: {type(error).__name__}: {text.replace(f"{FOLDER}{os.sep}", "")}'


def examine(cfg: Config, write: bool = True) -> Outcome:
    """Convert ``cfg`` and back again.

    Args:
        cfg: a config as it was loaded; it is the same afterwards.
        write: also write the result and load it, which takes most of the time.
    """
    before = copy.deepcopy(cfg.to_dict())
    report = convert(cfg)
    converted = copy.deepcopy(cfg.to_dict())
    problem = None
    if write:
        try:
            as_text(cfg, tidy=False)
        except ValueError as error:
            problem = str(error)
    again = convert(cfg)
    if again.changed or cfg.to_dict() != converted:
        problem = f'converted twice: {"; ".join(map(str, again.changed))}'
    convert_back(cfg)
    changed = list(differences(before, cfg.to_dict()))
    if changed:
        problem = f'after converting back, these are not as before: {", ".join(changed)}'
    return Outcome(report, problem)


def trains_on_boxes(cfg: Config) -> bool:
    """Whether it is a detector's, or one for instance segmentation: not for panoptic, video or caption data."""
    metrics = [cfg.get('val_evaluator') or {}]
    metrics = metrics[0] if isinstance(metrics[0], list) else metrics
    apart = ('Panoptic', 'Video', 'YouTubeVIS', 'MOT', 'ReID', 'Caption', 'SemSeg', 'RefSeg')
    named = f'{[metric.get("type") for metric in metrics]} {cfg.train_dataloader.dataset.type}'
    return not any(word in named for word in apart)


class Verdict(NamedTuple):
    """What there is to say about one of the shipped configs.

    Attributes:
        problem: of which kind it is, and what is wrong; None if all is as it should be.
        report: of the conversion, if there was one.
        built: whether the training data were built.
    """

    problem: Optional[Tuple[str, str]]
    report: Optional[Report] = None
    built: bool = False


def judge(name: str, data: SmallData, write: bool = True) -> Verdict:
    """Convert one of the shipped configs, and build its training data; ``write`` is that of :func:`examine`."""
    cfg, problem = load(name)
    if cfg is None:
        return Verdict((UNCONVERTED, problem))
    report, problem = examine(cfg, write)
    if problem is not None:
        return Verdict((UNCONVERTED, problem), report)
    if not cfg.get('train_dataloader') or not trains_on_boxes(cfg):
        return Verdict(None, report)
    problem = compare(cfg, data)
    if problem is None:
        return Verdict(None, report, built=True)
    return Verdict((UNBUILT, problem.replace(f'{data.folder}{os.sep}', '')), report)


def main() -> None:
    """Examine all, and print the tables."""
    parser = argparse.ArgumentParser(description='Convert every config that mmdet ships, and check the results.')
    parser.add_argument('--only', metavar='PATTERN', default='*', help="only these, e.g. 'lvis/*'")
    arguments = parser.parse_args()
    found = Findings()
    init_default_scope('mmdet')
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        data = SmallData(Path(folder))
        for name in shipped(arguments.only):
            found.add(name, data)
    for line in found.tables():
        print(line)


class Findings:
    """What was found in all of them."""

    def __init__(self) -> None:
        self.converted = self.built = 0
        self.problems: Dict[Tuple[str, str], List[str]] = {}
        self.left: Counter = Counter()

    def add(self, name: str, data: SmallData) -> None:
        """Examine one."""
        verdict = judge(name, data)
        self.built += verdict.built
        if verdict.report is not None:
            self.left.update({(change.old, change.reason) for change in verdict.report.left})
        if verdict.problem is not None:
            what, problem = verdict.problem
            self.problems.setdefault((what, ' '.join(problem.split()).replace('|', '\\|')), []).append(f'`{name}`')
        self.converted += verdict.problem is None or verdict.problem[0] != UNCONVERTED

    def tables(self) -> Iterator[str]:
        """As lines of Markdown."""
        yield f'{self.converted} configs were converted; of {self.built} the training data were built as well.\n'
        yield '| | why | configs |\n|---|---|---|'
        for (what, problem), names in sorted(self.problems.items()):
            yield f'| {what} | {problem} | {", ".join(names)} |'
        yield '\n| type | configs | why it was left |\n|---|---:|---|'
        for (kind, reason), count in sorted(self.left.items(), key=lambda item: (item[0][1], -item[1], item[0][0])):
            yield f'| `{kind}` | {count} | {reason} |'


if __name__ == '__main__':
    main()
