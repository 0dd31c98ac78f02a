"""Ways to give many processes the samples of one COCO file, behind one interface: mmdet's, ours, those of others.

mmdet and mmshared are used as they are, and of lightly-train the part that keeps the rows. Two others are *techniques*:
their projects cannot be installed from an index, so the few lines that keep the samples are written anew here, over
mmdet's own parsing. What differs between the ways is then how samples are kept and shared, not what they are.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
from abc import ABC, abstractmethod
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type

Polygons = List[List[List[float]]]


class Way(ABC):
    """The samples of ``file``; what several processes share lies in ``folder`` or is told there.

    Args:
        file: the annotation file.
        folder: one for each file, empty at first; all processes have the same.
        classes: names of the file's categories.
        ranks: how many processes there will be.

    Attributes:
        needs: a module that must be installed for it, besides mmdet's.
        place: where the samples are kept.
    """

    needs = ''
    place = ''

    def __init__(self, file: Path, folder: Path, classes: Sequence[str], ranks: int) -> None:
        self.file, self.folder, self.classes, self.ranks = file, folder, classes, ranks

    @abstractmethod
    def open(self, rank: int) -> None:
        """Make the samples ready in process number ``rank``. Number 0 comes first and makes what can be shared."""

    @abstractmethod
    def __len__(self) -> int:
        """How many samples there are."""

    @abstractmethod
    def read(self, index: int) -> Any:
        """Sample ``index`` as Python objects of the caller's own: all that the way keeps of it."""

    @abstractmethod
    def stored(self) -> int:
        """Bytes that are kept: once where the place is shared, else in each process."""

    def polygons(self, sample: Any, width: int, height: int) -> Polygons:
        """The polygons, in pixels, of each annotation of ``sample`` that has some, in an image of these sides."""
        return [instance['mask'] for instance in sample['instances'] if isinstance(instance.get('mask'), list)]

    def _stock(self) -> Any:
        from mmdet.datasets import CocoDataset

        return CocoDataset(**self._options())

    def _options(self) -> Dict[str, Any]:
        return {
            'ann_file': str(self.file),
            'data_prefix': {'img': 'img'},
            'metainfo': {'classes': tuple(self.classes)},
            'pipeline': [],
        }


class Stock(Way):
    """mmdet's CocoDataset: mmengine keeps its samples as one array of pickles, in each process."""

    place = 'heap of each process'

    def open(self, rank: int) -> None:
        """Each process parses the file."""
        self._dataset = self._stock()

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, index: int) -> Any:
        """A data info."""
        return self._dataset.get_data_info(index)

    def stored(self) -> int:
        """Of the array of pickles."""
        return self._dataset.data_bytes.nbytes


class Shared(Stock):
    """mmshared's SharedCocoDataset."""

    place = 'disk, for later jobs too'

    def open(self, rank: int) -> None:
        """The first process builds the store, all map it."""
        from mmshared.datasets import SharedCocoDataset

        self._dataset = SharedCocoDataset(**self._options(), cache_dir=str(self.folder))

    def stored(self) -> int:
        """Of the store."""
        return _size_of(self.folder)


class SharedMemoryList(Way):
    """The technique of detectron2's serialized list, shared by ranks as in NVIDIA TAO: pickles in torch shared memory.

    The first process sends each of the others a handle. They meet through files here, through torch.distributed there.
    """

    place = '/dev/shm'

    def open(self, rank: int) -> None:
        """The first process parses the file, the others attach to its memory."""
        import torch

        multiprocessing.current_process().authkey = b'one key for all ranks'
        if rank:
            self._pickles, self._ends = ForkingPickler.loads((self.folder / f'handle{rank}').read_bytes())
            return
        dataset = self._stock()
        self._pickles, self._ends = torch.from_numpy(dataset.data_bytes), torch.from_numpy(dataset.data_address)
        for tensor in (self._pickles, self._ends):
            tensor.share_memory_()
        for other in range(1, self.ranks):
            (self.folder / f'handle{other}').write_bytes(ForkingPickler.dumps((self._pickles, self._ends)))

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, index: int) -> Any:
        """A data info."""
        start = self._ends[index - 1].item() if index else 0
        return pickle.loads(memoryview(self._pickles[start : self._ends[index].item()].numpy()))

    def stored(self) -> int:
        """Of both tensors."""
        return self._pickles.numel() + 8 * self._ends.numel()


class DiskCache(Way):
    """The technique of d2go's disk cache: groups of pickles of about 50 KiB in an SQLite database of diskcache."""

    needs = 'diskcache'
    place = 'disk, for one job'
    group_bytes = 50 * 1024

    def open(self, rank: int) -> None:
        """Each process parses the file, as there; the first one writes the database."""
        from diskcache import FanoutCache

        dataset = self._stock()
        ends = dataset.data_address.tolist()
        self._length, self._group = len(ends), max(1, self.group_bytes * len(ends) // ends[-1])
        self._cache = FanoutCache(
            str(self.folder / 'database'), shards=8, timeout=60, size_limit=10**12, cull_limit=0, eviction_policy='none'
        )
        if rank == 0:
            pickles = [dataset.data_bytes[start:end].tobytes() for start, end in zip([0, *ends], ends)]
            for start in range(0, len(pickles), self._group):
                self._cache.set(str(start // self._group), pickles[start : start + self._group], retry=True)

    def __len__(self) -> int:
        return self._length

    def read(self, index: int) -> Any:
        """A data info; its whole group is read for it."""
        number, place = divmod(index, self._group)
        return pickle.loads(self._cache[str(number)][place])

    def stored(self) -> int:
        """Of the database."""
        return _size_of(self.folder / 'database')


class LightlyTrain(Way):
    """lightly-train's memory-mapped sequence: rows of JSON texts in an Arrow file that each process maps.

    Its module alone is loaded, since the package imports much else. The rows are made here, of the same content as its
    rows for instance segmentation: coordinates divided by the image's sides, run lengths compressed.
    """

    needs = 'lightly_train'
    place = 'disk, for one job'

    def open(self, rank: int) -> None:
        """The first process parses the file and writes rows; all parse it for the names of its classes, as there."""
        module = _module('lightly_train', '_data/_serialize/memory_mapped_sequence.py')
        content = json.loads(self.file.read_bytes())
        self._names = {category['id']: category['name'] for category in content['categories']}
        path = self.folder / 'rows.mmap'
        if rank == 0:
            module.write_items_to_file(self._make_rows(content), path)
        self._rows = module.MemoryMappedSequence.from_file(path)

    def _make_rows(self, content: Dict[str, Any]) -> Iterator[Dict[str, str]]:
        by_image: Dict[int, List[dict]] = {}
        for annotation in content['annotations']:
            by_image.setdefault(annotation['image_id'], []).append(annotation)
        labels = {category: label for label, category in enumerate(self._names)}
        for image in content['images']:
            annotations, width, height = by_image.get(image['id'], []), image['width'], image['height']
            boxes = [annotation['bbox'] for annotation in annotations]
            shares = [[(x + w / 2) / width, (y + h / 2) / height, w / width, h / height] for x, y, w, h in boxes]
            yield {
                'image_path': f'img/{image["file_name"]}',
                'segments': json.dumps([_as_shares(a['segmentation'], width, height) for a in annotations]),
                'bboxes': json.dumps(shares),
                'class_labels': json.dumps([labels[annotation['category_id']] for annotation in annotations]),
            }

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Any:
        """A row, its texts parsed."""
        row = self._rows[index]
        return {name: text if name == 'image_path' else json.loads(text) for name, text in row.items()}

    def polygons(self, sample: Any, width: int, height: int) -> Polygons:
        """As of the others; what is kept are coordinates divided by the image's sides."""
        kept = (segment for segment in sample['segments'] if isinstance(segment, list))
        return [
            [[x * (height if i % 2 else width) for i, x in enumerate(part)] for part in segment] for segment in kept
        ]

    def stored(self) -> int:
        """Of the Arrow file."""
        return _size_of(self.folder / 'rows.mmap')


WAYS: Dict[str, Type[Way]] = {
    'CocoDataset': Stock,
    'shared-memory list': SharedMemoryList,
    'disk cache': DiskCache,
    'lightly-train': LightlyTrain,
    'SharedCocoDataset': Shared,
}


def deviation(stock: Stock, way: Way) -> Optional[float]:
    """The greatest difference of a polygon's coordinate in ``way`` from mmdet's, in pixels; None if others are there.

    0 means that all are the same numbers.
    """
    greatest = 0.0
    for index in range(len(stock)):
        truth = stock.read(index)
        size = truth['width'], truth['height']
        pair = stock.polygons(truth, *size), way.polygons(way.read(index), *size)
        shapes = [[[len(part) for part in polygons] for polygons in image] for image in pair]
        if shapes[0] != shapes[1]:
            return None
        flat = [[x for polygons in image for part in polygons for x in part] for image in pair]
        greatest = max([greatest, *(abs(a - b) for a, b in zip(*flat))])
    return greatest


def _as_shares(segmentation: Any, width: int, height: int) -> Any:
    """Polygons with coordinates divided by the image's sides; run lengths as compressed text."""
    if isinstance(segmentation, list):
        return [[x / (height if i % 2 else width) for i, x in enumerate(part)] for part in segmentation]
    from pycocotools import mask

    compressed = mask.frPyObjects(segmentation, height, width)
    return {'size': compressed['size'], 'counts': compressed['counts'].decode()}


def _module(package: str, path: str) -> Any:
    """The module in the file ``path`` of an installed package, which itself is not imported."""
    file = Path(find_spec(package).submodule_search_locations[0]) / path
    spec = spec_from_file_location(file.stem, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _size_of(path: Path) -> int:
    """Bytes of the file, or of all files in the folder."""
    files = [path] if path.is_file() else [file for file in path.rglob('*') if file.is_file()]
    return sum(file.stat().st_size for file in files)
