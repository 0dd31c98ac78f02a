"""COCO annotation files as text: everything a JSON writer or a labelling tool may do to one, from a seed.

Hypothesis draws *which* peculiarities a file has and how large it is, so a failure shrinks to the few that matter; the
details come from a seeded generator, which keeps an example cheap.
"""

from __future__ import annotations

import json
import random
from typing import Any, Iterable

from hypothesis import strategies as st

CLASSES = ('cat', 'dog', 'café "x"')
CATEGORIES = ('cat', 'dog', 'café "x"', 'unlisted', '{"bbox": [}, {]')


class Lit(str):
    """A piece of JSON written as it is."""


class Pairs(list):
    """An object as a list of (key, value), so that a key may occur twice."""

    def __init__(self, pairs: Iterable = (), **more: Any) -> None:
        super().__init__([*pairs, *more.items()])


ACCEPTED = """
shuffled_top no_info indent compact spaces crlf shuffled_keys ascii escapes lone_surrogate string_ids float_ids big_ids
odd_ids equal_ids duplicate_image unknown_image unknown_category no_annotations empty_annotations odd_numbers nan
double_key double_top extra odd_flags odd_mask unused_gaps odd_sizes bool_box long_decimals many_points category_twice
string_categories deep
""".split()  # noqa: SIM905
REJECTED = """
no_categories unnamed_category bom trailing duplicate_annotation short_box text_box no_box null_area list_image_id
list_annotations_null no_height number_name
""".split()  # noqa: SIM905


class CocoText:
    """One annotation file.

    Args:
        features: names out of :data:`ACCEPTED` and :data:`REJECTED`.
        num_images: images, before duplicates.
        num_annotations: annotations, before duplicates.
        seed: of everything else.
    """

    def __init__(self, features: set[str], num_images: int, num_annotations: int, seed: int) -> None:
        self.features = features
        self.rng = random.Random(seed)
        self.image_ids = self._ids(num_images, 'image')
        self.category_ids = self._category_ids()
        self.num_annotations = num_annotations

    def has(self, feature: str, chance: float = 1.0) -> bool:
        return feature in self.features and self.rng.random() < chance

    # ---- the content
    def encode(self) -> bytes:
        top = Pairs(images=self._images(), annotations=self._annotations(), categories=self._categories())
        if not self.has('no_info'):
            top[:0] = [('info', {'description': 'images annotations', 'year': 2024}), ('licenses', [])]
        if self.has('double_top'):
            name = self.rng.choice(['images', 'annotations', 'categories'])
            top.insert(0, (name, self.rng.choice([[], None, 7, [{'id': 3}], {'a': [1, {'images': []}]}])))
        if self.has('extra'):
            top.append(('x', {'annotations': [{'id': 1, 'bbox': [1]}], 'images': [[[{}]]]}))
        dropped = {'no_annotations': 'annotations', 'no_categories': 'categories'}
        top = Pairs(p for p in top if not any(f in self.features and dropped[f] == p[0] for f in dropped))
        if self.has('shuffled_top') and not self.has('double_top'):
            self.rng.shuffle(top)
        text = self._write(top, 0)
        if self.has('trailing'):
            text += ' {}'
        return ('\ufeff' if self.has('bom') else '').encode() + text.encode('utf-8')

    def _ids(self, n: int, kind: str) -> list[Any]:
        ids: list[Any] = self.rng.sample(range(1, 10 * n + 10), n)
        if self.has('big_ids'):
            ids = [i + 2**53 if self.rng.random() < 0.7 else i + 10**30 for i in ids]
        if self.has('string_ids'):
            ids = [f'{kind} {i} \u00e9' for i in ids]
        if self.has('float_ids'):
            ids = [i + 0.5 if isinstance(i, int) and i < 2**40 else i for i in ids]
        if self.has('odd_ids') and kind == 'image':
            ids = ([None, 'a', 0, -7, True, 2.5, ''] + ids)[: max(n, 1)]
        return ids

    def _category_ids(self) -> list[Any]:
        ids: list[Any] = self.rng.sample(range(1, 91), len(CATEGORIES))
        if self.has('string_categories'):
            ids = [str(i) for i in ids]
        if self.has('category_twice'):
            ids[1] = ids[0]
        return ids

    def _categories(self) -> list[Any]:
        records = []
        for i, name in zip(self.category_ids, CATEGORIES):
            record = Pairs(id=i, name=name, supercategory='thing')
            if self.has('unnamed_category', 0.5) or (self.has('unnamed_category') and name == CATEGORIES[-1]):
                record = Pairs(p for p in record if p[0] != 'name')
            records.append(self._dress(record))
        self.rng.shuffle(records)
        return records

    def _images(self) -> list[Any]:
        ids = list(self.image_ids)
        if self.has('duplicate_image') and ids:
            ids.insert(self.rng.randrange(len(ids) + 1), self.rng.choice(ids))
        if self.has('equal_ids'):
            ids += [True, 1, Lit('1.0')]
            self.rng.shuffle(ids)
        return [self._dress(self._image(i)) for i in ids]

    def _image(self, image_id: Any) -> Pairs:
        odd = 'sch\u00f6n "{}" \\ \U0001f600.jpg'
        name = self.rng.choice(['{}.jpg', 'train/{}.jpg', 'a.b/{}', '{}.tar.gz', '/abs/{}.png', odd, ''])
        height, width = self.rng.choice([(480, 640), (1, 1), (64, 32), (Lit('480.0'), 640), (33, Lit('6.4e1'))])
        if self.has('odd_sizes'):
            height = self.rng.choice([0, -5, True, Lit('1e400'), 10**25, Lit('12.5'), height])
        name = name.format(self.rng.randrange(100))
        record = Pairs(id=image_id, file_name=name, height=height, width=width)
        if self.has('lone_surrogate', 0.5):
            record[1] = ('file_name', Lit(r'"a\ud800b\udc00.jpg"'))
        if self.has('number_name', 0.7):
            record[1] = ('file_name', 7)
        if self.has('no_height'):
            record = Pairs(p for p in record if p[0] != 'height')
        return record

    def _annotations(self) -> Any:
        if self.has('list_annotations_null'):
            return None
        if self.has('empty_annotations'):
            return []
        ids = self._ids(self.num_annotations, 'annotation')
        if self.has('duplicate_annotation') and len(ids) > 1 and self.image_ids:
            ids[-1] = ids[0]
        records = [self._dress(self._annotation(i)) for i in ids]
        if self.has('unknown_image'):
            for k in range(2):
                record = self._annotation(f'unknown {k}')
                record = Pairs((key, value if key != 'image_id' else 'nowhere') for key, value in record)
                records.insert(self.rng.randrange(len(records) + 1), record)
        return records

    def _annotation(self, annotation_id: Any) -> Pairs:
        image_id = self.rng.choice(self.image_ids) if self.image_ids else 5
        if self.has('equal_ids', 0.5):
            image_id = self.rng.choice([True, 1, Lit('1.0')])
        category = self.rng.choice(self.category_ids)
        if self.has('unknown_category', 0.5):
            category = self.rng.choice([1000, 'none', 0.5, None])
        if isinstance(category, int) and self.has('float_ids', 0.5):
            category = Lit(f'{category}.0')
        if self.has('list_image_id'):
            image_id = [1]
        record = Pairs(id=annotation_id, image_id=image_id, category_id=category, bbox=self._box(), area=self._area())
        record += self._flags() + self._mask()
        if self.has('unused_gaps', 0.3):
            record = self._unused(record)
        return self._broken(record)

    def _unused(self, record: Pairs) -> Pairs:
        """A record stock never looks at closely: it is ignored, or its box lies outside, so fields may be missing."""
        if self.rng.random() < 0.5:
            record = Pairs(p for p in record if p[0] not in ('bbox', 'area', 'ignore'))
            return Pairs([*record, ('ignore', 1)])
        record = Pairs(p for p in record if p[0] not in ('bbox', 'area'))
        return Pairs([*record, ('bbox', [-50, -50, 10, 10]), *([('area', None)] if self.rng.random() < 0.5 else [])])

    def _broken(self, record: Pairs) -> Pairs:
        changes: dict[str, dict[str, Any]] = {
            'short_box': {'bbox': [1, 2, 3]},
            'text_box': {'bbox': ['1', '2', '3', '4']},
            'null_area': {'area': None},
        }
        for feature, change in changes.items():
            if self.has(feature):
                record = Pairs((k, change.get(k, v)) for k, v in record)
        return Pairs(p for p in record if p[0] != 'bbox') if self.has('no_box') else record

    # ---- values
    def _number(self) -> Any:
        n = self.rng.uniform(-20, 700)
        choices: list[Any] = [int(n), round(n, 1), round(n, 2), round(n, 3), 0, Lit(f'{n:.2f}'), Lit(f'{int(n)}.0')]
        if self.has('long_decimals'):
            choices += [n, n / 3, round(n, 9)]
        if self.has('odd_numbers'):
            odd = '-0.0 -0 1e2 1E-3 5e-324 1.0e+2 0.1e1 12345678901234567890 0.30000000000000004 1e22'
            choices += [Lit(x) for x in odd.split()]
        if self.has('nan'):
            choices += [Lit('NaN'), Lit('Infinity'), Lit('-Infinity'), Lit('1e999')]
        return self.rng.choice(choices)

    def _box(self) -> list[Any]:
        box = [self._number() for _ in range(4)]
        if self.rng.random() < 0.8:
            box = [
                self.rng.choice([0, 3.5, 1, -4, Lit('-0.0'), box[0]]),
                self.rng.choice([0, 2.25, -1.5, box[1]]),
                *box[2:],
            ]
            box[2:] = [self.rng.choice([x, 20, 7.75, 1, 0.5, Lit('1.0'), 0]) for x in box[2:]]
        if self.has('bool_box', 0.3):
            box[self.rng.randrange(4)] = self.rng.choice([True, False])
        return box

    def _area(self) -> Any:
        return self.rng.choice([1, 12.5, 100, 100, 7.25, 0, -1, Lit('1e-9'), True, self._number()])

    def _flags(self) -> Pairs:
        values: list[Any] = [0, 0, 0, 1, True, False, None]
        if self.has('odd_flags'):
            values += ['0', '', [], [0], {}, Lit('0.0'), 2, -1, Lit('NaN')]
        flags = Pairs()
        if self.rng.random() < 0.8:
            flags.append(('iscrowd', self.rng.choice(values)))
        if self.rng.random() < 0.3:
            flags.append(('ignore', self.rng.choice(values)))
        return flags

    def _mask(self) -> Pairs:
        size = [480, 640]
        runs = [self.rng.randrange(1000) for _ in range(self.rng.randrange(1, 9))]
        masks: list[Any] = [
            self._polygons(),
            self._polygons(),
            self._polygons(),
            None,
            [],
            {'size': size, 'counts': runs},
            {'counts': runs, 'size': size},
            {'size': size, 'counts': 'eW[1`>2N2N2O0O1\\/"n'},
        ]
        if self.has('odd_mask'):
            masks += [
                [[]],
                {},
                '',
                'text',
                5,
                0,
                True,
                [1, 2, 3],
                [[1, 2], 'x'],
                {'a': {'b': [1]}},
                [None],
                [[[1.5]]],
                Lit('-0.0'),
            ]
            masks += [
                {'size': size, 'counts': runs, 'more': 1},
                {'size': [Lit('4.0'), 5], 'counts': []},
                [self._polygons()],
            ]
        return Pairs([('segmentation', self.rng.choice(masks))]) if self.rng.random() < 0.9 else Pairs()

    def _polygons(self) -> list[Any]:
        points = 300 if self.has('many_points', 0.2) else self.rng.choice([3, 4, 4, 6])
        kind = self.rng.choice(['int', 'float', 'mixed', 'mixed'])
        numbers = {
            'int': lambda: self.rng.randrange(700),
            'float': lambda: round(self.rng.uniform(0, 700), 2),
            'mixed': self._number,
        }
        return [[numbers[kind]() for _ in range(2 * points)] for _ in range(self.rng.choice([1, 1, 2, 3]))]

    def _dress(self, record: Pairs) -> Pairs:
        """Add what a record may have besides: more keys, another order, a key given twice (the last one counts)."""
        if self.has('extra', 0.7):
            record.append(
                ('attributes', {'bbox': [1, 2], 'id': {'deep': [[], {}, [{'a': None}]]}, 'text': '}, {"id": 1'})
            )
        if self.has('deep', 0.2):
            record.append(('deep', Lit('[' * 60 + ']' * 60)))
        if self.has('shuffled_keys'):
            self.rng.shuffle(record)
        if self.has('double_key', 0.5):
            key = self.rng.choice([k for k, _ in record])
            record.insert(0, (key, self.rng.choice([None, 5, 'x', [1], {}])))
        return record

    # ---- writing
    def _write(self, value: Any, depth: int) -> str:
        if isinstance(value, Lit):
            return str(value)
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, dict):
            value = Pairs(value.items())
        if isinstance(value, Pairs):
            items = [self._string(k) + self._colon() + self._write(v, depth + 1) for k, v in value]
            return self._enclose('{}', items, depth)
        if isinstance(value, list):
            return self._enclose('[]', [self._write(v, depth + 1) for v in value], depth)
        return json.dumps(value)

    def _colon(self) -> str:
        return ':' if 'compact' in self.features else (' :\t' if self.has('spaces', 0.5) else ': ')

    def _enclose(self, brackets: str, items: list[str], depth: int) -> str:
        newline = '\r\n' if 'crlf' in self.features else '\n'
        if 'indent' in self.features and items:
            body = (',' + newline).join(' ' * (depth + 1) + i for i in items)
            return f'{brackets[0]}{newline}{body}{newline}{" " * depth}{brackets[1]}'
        comma = ',' if 'compact' in self.features else (' , ' if self.has('spaces', 0.5) else ', ')
        pad = self.rng.choice(['', ' ', newline, '\t ']) if 'spaces' in self.features else ''
        return brackets[0] + pad + comma.join(items) + pad + brackets[1]

    def _string(self, text: str) -> str:
        if not self.has('escapes', 0.8):
            return json.dumps(text, ensure_ascii='ascii' in self.features)
        out = ''
        for char in text:
            if self.rng.random() < 0.2:
                units = char.encode('utf-16-be')
                code = ''.join(f'\\u{units[i : i + 2].hex()}' for i in range(0, len(units), 2))
                out += code if self.rng.random() < 0.5 else code.upper().replace('\\U', '\\u')
            else:
                out += '\\/' if char == '/' else json.dumps(char, ensure_ascii='ascii' in self.features)[1:-1]
        return f'"{out}"'


def coco_files(rejected: bool = False) -> st.SearchStrategy[CocoText]:
    """Annotation files with up to six peculiarities; with ``rejected``, at least one that stock refuses to load."""
    features = st.sets(st.sampled_from(ACCEPTED), max_size=6)
    if rejected:
        features = st.builds(set.union, features, st.sets(st.sampled_from(REJECTED), min_size=1, max_size=2))
    return st.builds(CocoText, features, st.integers(0, 5), st.integers(0, 12), st.integers(0, 2**32))


def dataset_options() -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments of ``CocoDataset``, in the combinations that change what it does with a file."""
    return st.fixed_dictionaries(
        {
            'data_prefix': st.sampled_from(
                [{'img': ''}, {'img': 'train/'}, {'img': '/data/x', 'seg': 'seg'}, {'img': 'i', 'seg': ''}]
            ),
            'metainfo': st.sampled_from(
                [
                    {'classes': CLASSES},
                    {'classes': list(CLASSES[:1])},
                    {'classes': CLASSES[::-1]},
                    {'classes': ()},
                    {'classes': ('cat', 'x')},
                ]
            ),
            'serialize_data': st.booleans(),
        },
        optional={
            'test_mode': st.booleans(),
            'filter_cfg': st.sampled_from(
                [
                    None,
                    {},
                    {'filter_empty_gt': True},
                    {'filter_empty_gt': True, 'min_size': 32},
                    {'min_size': 33},
                    {'min_size': 0.5},
                ]
            ),
            'indices': st.sampled_from([None, 1, 2, -1, -2, [0], [0, 0], (0, -1), range(1), 100, [1, 0]]),
            'seg_map_suffix': st.sampled_from(['.png', '_labels.tif']),
            'return_classes': st.just(True),
            'data_root': st.just('root'),
        },
    )
