"""What ``tools/train.py`` and ``tools/test.py`` have in common on the command line. The names are mmdet's."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mmengine.config import Config, DictAction

from mmshared.conversion import convert
from mmshared.utils.data_root import set_data_root


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that training and testing share."""
    parser.add_argument(
        '--work-dir',
        metavar='DIR',
        help='folder for logs and results (default: work_dir of the config, else work_dirs/<name of the config>)',
    )
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='where the data is: replaces data_root in every dataset, and in the paths of archives and of the '
        "evaluators' annotations",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='change single settings of the config, e.g. train_cfg.max_epochs=2 or key="[(1,2),(3,4)]" '
        '(quoted, without spaces)',
    )
    parser.add_argument(
        '--lean',
        action='store_true',
        help="give every type of the config its shared or lean counterpart, as 'mmshared convert-config' does",
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what started the processes of a distributed job',
    )
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def load_config(args: argparse.Namespace) -> Config:
    """The config that ``args`` ask for, with launcher, work folder and data root set.

    ``args`` comes from a parser with a ``config`` argument and :func:`add_job_arguments`. ``--cfg-options`` is applied
    first, so that ``--lean`` and ``--data-root`` also find what it adds.

    Raises:
        FileNotFoundError: no such config.
        ValueError: ``--data-root`` for a config without a data root.
    """
    # Launchers older than torchrun give the rank as an option; MMEngine reads the variable.
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg = Config.fromfile(args.config)
    cfg.launcher = args.launcher
    if args.cfg_options is not None:
        cfg.merge_from_dict(args.cfg_options)
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = str(Path('work_dirs') / Path(args.config).stem)
    said = []
    if args.lean:
        said += [f'--lean: {line}' for line in convert(cfg).lines()]
    if args.data_root is not None:
        said.append(f'data root: {", ".join(set_data_root(cfg, args.data_root))} -> {args.data_root}')
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        for line in said:
            print(line)
    return cfg
