"""JSON texts of COCO files, aimed at a reader that cuts them into pieces; everything follows from a seed."""

from __future__ import annotations

import json
import random
from typing import Any, List

TRAPS = [
    '}, {',
    ']',
    '}]',
    '[{',
    '"',
    '\\',
    '\\"',
    '}, {"id": 1',
    '\u00e9\u20ac\U0001f600',
    '\n\t\x00',
    '',
    '],',
    ':',
    '}',
    '{',
    '\u2028',
    'x' * 70,
]
NUMBERS = [
    '0',
    '-0',
    '-0.0',
    '1.5',
    '12.25',
    '0.125',
    '1e5',
    '1E+2',
    '1e-7',
    '123456789',
    '9007199254740993',
    '0.1',
    '1' * 25,
    '0.30000000000000004',
    '5e-324',
    '1e22',
    '1e-400',
    '-7',
    '3.0',
    '655.36',
    '70000.01',
]
ODD_NUMBERS = ['NaN', 'Infinity', '-Infinity', '1E400', 'true', 'null', '-1e999']


class TextWriter:
    """Writes one file; ``random()`` decides everything."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.odd = self.rng.random() < 0.5
        self.space = self.rng.choice([[''], [' '], ['', ' '], ['', ' ', '\n', '\r\n', '\t', ' \r\n  '], ['\n' * 9]])
        self.extra_keys = self.rng.sample(TRAPS + ['license', 'extra0', 'extra1'], self.rng.randrange(3))

    def file(self) -> bytes:
        """A file that pycocotools' ``COCO`` takes."""
        n, m = self.rng.randrange(5), self.rng.choice([0, 1, 4, 12])
        members = [
            ('"images"', self.array([self.image(i) for i in range(n)])),
            ('"annotations"', self.array([self.annotation(i) for i in range(m)])),
            (
                '"categories"',
                self.array([self.object([('"id"', str(i)), ('"name"', self.string())]) for i in range(3)]),
            ),
        ]
        for _ in range(self.rng.randrange(4)):
            members.append((self.string(), self.value(3)))
        if self.rng.random() < 0.3:
            members.append(('"numbers"', self.array([self.number() for _ in range(100)])))
        self.rng.shuffle(members)
        if self.rng.random() < 0.2:
            key = self.rng.choice(['images', 'annotations', 'categories', 'info'])
            members.insert(0, (json.dumps(key), self.value(2)))  # given again below: this one does not count
            members.append((json.dumps(key), '[]'))
        return (self.gap() + self.object(members) + self.gap()).encode()

    def image(self, i: int) -> str:
        number = str(i) if self.rng.random() < 0.8 else self.rng.choice(['"a"', '1.0', 'true', '2.5', str(2**63)])
        size = [str(self.rng.randrange(1, 900)) if self.rng.random() < 0.9 else self.number() for _ in range(2)]
        return self.record(
            [('"id"', number), ('"file_name"', self.string()), ('"height"', size[0]), ('"width"', size[1])]
        )

    def annotation(self, i: int) -> str:
        image = self.rng.choice(['0', '1', '2', '1.0', '"a"', '77', 'true', 'null', str(2**63)])
        mask = self.rng.choice(
            [self.polygons, self.polygons, lambda: '[]', lambda: 'null', self.run_length, lambda: self.value(2)]
        )()
        pairs = [
            ('"id"', str(i)),
            ('"image_id"', image),
            ('"category_id"', self.rng.choice('0123')),
            ('"bbox"', self.array([self.number() for _ in range(4)])),
            ('"area"', self.number()),
        ]
        if self.rng.random() < 0.9:
            pairs.append(('"segmentation"', mask))
        if self.rng.random() < 0.8:
            pairs.append(('"iscrowd"', self.rng.choice(['0', '0', '1', 'false', 'true', 'null', '2', '0.0'])))
        return self.record(pairs)

    def polygons(self) -> str:
        pool = self.rng.choice([NUMBERS[:6], NUMBERS, ['1', '2', '300'], ['1.25', '70000.5', '-3.75']])
        return self.array(
            [
                self.array([self.rng.choice(pool) for _ in range(self.rng.choice([0, 1, 6, 8]))])
                for _ in range(self.rng.randrange(1, 4))
            ]
        )

    def run_length(self) -> str:
        counts = self.string() if self.rng.random() < 0.5 else self.array(['1', '20'])
        return self.object([('"counts"', counts), ('"size"', self.array(['4', '5.0']))])

    def record(self, pairs: List[tuple]) -> str:
        pairs = pairs + [(json.dumps(key), self.value(2)) for key in self.extra_keys if self.rng.random() < 0.7]
        if self.rng.random() < 0.3:
            self.rng.shuffle(pairs)
        if self.rng.random() < 0.05:
            pairs.insert(0, (self.rng.choice(pairs)[0], self.value(1)))
        return self.object(pairs)

    def value(self, depth: int) -> str:
        kind = self.rng.randrange(6 if depth else 3)
        if kind < 2:
            return self.number()
        if kind == 2:
            return self.string()
        parts = [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        return self.array(parts) if kind < 5 else self.object([(self.string(), part) for part in parts])

    def number(self) -> str:
        return self.rng.choice(NUMBERS + ODD_NUMBERS if self.odd and self.rng.random() < 0.1 else NUMBERS)

    def string(self) -> str:
        text = ''.join(self.rng.choice(TRAPS) for _ in range(self.rng.randrange(4)))
        if self.odd and self.rng.random() < 0.1:
            return json.dumps(text)[:-1] + '\\ud800"'
        return json.dumps(text, ensure_ascii=self.rng.random() < 0.5)

    def array(self, parts: List[str]) -> str:
        return '[' + self.gap() + self.comma().join(parts) + self.gap() + ']'

    def object(self, pairs: List[tuple]) -> str:
        return (
            '{'
            + self.gap()
            + self.comma().join(k + self.gap() + ':' + self.gap() + v for k, v in pairs)
            + self.gap()
            + '}'
        )

    def comma(self) -> str:
        return self.gap() + ',' + self.gap()

    def gap(self) -> Any:
        return self.rng.choice(self.space)
