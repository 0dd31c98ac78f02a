"""Real loaders: whatever samples are, what arrives with ``packed_collate`` is what arrives with stock's function."""

from __future__ import annotations

import random
import time
from functools import cache, partial
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import torch
from mmdet.utils import register_all_modules
from mmengine.dataset import Compose, DefaultSampler, default_collate, pseudo_collate
from mmengine.model import BaseModel, BaseTTAModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from mmshared.parallel import DataContainer, PackedBatch, data_container_collate, packed_collate

from .batches import data_sample, dense, samples, stackable_samples
from .comparison import assert_no_aliasing, assert_same
from .test_stacking import REJECTED, doubled

pytestmark = pytest.mark.filterwarnings('ignore:.*(Sparse|matrix subclass|deprecated|process .* is multi-threaded)')

Key = Tuple[str, int, int]


def big(rng: random.Random) -> List[Any]:
    """More than what travels in the message."""
    images = [dense(rng, (3, 300, width), torch.uint8) for width in (400, 408)]
    return [dict(inputs=image, data_samples=data_sample(rng)) for image in images]


def small(rng: random.Random) -> List[Any]:
    """Less than that."""
    return [dict(inputs=torch.zeros(3, 0, 5), data_samples=data_sample(rng)) for _ in range(4)]


def of_tuples(rng: random.Random) -> List[Any]:
    """Samples as PyTorch's own data sets have them."""
    return [(dense(rng, (3, 200, 300), torch.float32), rng.randint(0, 9)) for _ in range(2)]


def of_containers(rng: random.Random) -> List[Any]:
    """As pipelines for mmcv 1.x make them."""
    images = [dense(rng, (3, 100 + rng.randint(0, 50), 400), torch.float32) for _ in range(3)]
    return [
        dict(
            img=DataContainer(image, stack=True),
            img_metas=DataContainer(dict(shape=tuple(image.shape), norm=np.ones(3)), cpu_only=True),
            gt_bboxes=DataContainer(dense(rng, (number, 4), torch.float32)),
        )
        for number, image in enumerate(images)
    ]


def of_arrays(rng: random.Random) -> List[Any]:
    """Nothing but arrays of numpy."""
    images = [np.full((200, 300, 3), number, np.uint8).transpose(2, 0, 1) for number in range(3)]
    return [dict(img=image, boxes=np.ones((number, 4), '>f4')) for number, image in enumerate(images)]


KINDS = dict(
    any=samples,
    stackable=stackable_samples,
    big=big,
    small=small,
    of_tuples=of_tuples,
    of_arrays=of_arrays,
    of_containers=of_containers,
)


def drawn(kind: str, number: int) -> List[Any]:
    """The samples of a batch: the same ones in every process."""
    return KINDS[kind](random.Random(number))


def keys(kind: str, number: int) -> List[Key]:
    """What a batch sampler gives for that batch."""
    return [(kind, number, index) for index in range(len(drawn(kind, number)))]


@cache
def mixed() -> List[List[Key]]:
    """Batches of everything, large and small ones in between."""
    batches = [keys('any', number) for number in range(60)]
    for number, kind in enumerate(['big', 'small', 'of_tuples', 'of_arrays'] * 3):
        batches.insert(7 * number, keys(kind, number))
    return batches


@cache
def stackable() -> List[List[Key]]:
    """Batches for ``default_collate``."""
    return [keys('stackable', number) for number in range(20)]


class Drawn(Dataset):
    """The samples at some keys."""

    def __getitem__(self, key: Key) -> Any:
        kind, number, index = key
        return drawn(kind, number)[index]


class Sharing:
    """What a worker does first, however it was started.

    Args:
        strategy: how PyTorch is to share tensors.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy

    def __call__(self, worker: int) -> None:
        torch.multiprocessing.set_sharing_strategy(self.strategy)


@pytest.fixture(params=['file_descriptor', 'file_system'])
def sharing(request):
    """A way of PyTorch to share tensors; what loaders' workers are started with."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield Sharing(request.param)
    torch.multiprocessing.set_sharing_strategy(before)


def load(batches: List[Any], collate_fn: Any, workers: int = 1, **arguments: Any) -> DataLoader:
    """A loader of batches of keys."""
    arguments = dict(dict(dataset=Drawn(), batch_sampler=batches, timeout=120), **arguments)
    return DataLoader(collate_fn=collate_fn, num_workers=workers, **arguments)


def assert_equal(stock: Any, ours: Any, count: int) -> None:
    """Both loaders give ``count`` batches, the same ones."""
    iterators = iter(stock), iter(ours)
    for _ in range(count):
        one, two = map(next, iterators)
        assert_same(two, one)
        assert_no_aliasing(two)
    assert [next(iterator, 'the end') for iterator in iterators] == ['the end'] * 2


def end_workers(iterator: Any) -> None:
    """Let nobody wait for the garbage collector, which waits for the workers."""
    iterator._shutdown_workers()


# ---- whole epochs


@pytest.mark.parametrize(('workers', 'persistent'), [(1, False), (2, True)])
def test_batches_of_forked_workers(sharing, workers, persistent):
    more = dict(workers=workers, persistent_workers=persistent, worker_init_fn=sharing, multiprocessing_context='fork')
    stock, ours = load(mixed(), pseudo_collate, **more), load(mixed(), packed_collate, **more)
    for _ in range(1 + persistent):
        assert_equal(stock, ours, 72)
    for loader in (stock, ours) if persistent else ():
        end_workers(loader._iterator)


@pytest.mark.parametrize(
    'base', ['default_collate', default_collate, dict(type='default_collate')], ids=['name', 'function', 'dict']
)
def test_stacked_batches_of_forked_workers(base):
    ours = partial(packed_collate, base=base)
    assert_equal(load(stackable(), default_collate), load(stackable(), ours), 20)


def test_batches_of_data_containers():
    ours = partial(packed_collate, base='data_container_collate')
    batches = [keys('of_containers', number) for number in range(4)]
    assert_equal(load(batches, data_container_collate), load(batches, ours), 4)


class InTurn:
    """Makes the same batch in several ways: as the first part of its samples says."""

    WAYS = dict(
        stock=pseudo_collate,
        packed=packed_collate,
        later=partial(packed_collate, unpacked=False),
        stacked=default_collate,
        packed_stacked=partial(packed_collate, base='default_collate'),
        own=doubled,
        packed_own=partial(packed_collate, base=dict(type=f'{doubled.__module__}.doubled', times=2)),
    )

    def __call__(self, batch: List[Any]) -> Any:
        assert get_worker_info() is not None
        return self.WAYS[batch[0][0]]([sample for _, sample in batch])


class Marked(Drawn):
    """As its parent, but each key begins with how its batch is to be made."""

    def __getitem__(self, key: Any) -> Any:
        return key[0], super().__getitem__(key[1:])


@pytest.mark.parametrize(('method', 'workers'), [('spawn', 2), ('forkserver', 1)])
def test_batches_of_workers_that_are_not_forked(method, workers):
    # One pool for all, as these workers take seconds to start.
    sharing = Sharing('file_system' if method == 'spawn' else 'file_descriptor')
    plan = [
        (('stock', 'packed', 'later'), mixed()),
        (('stacked', 'packed_stacked'), stackable()),
        (('own', 'packed_own'), mixed()[:5]),
    ]
    turns = [(ways, batch) for ways, batches in plan for batch in batches]
    batches = [[(way, *key) for key in batch] for ways, batch in turns for way in ways]
    loader = load(batches, InTurn(), workers, dataset=Marked(), worker_init_fn=sharing, multiprocessing_context=method)
    arriving = iter(loader)
    for ways, _ in turns:
        stock, *packed = [next(arriving) for _ in ways]
        for batch in packed:
            batch = batch.unpack() if isinstance(batch, PackedBatch) else batch
            assert_same(batch, stock)
            assert_no_aliasing(batch)
    assert next(arriving, None) is None


class Streamed(IterableDataset):
    """All samples of some batches, or these batches as they are, shared among workers.

    Args:
        whole: whether an item is a batch.
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def __iter__(self) -> Any:
        worker = get_worker_info()
        for number in range(worker.id, 12, worker.num_workers):
            batch = big(random.Random(number)) if number % 3 else small(random.Random(number))
            yield from [batch] if self.whole else batch


@pytest.mark.parametrize('size', [3, None])
def test_iterable_datasets_and_loaders_that_make_no_batches(size):
    more = dict(dataset=Streamed(size is None), batch_sampler=None, batch_size=size, workers=2)
    assert_equal(load([], pseudo_collate, **more), load([], packed_collate, **more), 12)


def test_a_batch_that_is_unpacked_later():
    batches = list(
        load(mixed()[:30], partial(packed_collate, unpacked=False), workers=2)
    )  # whose workers are gone then
    assert all(type(batch) is PackedBatch for batch in batches)
    assert_equal(load(mixed()[:30], pseudo_collate), [batch.unpack() for batch in batches], 30)


# ---- what goes wrong


class Rejected(Dataset):
    """Batches that stock rejects, and some that it rejects in workers only."""

    BATCHES: Dict[str, List[Any]] = {
        **{name: batch for name, batch in REJECTED.items() if batch},
        'gradient': [torch.ones(2, requires_grad=True)] * 2,
        'types': [torch.ones(2, dtype=torch.int64), torch.ones(2)],
        'fine': [torch.ones(2), torch.ones(2)],
    }

    def __getitem__(self, key: Tuple[str, int]) -> Any:
        return self.BATCHES[key[0]][key[1]]


def outcomes(loader: DataLoader) -> List[Any]:
    """What comes of each batch: the batch, or the type of an error."""
    arriving, found = iter(loader), []
    for _ in loader.batch_sampler:
        try:
            found.append(next(arriving).tolist())
        except Exception as error:
            assert 'in DataLoader worker process' in str(error)
            found.append(type(error))
    end_workers(arriving)
    return found


def test_what_stock_rejects_in_a_worker_is_rejected():
    batches = [[(name, index) for index in range(2)] for name in Rejected.BATCHES]
    stock = outcomes(load(batches, default_collate, dataset=Rejected()))
    ours = outcomes(load(batches, partial(packed_collate, base='default_collate'), dataset=Rejected()))
    assert ours == stock
    assert sum(isinstance(outcome, list) for outcome in stock) == 1


def broken(batch: List[Any]) -> Any:
    """A collate function with a fault."""
    raise ValueError(f'no batch of {len(batch)}')


@pytest.mark.parametrize(
    ('base', 'error', 'words'),
    [
        (broken, ValueError, 'no batch of 2'),
        ('no_such_collate', KeyError, "base='no_such_collate'.*FUNCTIONS"),
        (dict(type='no_such_collate', a=1), KeyError, "base='no_such_collate'.*FUNCTIONS"),
        (dict(type='pseudo_collate', a=1), TypeError, 'unexpected keyword'),
    ],
    ids=['raises', 'unknown', 'unknown in a dict', 'unknown argument'],
)
def test_a_base_that_fails_is_an_error_of_the_loader(base, error, words):
    arriving = iter(load([keys('big', 0)], partial(packed_collate, base=base)))
    with pytest.raises(error, match=f'(?s)DataLoader worker process 0.*{words}'):
        next(arriving)
    end_workers(arriving)


class Unpicklable(Dataset):
    """A sample of something that cannot be sent."""

    def __getitem__(self, key: int) -> Any:
        return dict(inputs=torch.ones(2), transform=(lambda results: results) if key else None)


def test_what_cannot_be_pickled_is_an_error_and_no_wait_without_end(capfd):
    batches = [[1], [0], [1]]
    # Stock's worker prints the error, and the main process waits for the batch.
    arriving = iter(load(batches, pseudo_collate, dataset=Unpicklable(), timeout=2))
    with pytest.raises(RuntimeError, match='timed out after 2 seconds'):
        next(arriving)
    said, end = '', time.monotonic() + 60
    while "Can't pickle" not in said and time.monotonic() < end:
        said += capfd.readouterr().err
        time.sleep(0.05)
    end_workers(arriving)
    assert "Can't pickle" in said
    arriving = iter(load(batches, packed_collate, dataset=Unpicklable()))
    with pytest.raises(Exception, match='(?s)DataLoader worker process 0.*<lambda>'):
        next(arriving)
    assert next(arriving)['inputs'][0].tolist() == [1, 1]
    with pytest.raises(Exception, match='<lambda>'):
        next(arriving)
    end_workers(arriving)


# ---- MMEngine


class Images(Dataset):
    """As many samples of an image and its size as a sampler needs."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Dict[str, Any]:
        return dict(inputs=torch.full((3, 200, 300), index, dtype=torch.uint8), size=np.array([200, 300 + index]))


@pytest.mark.parametrize('base', ['pseudo_collate', 'default_collate'])
@pytest.mark.parametrize('form', [lambda base: base, lambda base: dict(type=base)], ids=['name', 'dict'])
def test_a_dataloader_of_mmengine(base, form):
    def build(collate_fn):
        cfg = dict(dataset=Images(), sampler=DefaultSampler(Images(), shuffle=False), batch_size=2, num_workers=2)
        return Runner.build_dataloader(dict(cfg, collate_fn=collate_fn, timeout=120), seed=3)

    assert_equal(build(dict(type=base)), build(dict(type='packed_collate', base=form(base))), 4)


class Sum(BaseModel):
    """Predicts the sum of each image."""

    def forward(self, inputs: Any, data_samples: Any, mode: str) -> Any:
        return [(int(image.sum()), sample.get('flip')) for image, sample in zip(inputs, data_samples)]


class All(BaseTTAModel):
    """Keeps all predictions of an image."""

    def merge_preds(self, data_samples_list: Any) -> Any:
        return [list(predictions) for predictions in data_samples_list]


class Augmented(Dataset):
    """Images with test-time augmentation, as MMDetection does it."""

    def __init__(self) -> None:
        keys = ('img_shape', 'ori_shape', 'scale_factor', 'flip', 'flip_direction')
        pack = dict(type='PackDetInputs', meta_keys=keys)
        flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
        sizes = [dict(type='Resize', scale=scale, keep_ratio=True) for scale in [(400, 300), (64, 64)]]
        augment = dict(type='TestTimeAug', transforms=[sizes, flips, [pack]])
        self.pipeline = Compose([dict(type='mmdet.LoadImageFromNDArray'), dict(augment, type='mmcv.TestTimeAug')])

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        image = np.random.default_rng(index).integers(0, 255, (48, 64 + index, 3), np.uint8)
        return self.pipeline(dict(img=image))


def test_test_time_augmentation():
    register_all_modules()
    model = All(Sum())
    loaders = [DataLoader(Augmented(), 2, num_workers=1, collate_fn=fn) for fn in (pseudo_collate, packed_collate)]
    batches = list(map(list, loaders))
    assert list(map(len, batches)) == [2, 2]
    for stock, ours in zip(*batches):
        assert type(ours) is dict and len(ours['inputs']) == 4 and len(ours['inputs'][0]) == 2
        predictions = [model.test_step(batch) for batch in (stock, ours)]
        assert predictions[0] == predictions[1]
        assert [len(of_one) for of_one in predictions[1]] == [4, 4]
        assert_same(ours, stock)
