"""From the workers to the main process to the accelerator: stock's collate function against the packed one of mmshared.

    python tools/benchmarks/bench_handoff.py                                     # all cases, all parts
    python tools/benchmarks/bench_handoff.py --only masks --strategy both --json results.json
    python tools/benchmarks/bench_handoff.py --collate pseudo_collate            # stock against stock: what is noise

Cases: boxes, images, masks, tensor-masks and single have samples that were made beforehand, so that little else than
the hand-off is measured: small images with boxes; images of 640x640; BitmapMasks; the same masks as tensors, for
pipelines that were changed to give those; a small image without instances. jpeg is a loader as in a training, with
mmdet's LoadImageFromFile, LoadAnnotations and PackDetInputs. For each of them the samples are also loaded without
sending any batch: that is what the loader costs anyway.

time: passes of a running loader, stock and ours in turns in one process, each pass with fresh workers. The consumer
reads what any preprocessor reads of a batch (see handoff_cases.py). memory: what the main process holds of a batch
(descriptors, mappings), and the highest memory of all processes of a job, seen from outside. device: copies to an
accelerator, where there is one. Batches of both are compared before they are measured.

The table goes to stdout, what is being done to stderr; temporary files go to $TMPDIR and are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout's mmshared

import memory
import psutil
import report
from handoff_report import KINDS, PARTS, ratios, spread, spreads, text_of, worse_figures
from measurements import say
from memory import MB
from probe import Probe, ProbeError

STRATEGIES = ('file_descriptor', 'file_system')
MOST_WORKERS = 4
INTERVAL = 0.03
CLEANERS = ('resource_tracker', 'torch_shm_manager')
SHARED_PREFIXES = ('/dev/shm/', '/memfd:')
Found = Dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is loaded.

    Attributes:
        batch_size: samples of a batch.
        instances: of each sample.
        size: height and width of the images.
        masks: what instances have for masks: 'bitmap', 'tensor' or None.
        folder: of JPEGs, '' if they are to be made; None: the samples are made beforehand.
    """

    batch_size: int
    instances: int
    size: Tuple[int, int]
    masks: Optional[str] = None
    folder: Optional[str] = None

    def __str__(self) -> str:
        return f'B={self.batch_size}, {self.instances} instances, {"x".join(map(str, self.size))}'


CASES = {
    'boxes': Case(16, 20, (8, 8)),
    'images': Case(16, 20, (640, 640)),
    'masks': Case(2, 100, (800, 1216), masks='bitmap'),
    'tensor-masks': Case(2, 100, (800, 1216), masks='tensor'),
    'single': Case(1, 0, (8, 8)),
    'jpeg': Case(16, 20, (640, 640), folder=''),
}
FIXED_SIZE = ('boxes', 'single')
JPEG_BATCHES = 4


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=CASES, default=list(CASES), help='take only these cases')
    parser.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS), help='take only these measurements')
    parser.add_argument('--workers', type=int, default=2, help=f'of the loader, 1 to {MOST_WORKERS} (default: 2)')
    parser.add_argument('--batch-size', type=int, help='of all cases but single (default: each its own)')
    parser.add_argument('--instances', type=int, help='of all cases but single (default: each its own)')
    parser.add_argument(
        '--size', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'), help='of images, masks, tensor-masks and jpeg'
    )
    parser.add_argument(
        '--strategy', choices=(*STRATEGIES, 'both'), default=STRATEGIES[0], help="PyTorch's way to share tensors"
    )
    parser.add_argument('--start-method', choices=('fork', 'spawn', 'forkserver'), default='fork', help='of workers')
    parser.add_argument('--repeats', type=int, default=5, help='passes of each kind, in turns (default: 5)')
    parser.add_argument('--seconds', type=float, default=2, help='that a pass takes at least (default: 2)')
    parser.add_argument('--collate', default='packed_collate', help='registered name of ours (default: packed_collate)')
    parser.add_argument('--pin-memory', action='store_true', help='of the loader, in the part device')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write everything there')
    args = parser.parse_args()
    if not 1 <= args.workers <= MOST_WORKERS:
        parser.error(f'--workers must be 1 to {MOST_WORKERS}, not {args.workers}')
    if min(args.batch_size or 1, args.repeats, *(args.size or [1])) < 1 or args.batch_size == 0:
        parser.error('--batch-size, --repeats and --size must be at least 1')
    if args.seconds <= 0 or (args.instances or 0) < 0:
        parser.error('--seconds must be greater than 0 (--instances: not less)')
    if args.json is not None and not args.json.resolve().parent.is_dir():
        parser.error(f'--json {args.json}: there is no such folder')
    return args


def chosen_cases(args: argparse.Namespace, folder: Path) -> Dict[str, Case]:
    """The cases with the sizes that were asked for; JPEGs are made if need be."""
    cases = {}
    for name, case in CASES.items():
        wanted = {key: getattr(args, key) for key in ('batch_size', 'instances') if getattr(args, key) is not None}
        changes = {} if name == 'single' else wanted
        if args.size and name not in FIXED_SIZE:
            changes['size'] = tuple(args.size)
        cases[name] = replace(case, **changes)
    if 'jpeg' in args.only:
        say('making images')
        cases['jpeg'] = replace(cases['jpeg'], folder=str(folder / 'images'))
        make_jpegs(cases['jpeg'])
    return {name: case for name, case in cases.items() if name in args.only}


def make_jpegs(case: Case) -> None:
    """Some batches of JPEGs: blurred noise, which takes as long to decode as a photo."""
    import cv2
    import numpy as np

    folder, (height, width) = Path(case.folder), case.size
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(case.batch_size * JPEG_BATCHES):
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / f'{number:06d}.jpg'), cv2.resize(coarse, (width, height)))


class Bench:
    """Measures cases, each in fresh processes.

    Args:
        args: the command line.
        strategy: PyTorch's way to share tensors.
        folder: for temporary files; whoever made it removes it.
    """

    def __init__(self, args: argparse.Namespace, strategy: str, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._loading = {'workers': args.workers, 'strategy': strategy, 'start_method': args.start_method}

    def time(self, case: Case) -> Found:
        """Kinds, and what a batch of each takes; stock / ours, and the shares that sending has of a batch's time."""
        runs = list(self._turns('handoff_cases', 'passes', case))
        found = {kind: spreads([run[kind] for run in runs]) for kind in (*KINDS, 'none')}
        shares = {
            kind: {name: spread([1 - run['none'][name] / run[kind][name] for run in runs]) for name in ('ms', 'cpu_ms')}
            for kind in KINDS
        }
        return {**found, 'ratio': ratios(runs), 'share': shares}

    def memory(self, case: Case) -> Found:
        """Kinds; what the main process holds of a batch, and the highest memory of a job."""
        found = {}
        # Both until the end: of files that both have mapped, each counts half.
        with contextlib.ExitStack() as stack:
            jobs = {kind: stack.enter_context(self._job('handoff_cases', 'held', case, kind=kind)) for kind in KINDS}
            for job in jobs.values():
                job.wait()
            for kind, job in jobs.items():
                say(f'  memory of {kind}')
                before = memory.of_processes([job.pid]).pss
                job.step()
                with highest_of(job.pid) as peak:
                    job.step()
                found[kind] = {'pss_mb': peak.pss, 'all_mb': peak.all, 'added_mb': peak.all - before, **job.step()}
        return found

    def device(self, case: Case) -> Found:
        """Kinds; what it takes to move a batch to the accelerator."""
        settings = {'device': 'cuda', 'pin_memory': self._args.pin_memory}
        runs = list(self._turns('handoff_device', 'moves', case, **settings))
        return {**{kind: spreads([run[kind] for run in runs]) for kind in KINDS}, 'ratio': ratios(runs)}

    def _turns(self, module: str, function: str, case: Case, **settings: Any) -> Iterator[Found]:
        with self._job(module, function, case, repeats=self._args.repeats, **settings) as job:
            job.wait()
            for number in range(self._args.repeats):
                say(f'  {function} {number + 1}/{self._args.repeats}')
                yield job.step()

    @contextlib.contextmanager
    def _job(self, module: str, function: str, case: Case, **settings: Any) -> Iterator[Probe]:
        """A process with a task; what it has made in shared memory goes with it, however it ends."""
        settings.update(ours=self._args.collate, loading=self._loading, seconds=self._args.seconds)
        with Probe('job', self._folder, module=module, function=function, case=asdict(case), **settings) as job:
            try:
                yield job
            except BaseException:
                kill_job(job.pid)
                raise
            job.end()


def kill_job(pid: int) -> None:
    """Kill a job and its workers, and wait for the processes that then remove what has a name in shared memory.

    Those are multiprocessing's, for semaphores of workers that are not forked, and PyTorch's, for its files.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        job = psutil.Process(pid)
        job.suspend()  # it might be starting a worker
        processes = [job, *job.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any(name in ' '.join(process.cmdline()) for name in CLEANERS):
                    process.kill()
        psutil.wait_procs(processes, timeout=5)


# ---- memory of a job
class Peak:
    """The highest figures seen: ``pss`` of a tree of processes, ``all``: with shared memory that is nobody's, in MB.

    A batch on its way through a queue is in files that no process has mapped. PSS has not got those.
    """

    def __init__(self) -> None:
        self.pss = self.all = 0.0

    def look(self, root: int) -> None:
        """Look at a job's processes."""
        pids = memory.trees([root])
        pss = memory.of_processes(pids).pss
        self.pss, self.all = max(self.pss, pss), max(self.all, pss + unmapped(pids))


@contextlib.contextmanager
def highest_of(root: int) -> Iterator[Peak]:
    """Look at the job every 30 ms."""
    peak, done = Peak(), threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            peak.look(root)

    peak.look(root)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def unmapped(pids: Sequence[int]) -> float:
    """Megabytes of shared memory that these processes have open, or PyTorch has names for, and none has mapped."""
    files: Dict[Tuple[int, int], int] = {}
    mapped = set()
    for pid in pids:
        paths = []
        with contextlib.suppress(OSError):
            paths = [f'/proc/{pid}/fd/{name}' for name in os.listdir(f'/proc/{pid}/fd')]
        for path in paths:
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(SHARED_PREFIXES):
                    _note(files, os.stat(path))
        for file in Path('/dev/shm').glob(f'torch_{pid}_*'):
            with contextlib.suppress(OSError):
                _note(files, file.stat())
        with contextlib.suppress(OSError):
            for line in Path(f'/proc/{pid}/maps').read_text().splitlines():
                _, _, _, device, inode, *_ = line.split()
                mapped.add((os.makedev(*(int(part, 16) for part in device.split(':'))), int(inode)))
    return sum(size for key, size in files.items() if key not in mapped) / MB


def _note(files: Dict[Tuple[int, int], int], status: os.stat_result) -> None:
    files[status.st_dev, status.st_ino] = status.st_blocks * 512


# ---- run
def measure(args: argparse.Namespace, parts: Sequence[str], folder: Path) -> Dict[str, Found]:
    """What was found: by case and strategy."""
    results: Dict[str, Found] = {}
    cases = chosen_cases(args, folder)
    for strategy in STRATEGIES if args.strategy == 'both' else (args.strategy,):
        bench = Bench(args, strategy, folder)
        for name, case in cases.items():
            title = f'{name}: {case}, {strategy}'
            say(title)
            found = {part: getattr(bench, part)(case) for part in parts}
            results[title] = {'case': name, 'strategy': strategy, **asdict(case), **found}
    return results


def main() -> int:
    """Run; returns the exit code."""
    args = parse_args()
    if not sys.platform.startswith('linux'):
        print('memory is read from /proc, which only Linux has', file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    has_device = 'device' in args.parts and _has_device()
    parts = [part for part in args.parts if part != 'device' or has_device]
    conditions = {'machine': report.machine(), 'load_before': os.getloadavg()}
    try:
        with tempfile.TemporaryDirectory(prefix='mmshared-bench-') as folder:
            results = measure(args, parts, Path(folder).resolve())
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ProbeError, OSError) as error:
        print(f'{type(error).__name__}: {error}', file=sys.stderr)
        return 1
    conditions['load_after'] = os.getloadavg()
    print(text_of(results, args, conditions, has_device))
    if args.json is not None:
        options = {name: value for name, value in vars(args).items() if name != 'json'}
        everything = {**conditions, 'options': options, 'device': has_device, 'results': results}
        everything['worse'] = worse_figures(results)
        args.json.write_text(json.dumps(everything, indent=1) + '\n', encoding='utf-8')
    return 0


def _has_device() -> bool:
    import torch

    return torch.cuda.is_available()


if __name__ == '__main__':
    sys.exit(main())
