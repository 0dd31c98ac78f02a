"""The cache of annotation stores: one file per annotation file and content, built once per node.

It knows nothing of what a store holds: a callback writes it, another tells whether a file is a good one. What it
guarantees is that a store is visible only when complete and synced, that its name never changes content, that one
process builds while the others wait, and that a crash at any moment leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, List, Optional, Tuple, TypeVar, Union

from . import inventory, locks, notes
from .errors import SPACE_ERRNOS, CacheAccessError, CacheError, CacheSpaceError, SourceChangedError, explain
from .holds import Hold, hold
from .inventory import DERIVED_SUFFIX, STORE_SUFFIX, Entry
from .job import job_key
from .location import ENV, Folder, PathArg, candidates, local_folders
from .messages import say
from .once import LookAgain, once
from .progress import Progress, Waiting
from .publish import LOCK_SUFFIX, NOTE_SUFFIX, publish, scratch, sweep
from .source import Fingerprint
from .workplace import workplace

ProgressCall = Callable[[int, int], None]
ScratchCall = Callable[[], BinaryIO]
Build = Callable[[str, BinaryIO, ProgressCall, ScratchCall], Any]
Check = Callable[[Path], bool]
SourceArg = Union[str, os.PathLike, Fingerprint]
T = TypeVar('T')

ATTEMPTS = 3  # with a source that changes while it is read
OPEN_ATTEMPTS = 20  # with stores that are removed before they are opened


class StoreCache:
    """Finds the store of an annotation file, or has it built.

    A small object without open files: it may be copied and pickled. The folder is looked up at each call.

    Args:
        cache_dir: Folder of the stores. None: ``$MMSHARED_CACHE``, else ``$XDG_CACHE_HOME/mmshared``, else
            ``~/.cache/mmshared``. If that cannot be written, belongs to somebody else or can be written by others, or
            (unless named by the user) is on a network file system or full, stores are built in a folder of this user on
            a local disk, and one log line says so. They are read from both.
        version: Version of the store's format. Each has stores of its own.
    """

    def __init__(self, cache_dir: Optional[PathArg] = None, version: int = 0) -> None:
        self.cache_dir = None if cache_dir is None else os.fspath(cache_dir)
        self.version = version

    def folders(self) -> List[Folder]:
        """The folders that are looked in, best first."""
        return candidates(self.cache_dir)

    def get(self, source: SourceArg, build: Build, check: Check) -> Path:
        """The store file for the annotation file ``source`` as it is now; built if there is no good one.

        Args:
            source: Path of the file, or a :class:`Fingerprint` of something that is no local file.
            build: ``build(source, out, progress, scratch)`` writes the complete store. ``source`` is the real path (or
                the fingerprint's ``source``). ``out`` is an empty binary file, also seekable and readable; write
                through it, not through a mapping. ``progress(done, total)`` may be called as often as is handy.
                ``scratch()`` gives a nameless temporary file in the cache's folder.
            check: ``check(path)`` tells whether the file there is a valid store. If not it is built anew.

        Raises:
            FileNotFoundError, PermissionError, IsADirectoryError, ValueError: The source cannot be read.
            CacheSpaceError: Disk full.
            CacheAccessError: No folder can be written.
            SourceChangedError: The source changed during each of three attempts.
            Exception: What ``build`` raised, in this process or in the one that built for all.
        """
        for _ in range(ATTEMPTS):
            mark = source.again() if isinstance(source, Fingerprint) else Fingerprint.of_file(source)
            name = self._name(mark)
            find = functools.partial(self._find, name, check)
            try:
                found = find()
                if found is None:
                    return self._anywhere(name, mark.label, find, functools.partial(self._make, mark, build, check))
                if os.path.exists(f'{found}{LOCK_SUFFIX}'):  # its builder was killed at the very end
                    sweep(found.parent)
                return found
            except LookAgain:
                say('%s changed while it was read, starting again', mark.source)
        raise SourceChangedError(
            f'The file {mark.source} changed each of the {ATTEMPTS} times it was read. Something is still '
            'writing it: start when it is complete.'
        )

    def acquire(self, source: SourceArg, build: Build, check: Check) -> Hold:
        """As :meth:`get`, and hold the store at once, so that nobody can remove it before it is mapped."""
        for _ in range(OPEN_ATTEMPTS):
            path = self.get(source, build, check)
            with contextlib.suppress(FileNotFoundError):
                return hold(path)
        raise CacheAccessError(f'The store {path} was removed each time before it could be opened: what clears it?')

    def find(self, mark: Fingerprint, check: Check) -> Optional[Hold]:
        """The store of the source ``mark``, held, if there is one; nothing is built."""
        path = self._find(self._name(mark), check)
        with contextlib.suppress(FileNotFoundError):
            return None if path is None else hold(path)
        return None

    def once_per_job(
        self, key: str, label: str, make: Callable[[Path], Tuple[str, T]], use: Callable[[str], Optional[T]]
    ) -> T:
        """What ``make`` gives, run by one process of each job (:func:`~.job.job_key`) on this node.

        Where no file locks work, every process runs it.

        Args:
            key: What it is about.
            label: The same, for people.
            make: ``make(workplace)`` does the work; returns a short text for the other processes of the job, and the
                result. ``workplace`` is a folder for temporary files, which go even if this process is killed.
            use: Gives the result from that text, or None if that has become impossible: the work is done again then.

        Raises:
            CacheSpaceError, CacheAccessError: No folder can be written.
            Exception: What ``make`` raised, in this process or in the one that worked for all.
        """
        name = f'{_digest(f"{job_key()} {key}")}{NOTE_SUFFIX}'

        def find() -> Optional[T]:
            texts = (notes.read(folder.path / name) for folder in self.folders() if folder.readable())
            text = next((text for text in texts if text is not None), None)
            return None if text is None else use(text)

        def make_note(folder: Path, name: str, lock: Any) -> T:
            sweep(folder)
            Progress(label, lock, None)  # tells those who wait who works
            try:
                with workplace(folder) as place:
                    text, result = make(place)
            except OSError as error:
                if error.errno not in SPACE_ERRNOS:
                    raise
                raise explain(error, folder, label) from error
            path = folder / name
            if not isinstance(lock, locks.NoLock):
                keep = functools.partial(notes.keep, path, text)
                publish(path, label, None, lambda out: out.write(text.encode()), lambda size: keep(), durable=False)
            return result

        found = find()
        return self._anywhere(name, label, find, make_note) if found is None else found

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """A new folder for temporary files, which goes after the block, or later if this process is killed.

        It must be empty again at the end of the block.

        Raises:
            CacheAccessError: No folder can be written.
        """
        reasons: List[str] = []
        folder = next(self._writable(reasons, None), None)
        if folder is None:
            raise _no_folder(reasons)
        with workplace(folder.path) as path:
            yield path

    def derived(self, store: PathArg, key: str, build: Callable[[BinaryIO], Any], check: Check) -> Optional[Path]:
        """A small file computed from the store at ``store`` and ``key``, shared by all processes like the store itself.

        It is put next to the store, or in the cache if that folder cannot be written, and goes when the store goes.

        Args:
            store: Path of the store.
            key: Whatever else its content depends on.
            build: ``build(out)`` writes it.
            check: ``check(path)`` tells whether the file there is valid.

        Returns:
            Its path, or None if it cannot be written anywhere: compute it in memory then, and also if the file is gone
            by the time it is opened.
        """
        store = Path(os.path.realpath(store))
        try:
            info = store.stat()
        except OSError:  # removed while it is mapped
            return None
        identity = f'{info.st_ino} {info.st_size} {info.st_mtime_ns} {self.version} {key}'
        name = f'{store.name}.{_digest(identity)}{DERIVED_SUFFIX}'
        home = Folder(store.parent, named=True)
        find = functools.partial(self._find, name, check, home)

        def make(folder: Path, name: str, lock: locks.BuildLock) -> Path:
            return publish(folder / name, key, None, build, lambda size: None)

        try:
            return find() or self._anywhere(name, name, find, make, home)
        except CacheError:
            return None

    def where(self, reasons: List[str]) -> Iterator[Folder]:
        """The folders that can take a store, best first; ``reasons`` gets why those before were passed over.

        As for a build, a folder is created if it is missing, at the time it is reached.
        """
        return self._writable(reasons, None)

    def own_folders(self) -> List[Folder]:
        """The folder that the user named, and no other; without one all that stores are put in."""
        folders = self.folders()
        return folders[:1] if folders[0].named else folders

    def used_folders(self) -> List[Folder]:
        """Where jobs look for stores: :meth:`own_folders`, and those that stand in for one that cannot be written."""
        own = self.own_folders()
        return own if own[0].problem() is None else self.folders()

    def list(self, describe: Optional[Callable[[Path], Optional[str]]] = None) -> List[Entry]:
        """The stores in :meth:`used_folders`. ``describe(path)`` may give the source's path, as the store knows it."""
        return [
            entry
            for folder in self.used_folders()
            if folder.readable()
            for entry in inventory.entries(folder.path, describe)
        ]

    def prune(
        self, unused_seconds: Optional[float] = None, max_bytes: Optional[int] = None, dry_run: bool = False
    ) -> List[Entry]:
        """Remove stores not used for so long, and the longest unused ones beyond ``max_bytes``; never one in use.

        Without arguments only leftovers of crashed processes go. Folders that this user may not write stay as they are,
        and so do those that only stand in for the one that was named (:meth:`own_folders`).

        Args:
            unused_seconds: Age of the last use.
            max_bytes: What the stores of each folder may take.
            dry_run: Remove nothing, just say what would go.

        Returns:
            The stores that were removed.
        """
        return [
            entry
            for folder in self.own_folders()
            if folder.readable() and folder.problem() is None
            for entry in inventory.prune(folder.path, unused_seconds, max_bytes, dry_run)
        ]

    def clear(self) -> List[Entry]:
        """Remove every store that is not in use; returns those."""
        return self.prune(unused_seconds=0)

    def _name(self, mark: Fingerprint) -> str:
        return f'{mark.prefix(self.version)}{mark.key(self.version)}{STORE_SUFFIX}'

    def _find(self, name: str, check: Check, home: Optional[Folder] = None) -> Optional[Path]:
        for folder in [home] * (home is not None) + self.folders():
            path = folder.path / name
            if os.path.isfile(path) and folder.readable() and _passes(check, path):
                return path
            if folder.named and folder.problem() is None:  # then the user wants it there
                break
        return None

    def _anywhere(
        self,
        name: str,
        label: str,
        find: Callable[[], Optional[T]],
        make: Callable[..., T],
        home: Optional[Folder] = None,
    ) -> T:
        """Make the file in the first folder that can take it, once for all processes."""
        full: Optional[CacheSpaceError] = None
        reasons: List[str] = []
        for folder in self._writable(reasons, home):
            try:
                lock = _lock_for(folder.path, name, label)

                def make_here(folder: Folder = folder, lock: Any = lock) -> T:
                    if reasons and not home:
                        level = logging.WARNING if self.cache_dir or os.environ.get(ENV) else logging.INFO
                        _say_once(f'annotation cache: {"; ".join(reasons)}. Using {folder.path} instead.', level)
                    return make(folder.path, name, lock)

                return once(lock, find, make_here, Waiting(label))
            except CacheSpaceError as error:
                if folder.named:
                    raise
                full = full or error
                reasons.append(f'{folder.path} has too little space')
        if full is not None:
            raise full
        raise _no_folder(reasons)

    def _writable(self, reasons: List[str], home: Optional[Folder]) -> Iterator[Folder]:
        """The folders that can be written, best first; ``reasons`` gets why those before were passed over."""
        network: List[Tuple[Folder, str]] = []
        for folder in [home] * (home is not None) + self.folders():
            kind = folder.network()
            if kind:  # better than nothing, but only then
                network.append((folder, kind))
                reasons.append(f'{folder.path} is on a network file system ({kind})')
                continue
            problem = folder.problem()
            if problem:
                reasons.append(f'{folder.path} cannot be used ({problem})')
            else:
                yield folder
        for folder, _ in network:
            problem = folder.problem()
            if problem:
                reasons.append(f'{folder.path} cannot be used ({problem})')
            else:
                yield folder

    def _make(self, mark: Fingerprint, build: Build, check: Check, folder: Path, name: str, lock: Any) -> Path:
        """Build, publish and check the store, then tidy up."""
        mark.settle()
        if mark.again() != mark:
            raise LookAgain
        progress = Progress(mark.label, lock, mark.size)
        path = folder / name

        def write(out: BinaryIO) -> None:
            build(mark.source, out, progress, functools.partial(scratch, folder))
            if mark.again() != mark:
                raise LookAgain

        def finish(size: int) -> None:
            if not _passes(check, path):
                os.unlink(path)
                raise CacheError(
                    f'The store just built for {mark.source} is refused by its own check. Please report this.'
                )
            inventory.forget_derived(path)
            inventory.remove_superseded(path, mark.prefix(self.version))
            sweep(folder)
            progress.finish(size, path)

        try:
            return publish(path, mark.source, mark.size, write, finish)
        finally:
            progress.close()


def _no_folder(reasons: List[str]) -> CacheAccessError:
    return CacheAccessError(
        f'No folder for the annotation cache can be written: {"; ".join(reasons)}. Set the environment variable '
        f"{ENV}, or cache_dir in the dataset's config, to a folder of yours that others cannot write."
    )


def _lock_for(folder: Path, name: str, label: str) -> Union[locks.BuildLock, locks.NoLock]:
    """The lock of the file ``name`` in ``folder``: beside it, or on a local disk if locks do not work there."""
    if not locks.SUPPORTED:
        return locks.NoLock()
    try:
        problem = locks.problem(folder)
        if problem is None:
            return locks.BuildLock(folder / f'{name}{LOCK_SUFFIX}', label)
        for local in local_folders():
            if local.problem() is None and locks.problem(local.path) is None:
                return locks.BuildLock(local.path / f'{_digest(os.fspath(folder))}-{name}{LOCK_SUFFIX}', label)
    except OSError as error:
        raise explain(error, folder, label) from error
    _say_once(f'annotation cache: no file locks in {folder} ({problem}), so every process builds by itself.')
    return locks.NoLock()


def _passes(check: Check, path: Path) -> bool:
    try:
        return bool(check(path))
    except OSError:  # gone, or not readable for this user
        return False


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode('utf-8', 'surrogateescape'), digest_size=8).hexdigest()


@functools.cache
def _say_once(message: str, level: int = logging.INFO) -> None:
    say('%s', message, level=level)
