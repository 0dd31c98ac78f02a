"""What ``mmcv.parallel`` 1.7.2 gives for inputs of every kind, as ``mmcv_table.json``; the tests compare with that.

mmcv 1.7.2 cannot be where mmcv 2 is, so this runs in an environment of its own, with PyTorch and

    MMCV_WITH_OPS=0 pip install --no-build-isolation 'mmcv==1.7.2'

as ``python tests/parallel/make_mmcv_table.py``. Inputs are described in JSON, and results say which objects of the
inputs are in them, or share memory with them. The tests make the same inputs with mmshared's DataContainer.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch

TABLE = Path(__file__).with_name('mmcv_table.json')
Pair = namedtuple('Pair', ['first', 'second'])


class Opaque:
    """Something that nobody knows how to batch."""


class Missing(dict):
    """A dict that makes up attributes, as addict's does."""

    def __getattr__(self, name: str) -> Any:
        return Missing()


_DICTS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter, Missing)}
_ATOMS = (type(None), bool, int, float, str)


class Builder:
    """Makes inputs from descriptions: an atom stands for itself, a dict says with its first key what it is."""

    def __init__(self, container: type) -> None:
        self._container = container
        self._named: Dict[str, Any] = {}

    def build(self, description: Any) -> Any:
        """The input that is described."""
        if isinstance(description, _ATOMS):
            return description
        options = dict(description)
        kind = next(iter(options))
        return getattr(self, f'_{kind}')(options.pop(kind), **options)

    def _tensor(self, shape: list, dtype: str = 'float32', layout: str = '', grad: bool = False) -> torch.Tensor:
        tensor = torch.arange(math.prod(shape)).reshape(shape).to(getattr(torch, dtype))
        if layout == 'transposed':
            tensor = tensor.transpose(0, -1)
        elif layout == 'sliced':
            tensor = tensor[..., 1:]
        elif layout == 'expanded':
            tensor = tensor.unsqueeze(0).expand(2, *shape)
        elif layout == 'channels_last':
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.requires_grad_(grad)

    def _array(self, shape: list, dtype: str = 'float32') -> np.ndarray:
        return np.arange(math.prod(shape)).reshape(shape).astype(dtype)

    def _dc(self, data: Any, **options: Any) -> Any:
        return self._container(self.build(data), **options)

    def _list(self, items: list) -> list:
        return [self.build(item) for item in items]

    def _tuple(self, items: list) -> tuple:
        return tuple(self._list(items))

    def _pair(self, items: list) -> Pair:
        return Pair(*self._list(items))

    def _dict(self, items: list, type: str = 'dict') -> dict:
        pairs = [(self.build(key), self.build(value)) for key, value in items]
        return defaultdict(list, pairs) if type == 'defaultdict' else _DICTS[type](dict(pairs))

    def _set(self, items: list) -> set:
        return set(items)

    def _bytes(self, text: str) -> bytes:
        return text.encode()

    def _range(self, count: int) -> range:
        return range(count)

    def _opaque(self, _: int) -> Opaque:
        return Opaque()

    def _named_as(self, name: str, is_: Any) -> Any:
        return self._named.setdefault(name, self.build(is_))

    def _same_as(self, name: str) -> Any:
        return self._named[name]


class Encoder:
    """Says what a result is, and which of its objects were in the inputs (by number, from the outside in)."""

    def __init__(self, inputs: Any) -> None:
        self._objects: List[Any] = []
        self._collect(inputs)

    def encode(self, result: Any) -> Any:
        """``result`` for JSON."""
        if type(result) in _ATOMS:
            return result
        for number, known in enumerate(self._objects):
            if known is result:
                return {'is': number}
        if isinstance(result, torch.Tensor):
            return self._tensor(result)
        if _is_container(result):
            options = {name: getattr(result, name) for name in ('stack', 'padding_value', 'cpu_only', 'pad_dims')}
            return {'dc': self.encode(result.data), **options}
        if type(result) in (list, tuple):
            return {type(result).__name__: [self.encode(item) for item in result]}
        if isinstance(result, dict):
            items = [[self.encode(key), self.encode(value)] for key, value in result.items()]
            return {'dict': items, 'type': type(result).__name__}
        return {'repr': repr(result), 'type': type(result).__name__}

    def _tensor(self, tensor: torch.Tensor) -> dict:
        values = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().flatten().tolist()
        encoded = {'tensor': list(tensor.shape), 'dtype': str(tensor.dtype)[6:], 'stride': list(tensor.stride())}
        encoded['values'] = 'arange' if values == list(range(len(values))) else values
        if tensor.requires_grad:
            encoded['grad'] = True
        shared = [number for number, known in enumerate(self._objects) if _shares(tensor, known)]
        if shared:
            encoded['memory'] = shared
        return encoded

    def _collect(self, item: Any) -> None:
        if type(item) in _ATOMS or any(item is known for known in self._objects):
            return
        self._objects.append(item)
        if _is_container(item):
            self._collect(item.data)
        elif isinstance(item, dict):
            for pair in item.items():
                self._collect(pair[0])
                self._collect(pair[1])
        elif isinstance(item, (list, tuple)):
            for entry in item:
                self._collect(entry)


def _is_container(item: Any) -> bool:
    return hasattr(type(item), 'pad_dims') or 'pad_dims' in getattr(item, '__dict__', ())


def _shares(tensor: torch.Tensor, known: Any) -> bool:
    return isinstance(known, torch.Tensor) and tensor.numel() > 0 and tensor.data_ptr() == known.data_ptr()


def about(container: Any) -> list:
    """What a container says of itself."""
    return [
        repr(container),
        len(container) if hasattr(container.data, '__len__') and getattr(container.data, 'shape', [0]) else None,
        getattr(container.datatype, '__name__', container.datatype),
        [container.stack, container.padding_value, container.cpu_only, container.pad_dims],
    ]


class Refused(Exception):
    """What is tried raised its cause. Errors of the trial itself are none of these."""


def attempt(function: Callable, *args: Any, **options: Any) -> Any:
    """Call ``function``. Raises :class:`Refused` if it raises anything."""
    try:
        return function(*args, **options)
    except Exception as error:
        raise Refused from error


def run(case: dict, api: Dict[str, Callable]) -> Tuple[Any, Callable]:
    """The result of ``case``, and what makes JSON of it.

    Args:
        case: ``call``, which says what is tried; descriptions of what goes in: ``inputs``, and further ones.
        api: the functions, and the class ``DataContainer``.

    Raises:
        Refused: if the call raised an error, which is the cause.
    """
    builder = Builder(api['DataContainer'])
    call = case['call']
    if call == 'about':
        description = case['inputs']
        options = {key: value for key, value in description.items() if key != 'dc'}
        return about(attempt(api['DataContainer'], builder.build(description['dc']), **options)), list
    inputs = builder.build(case['inputs'])
    if call in ('size', 'dim'):
        result = attempt(getattr(inputs, call), *case.get('arguments', []))
        return (list(result), list) if isinstance(result, torch.Size) else (result, int)
    if call == 'collate':
        encoder = Encoder(inputs)
        return attempt(api['collate'], inputs, case['samples_per_gpu']), encoder.encode
    if call == 'scatter':
        return attempt(api['scatter'], inputs, [-1]), Encoder(inputs).encode
    kwargs = builder.build(case['kwargs'])
    encoder = Encoder([inputs, kwargs])
    return attempt(api['scatter_kwargs'], inputs, kwargs, [-1]), encoder.encode


def outcome(case: dict, api: Dict[str, Callable]) -> Dict[str, Any]:
    """``{'gives': ...}``, or the built-in exception that is raised."""
    try:
        result, encode = run(case, api)
    except Refused as error:
        kinds = type(error.__cause__).__mro__
        return {'raises': next(kind for kind in kinds if kind.__module__ == 'builtins').__name__}
    return {'gives': encode(result)}


T = {'tensor': [3, 2]}
U = {'tensor': [2, 2], 'dtype': 'int64'}
BENT = {'tensor': [2, 3], 'layout': 'transposed'}
ARRAY = {'array': [2, 2]}
TENSORS = [
    *({'tensor': [2, 2], 'dtype': name} for name in ('float64', 'float16', 'bfloat16', 'uint8', 'bool', 'complex64')),
    *({'tensor': [2, 3], 'layout': layout} for layout in ('transposed', 'sliced', 'expanded')),
    {'tensor': [1, 2, 2, 2], 'layout': 'channels_last'},
    *({'tensor': shape} for shape in ([], [0], [0, 4], [1])),
    {'tensor': [2, 2], 'grad': True},
    {'tensor': [2, 2], 'grad': True, 'layout': 'transposed'},
]
LEAVES = [None, True, 3, 2.5, '', 'ab', {'bytes': 'ab'}, {'set': [1]}, {'range': 2}, {'opaque': 0}, ARRAY]
EMPTY = [{'list': []}, {'tuple': []}, *({'dict': [], 'type': kind} for kind in ('dict', 'OrderedDict', 'defaultdict'))]


def dc(data: Any, **options: Any) -> dict:
    """The description of a container."""
    return {'dc': data, **options}


def mapping(kind: str = 'dict', **items: Any) -> dict:
    """The description of a dict with text as keys."""
    return {'dict': [[key, value] for key, value in items.items()], 'type': kind}


def listed(*items: Any) -> dict:
    """The description of a list."""
    return {'list': list(items)}


META = dc(listed(listed(mapping(name='a'), mapping(name='b'))), cpu_only=True)
MOVING = [T, BENT, listed(), listed(T), listed(T, U), listed(T, U, T), listed(listed())]
MOVING += [listed(listed(T, BENT), listed(U)), listed(T, listed(T, listed(BENT)))]
BAD = [None, 3, 'ab', ARRAY, {'tuple': [T]}, mapping(a=T), dc(T), listed(T, None), listed(listed(dc(T))), {'range': 2}]
FREE = [None, 3, 'ab', '', T, {'tensor': []}, BENT, ARRAY, listed(), listed(3), listed(3, 4)]
FREE += [{'tuple': [T]}, mapping(a=T, b=3)]


def scatter_cases() -> Iterator[Any]:
    """Descriptions of what is scattered."""
    yield from (*TENSORS, *LEAVES, *EMPTY)
    yield from map(dc, MOVING + BAD)
    yield from (dc(data, cpu_only=True) for data in FREE)
    yield from (listed(item) for item in (T, None, *EMPTY, dc(T), dc(listed(T, U)), META, dc(None), dc('ab')))
    yield from (mapping(x=dc(data, cpu_only=True)) for data in FREE)
    yield from (mapping(x=dc(data), y=1) for data in (T, listed(), listed(T), listed(T, U), listed(listed(T, U)), None))
    yield from (mapping(kind, x=T, y='a') for kind in ('OrderedDict', 'defaultdict', 'Counter', 'Missing'))
    yield {'pair': [T, 1]}
    yield {'tuple': [{'pair': [T, {'tuple': []}]}, {'bytes': 'ab'}, listed(None)]}
    yield {'dict': [[1, T], [{'tuple': [1, 'a']}, U], [None, BENT], [{'pair': [1, 2]}, {'tuple': []}], [dc(T), 1]]}
    yield mapping(img=dc(listed(T), stack=True), img_metas=META, gt=dc(listed(listed(T, U))), flag=True)
    yield mapping(img=listed(dc(listed(T)), dc(listed(BENT))), img_metas=listed(META, META))
    yield mapping(a=mapping(b=listed({'tuple': [mapping(c=T)]}, mapping(d=dc(3)))))
    yield mapping(a=dc(listed(T, U)), b=dc(listed(1, 2), cpu_only=True), c=dc('xyz', cpu_only=True))
    yield mapping(a=dc(listed(T, U)), b=dc(listed(1, 2), cpu_only=True), c=3)
    yield mapping(a={'named_as': 't', 'is_': T}, b={'same_as': 't'}, c=dc(listed({'same_as': 't'}, {'same_as': 't'})))
    yield listed({'named_as': 't', 'is_': BENT}, {'same_as': 't'}, {'named_as': 'o', 'is_': ARRAY}, {'same_as': 'o'})
    yield listed({'named_as': 'l', 'is_': listed(T)}, {'same_as': 'l'}, mapping(again={'same_as': 'l'}))


def kwargs_cases() -> Iterator[Any]:
    """Descriptions of positional and keyword arguments."""
    few = [{'tuple': []}, {'tuple': [T, 1]}, {'tuple': [dc(listed(T, U))]}, {'tuple': [dc(listed())]}]
    some = [mapping(), None, mapping(a=T, b=None), mapping(a=dc(listed(T, U, T))), mapping(a=META, b=dc(listed()))]
    yield from ((inputs, kwargs) for inputs in few for kwargs in some)
    yield from ((inputs, mapping(a=dc(listed(T, U)))) for inputs in (T, {'tensor': [1]}, dc(T), dc(3, cpu_only=True)))
    yield from ((dc(data, cpu_only=True), mapping(a=dc(listed(T, U)))) for data in (listed(1), 'a', mapping(a=1)))
    yield from ((inputs, dc(listed(T, U))) for inputs in (dc(listed(1), cpu_only=True), dc(listed(T)), {'tensor': [1]}))
    yield from [(listed(T), mapping(a=1)), (None, None), ({'tuple': [dc(None)]}, mapping()), (None, mapping(a=dc('a')))]


def images(*shapes: list, **options: Any) -> dict:
    """The description of a batch of containers with tensors."""
    return listed(*(dc({'tensor': shape}, stack=True, **options) for shape in shapes))


def collate_cases() -> Iterator[Any]:
    """Descriptions of batches, and for how many samples per GPU each is tried."""
    yield images([2, 2, 3], [2, 3, 2], [2, 1, 1], [2, 2, 2], [2, 4, 1]), (1, 2, 4)
    yield images([2, 2, 3], [2, 3, 2], padding_value=255), (1, 2, 4)
    yield images([2, 3], [2, 5], [2, 4], pad_dims=1, padding_value=-1.5), (1, 2, 4)
    yield images([1, 1, 2, 3], [1, 2, 2, 2], pad_dims=3), (1, 2, 4)
    yield images([2, 3], [2, 3], [2, 3], pad_dims=None), (1, 2, 4)
    yield images([], [], pad_dims=None), (2,)
    yield images([2, 3], [2, 3]), (1, 2)
    yield from ((images([2, 2, 2], other), (1, 2)) for other in ([3, 2, 2], [2, 2], [2], [2, 2, 2, 2]))
    yield images([2, 3], [2, 4], pad_dims=None), (1, 2)
    yield images([2, 2], [], pad_dims=1), (2,)
    layouts = {'tensor': [1, 2, 2, 2], 'layout': 'channels_last'}, {'tensor': [2, 2, 3], 'layout': 'transposed'}
    yield listed(*(dc(layouts[0], stack=True) for _ in 'ab')), (1, 2)
    yield listed(dc(layouts[1], stack=True), dc({'tensor': [3, 4, 2]}, stack=True)), (1, 2)
    for name in ('uint8', 'bool', 'int64', 'float16', 'complex64'):
        yield listed(*(dc({'tensor': [1, n, 2], 'dtype': name}, stack=True, padding_value=1) for n in (1, 2))), (2,)
    yield listed(*(dc({'tensor': [2, 2], 'grad': True}, stack=True, pad_dims=1) for _ in 'ab')), (2,)
    yield listed(dc(T, stack=True, pad_dims=1), dc(T, padding_value=7, cpu_only=True)), (1, 2)
    yield listed(dc(T, padding_value=7), dc(U, stack=True), dc(None)), (1, 2, 4)
    yield listed(*(dc(mapping(name=name), cpu_only=True, stack=True, padding_value=3) for name in 'abc')), (1, 2, 4)
    for other in (T, None, dc(listed(T), stack=True), dc(ARRAY, stack=True)):
        for options in ({'cpu_only': True}, {}, {'stack': True, 'pad_dims': 1}, {'stack': True, 'pad_dims': None}):
            yield listed(dc(T, **options), other), (2,)
    yield listed(*(dc(value, stack=True) for value in (ARRAY, ARRAY))), (2,)
    sample = mapping(img=dc(T, stack=True, pad_dims=1), meta=dc('a', cpu_only=True), box=dc(U), id=3, area=2.5, x=T)
    yield listed(sample, sample, sample), (1, 2, 4)
    yield listed(*({'tuple': [dc(T), 1, listed(dc(U), T)]} for _ in 'ab')), (1, 2)
    yield listed({'pair': [dc(T), 1]}, {'pair': [dc(U), 2]}), (2,)
    yield listed(listed(T, 1), listed(T), listed(T, 2, 3)), (2,)
    yield listed(mapping(kind='OrderedDict', a=T), mapping(a=T, b=1)), (2,)
    yield listed(mapping(a=T, b=1), mapping(a=T)), (2,)
    yield {'tuple': [dc(T), dc(T)]}, (1, 2)
    for batch in ([1, 2], [1.5, 2], [True, False], [T, T], [T, U], [ARRAY, ARRAY], [None, None], [{'opaque': 0}]):
        yield listed(*batch), (2,)
    for batch in (['ab', 'c'], ['', 'a'], ['a', ''], ['ab', listed(1)], [listed(), listed(1)], [{'bytes': 'ab'}] * 2):
        yield listed(*batch), (2,)
    for batch in ([], [{'range': 2}, {'range': 3}], [listed(1), 2], [mapping(a=1), 2], [mapping(a=mapping(b='x'))]):
        yield listed(*batch), (2,)
    yield from ((batch, (2,)) for batch in (mapping(a=1), {'set': [1]}, T, ARRAY, 'ab', None, dc(T), {'range': 3}))
    yield listed(dc(T), dc(T)), (0, -1)


def container_cases() -> Iterator[dict]:
    """What containers say of themselves."""
    held = (T, {'tensor': [], 'dtype': 'int64'}, None, 3, listed(T), listed(), 'ab', ARRAY, dc(listed(1)))
    yield from ({'call': 'about', 'inputs': dc(data)} for data in held)
    yield {'call': 'about', 'inputs': dc('ab', stack=True, padding_value=2, cpu_only=True)}
    yield from ({'call': 'about', 'inputs': dc('ab', pad_dims=dims)} for dims in (None, 0, 1, 3, 4, -1, '2'))
    for data in (T, {'tensor': []}, listed(T), None, ARRAY):
        yield {'call': 'size', 'inputs': dc(data)}
        yield {'call': 'dim', 'inputs': dc(data)}
    yield from ({'call': 'size', 'inputs': dc(T), 'arguments': [dim]} for dim in (0, -1, 2))


def cases() -> Iterator[dict]:
    """All the cases, without results."""
    for inputs in scatter_cases():
        yield {'call': 'scatter', 'inputs': inputs}
    for inputs, kwargs in kwargs_cases():
        yield {'call': 'scatter_kwargs', 'inputs': inputs, 'kwargs': kwargs}
    for batch, sizes in collate_cases():
        for samples_per_gpu in sizes:
            yield {'call': 'collate', 'inputs': batch, 'samples_per_gpu': samples_per_gpu}
    yield from container_cases()


def main(path: Optional[Path] = None) -> None:
    """Write the table."""
    import mmcv
    from mmcv.parallel import DataContainer, collate, scatter, scatter_kwargs

    assert mmcv.__version__ == '1.7.2', mmcv.__version__
    api = {'DataContainer': DataContainer, 'collate': collate, 'scatter': scatter, 'scatter_kwargs': scatter_kwargs}
    lines = [json.dumps({**case, **outcome(case, api)}) for case in cases()]
    (path or TABLE).write_text('[\n' + ',\n'.join(lines) + '\n]\n', encoding='utf-8')
    print(f'{len(lines)} cases')


if __name__ == '__main__':
    main()
