"""Batches of everything that a sample may hold, drawn at random.

All is drawn from a ``random.Random``: hypothesis has one that it can shrink, and one with a seed draws the same batch
in every process, so that a worker needs no more than a number to make its samples.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks, PolygonMasks
from mmengine.structures import InstanceData, PixelData

from mmshared.parallel.data_container import DataContainer

# ---- single things


QUANTIZED = {torch.qint8, torch.qint32, torch.quint8, torch.quint4x2, torch.quint2x4}
#: Every other type that a tensor may have.
TORCH_DTYPES = sorted({kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)} - QUANTIZED, key=str)
NUMPY_DTYPES = [*'?bBhHiIlLefdgFD', 'M8[ns]', 'm8[s]', 'S5', 'V3', '>i4', '>f8', '>M8[D]']
RECORD = np.dtype([('flag', 'i1'), ('box', '<f4', (4,)), ('name', 'S3')], align=True)


def noise(rng: random.Random, nbytes: int) -> bytearray:
    """Bytes: of floats, some are NaN or -0.0."""
    noisy = np.random.default_rng(rng.getrandbits(32))
    data = np.frombuffer(noisy.bytes(nbytes), np.uint8).copy()
    data[noisy.random(nbytes) < 0.3] = rng.choice([0, 0x80, 0xFF])
    return bytearray(data)


def shape(rng: random.Random, dims: Optional[int] = None) -> Tuple[int, ...]:
    """A small one."""
    return tuple(rng.choice([0, 1, 1, 2, 3, 5]) for _ in range(rng.randint(0, 4) if dims is None else dims))


def dense(rng: random.Random, size: Tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of noise, with its elements in order."""
    count = int(np.prod(size, dtype=int))
    if not count:
        return torch.empty(size, dtype=dtype)
    data = noise(rng, count * torch.empty((), dtype=dtype).element_size())
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    return torch.frombuffer(data, dtype=dtype).view(size)


def tensor(rng: random.Random, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """A tensor of any type, in any order. (No conjugate views: PyTorch forgets that they are.)"""
    dtype = rng.choice(TORCH_DTYPES) if dtype is None else dtype
    form = rng.choice(['dense', 'part', 'sliced', 'permuted', 'expanded', 'channels_last'])
    plain = dense(rng, shape(rng), dtype)
    dims = list(range(plain.dim()))
    if form == 'part':
        return dense(rng, (3, *plain.shape), dtype)[1]
    if form == 'sliced' and dims:
        return plain[..., 1::2] if rng.random() < 0.5 else plain[:, None][: rng.randint(0, 2)]
    if form == 'permuted':
        return plain.permute(rng.sample(dims, len(dims)))
    if form == 'expanded':
        return plain[..., None].expand(*plain.shape, 3).permute(rng.sample([*dims, len(dims)], len(dims) + 1))
    if form == 'channels_last':
        return dense(rng, shape(rng, 4), dtype).permute(0, 3, 1, 2)
    return plain


def array(rng: random.Random) -> np.ndarray:
    """An array of any type, in any order."""
    size = shape(rng)
    count = int(np.prod(size, dtype=int))
    kind = rng.choice([*NUMPY_DTYPES, RECORD, 'U', 'O'])
    if kind in ('U', 'O'):
        words = [rng.choice(['', 'a', 'äö', 'xyz']) for _ in range(count)]
        made = np.array(words, dtype='<U4' if kind == 'U' else object).reshape(size)
    else:
        data = noise(rng, count * np.dtype(kind).itemsize)
        made = np.frombuffer(bytearray(byte & 1 for byte in data) if kind == '?' else data, dtype=kind).reshape(size)
    form = rng.choice(['dense', 'fortran', 'permuted', 'sliced', 'backwards', 'broadcast', 'read-only'])
    if form == 'fortran':
        made = np.asfortranarray(made)
    elif form == 'permuted':
        made = made.transpose(rng.sample(range(made.ndim), made.ndim))
    elif form == 'sliced' and made.ndim:
        made = made[..., ::2]
    elif form == 'backwards' and made.ndim:
        made = made[::-1]
    elif form == 'broadcast':
        made = np.broadcast_to(made, (2, *made.shape))
    elif form == 'read-only':
        made.flags.writeable = False
    return made


def scalar(rng: random.Random) -> Any:
    """Something that is no array."""
    plain = [
        None,
        True,
        0,
        -1,
        2**70,
        0.0,
        -0.0,
        1.5,
        float('nan'),
        float('inf'),
        1j,
        '',
        'äöü',
        b'',
        b'\x00a',
        'x' * 300,
    ]
    of_numpy = [
        np.float32('nan'),
        np.float64(-0.0),
        np.int8(3),
        np.bool_(True),
        np.str_('a'),
        np.datetime64('2020-01-01'),
    ]
    return rng.choice([*plain, *of_numpy, torch.float16, np.dtype('f4'), frozenset({1})])


def beside(rng: random.Random) -> Any:
    """A tensor or an array that is not packed."""
    values = dense(rng, (3, 2), torch.int32).float()
    return rng.choice(
        [
            lambda: values.to_sparse(),
            lambda: values.to_sparse_csr(),
            lambda: values.requires_grad_(),
            lambda: torch.nn.Parameter(values),
            lambda: torch.empty((2, 3), device='meta'),
            lambda: torch.quantize_per_tensor(torch.arange(6.0).view(2, 3), 0.1, rng.randint(0, 9), torch.quint8),
            lambda: np.matrix([[1, 2], [3, rng.randint(0, 9)]]),
            lambda: np.ma.masked_array([1.0, 2.0, 3.0], mask=[rng.random() < 0.5, False, True]),
            lambda: np.array([1, 'a', None, values.numpy()], dtype=object),
        ]
    )()


# ---- things of MMDetection


def boxes(rng: random.Random, count: int) -> Any:
    """(count, 4), plain or in their class."""
    plain = dense(rng, (count, 4), torch.float32)
    return HorizontalBoxes(plain) if rng.random() < 0.5 else plain


def masks(rng: random.Random, count: int, height: int, width: int) -> Any:
    """Of ``count`` instances: bitmaps or polygons."""
    if rng.random() < 0.5:
        pixels = np.frombuffer(noise(rng, count * height * width), np.uint8).reshape(count, height, width) & 1
        return BitmapMasks(pixels, height, width)
    polygons = [[np.frombuffer(noise(rng, 48), np.float64) for _ in range(rng.randint(1, 2))] for _ in range(count)]
    return PolygonMasks(polygons, height, width)


def instances(rng: random.Random, height: int = 4, width: int = 5) -> InstanceData:
    """Of an image; often none."""
    count = rng.choice([0, 0, 1, 3])
    labels = dense(rng, (count,), torch.int64)
    return InstanceData(bboxes=boxes(rng, count), labels=labels, masks=masks(rng, count, height, width))


def data_sample(rng: random.Random, height: int = 4, width: int = 5) -> DetDataSample:
    """What ``PackDetInputs`` makes, with all that may be in it."""
    matrix = np.eye(3, dtype=np.float32)
    meta = dict(img_id=rng.randint(0, 9), img_path='a/ü.jpg', ori_shape=(height, width), flip=rng.random() < 0.5)
    meta.update(scale_factor=(1.5, float('nan')), flip_direction=None, homography_matrix=matrix)
    sample = DetDataSample(metainfo=meta)
    sample.gt_instances, sample.ignored_instances = instances(rng, height, width), instances(rng, height, width)
    if rng.random() < 0.5:
        sample.gt_sem_seg = PixelData(
            sem_seg=dense(rng, (1, height, width), torch.uint8), metainfo=dict(ignore_index=255)
        )
    if rng.random() < 0.5:
        sample.proposals = InstanceData(bboxes=boxes(rng, 2), scores=dense(rng, (2,), torch.float32))
    return sample


def detection(rng: random.Random) -> Dict[str, Any]:
    """A sample of a detector: an image of any size, perhaps an empty one, and what is on it."""
    height, width = (rng.choice([0, 1, 7, 16, 400]) for _ in range(2))
    pixels = dense(rng, (height, width, 3), torch.uint8)
    image = pixels.permute(2, 0, 1)
    return dict(inputs=image if rng.random() < 0.5 else image.contiguous(), data_samples=data_sample(rng, 4, 5))


def container(rng: random.Random) -> DataContainer:
    """As mmcv 1.x had them."""
    made = [tensor(rng, torch.float32)], [instances(rng), {'img_shape': (1, 2), 'norm': array(rng)}]
    return DataContainer(rng.choice(made)[0], stack=rng.random() < 0.5, cpu_only=rng.random() < 0.5, padding_value=-0.0)


# ---- whole samples


class Pair(NamedTuple):
    """A named tuple."""

    first: Any
    second: Any


class Record(dict):
    """A dict of another class."""


class Row(list):
    """A list of another class."""


Maker = Callable[[random.Random], Any]

ANYTHING: Tuple[Maker, ...] = (tensor, array, scalar, beside, instances, data_sample, container)


def template(rng: random.Random, leaves: Tuple[Maker, ...] = ANYTHING, depth: int = 2) -> Any:
    """How a sample is built: makers in whatever containers."""
    kind = rng.choice([dict, dict, OrderedDict, Record, list, Row, tuple, Pair]) if depth else None
    if kind is None or (depth < 2 and rng.random() < 0.4):
        return rng.choice(leaves)
    if kind is Pair:
        return Pair(template(rng, leaves, depth - 1), template(rng, leaves, depth - 1))
    parts = [template(rng, leaves, depth - 1) for _ in range(rng.randint(0, 4))]
    return (
        kind(parts) if kind in (list, Row, tuple) else kind((f'key{number}', part) for number, part in enumerate(parts))
    )


def filled(plan: Any, rng: random.Random) -> Any:
    """A sample as ``plan`` says; now and then two of its places have one object."""
    made: Dict[Maker, List[Any]] = {}

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return type(part)((key, fill(value)) for key, value in part.items())
        if isinstance(part, Pair):
            return Pair(*map(fill, part))
        if isinstance(part, (list, tuple)):
            return type(part)(map(fill, part))
        known = made.setdefault(part, [])
        thing = rng.choice(known) if known and rng.random() < 0.2 else part(rng)
        known.append(thing)
        return thing

    return fill(plan)


def samples(rng: random.Random) -> List[Any]:
    """A list of samples of equal structure, often one only."""
    count = rng.choice([1, 1, 2, 3])
    if rng.random() < 0.4:
        return [detection(rng) for _ in range(count)]
    plan = template(rng)
    return [filled(plan, rng) for _ in range(count)]


_NAMES = 'bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128'
STACKABLE = [getattr(torch, name) for name in _NAMES.split()]


def stackable_samples(rng: random.Random) -> List[Any]:
    """A list of samples that ``default_collate`` takes."""
    size = shape(rng)
    dtype = rng.choice(STACKABLE)
    of_numpy = rng.choice([*'?bBhilefdFD'])
    word = rng.choice([str, bytes])

    def stacked(rng: random.Random) -> torch.Tensor:
        return dense(rng, size[::-1], dtype).permute(list(reversed(range(len(size)))))

    def stacked_array(rng: random.Random) -> np.ndarray:
        data = noise(rng, int(np.prod(size, dtype=int)) * np.dtype(of_numpy).itemsize)
        return np.frombuffer(bytearray(byte & 1 for byte in data), of_numpy).reshape(size)

    plan = template(
        rng,
        (
            stacked,
            stacked_array,
            data_sample,
            lambda rng: rng.choice([0.0, -0.0, float('nan'), 1.5]),
            lambda rng: rng.choice([0, -1, 2**40]),
            lambda rng: rng.random() < 0.5,
            lambda rng: np.float32(rng.choice([0.5, float('nan')])),
            lambda rng: word() + rng.choice([word(), word(b'abc') if word is bytes else 'abc']),
        ),
    )
    return [filled(plan, rng) for _ in range(rng.choice([1, 2, 3]))]
