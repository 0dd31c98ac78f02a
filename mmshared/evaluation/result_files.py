"""The result files of ``CocoMetric``, byte for byte, written image by image."""

from __future__ import annotations

import contextlib
import datetime
import json
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, TextIO

import numpy as np
from mmengine.fileio import LocalBackend, dump, get_file_backend

from .collected import Collected
from .ground_truth import SampleTruth
from .pairing import check_labels
from .predictions import to_json


def write_results(found: Collected, cat_ids: Sequence[Any], prefix: str) -> Dict[str, str]:
    """Write ``<prefix>.bbox.json`` and, if there are masks, ``<prefix>.segm.json``.

    Args:
        found: the detections.
        cat_ids: the category of each label.
        prefix: path or address that the names begin with.

    Returns:
        The files by metric.

    Raises:
        IndexError: a label has no category.
    """
    check_labels(found, cat_ids)
    texts = [to_json(key).decode() for key in cat_ids]
    files = result_files(found, prefix)
    for kind in ('bbox', 'segm'):
        if kind in files:
            with _opened(files[kind]) as out:
                _write(out, found, texts, masks=kind == 'segm')
    return files


def result_files(found: Collected, prefix: str) -> Dict[str, str]:
    """The names of these files by metric; without masks there is none for 'segm'."""
    box_file = f'{prefix}.bbox.json'
    return {'bbox': box_file, 'proposal': box_file, **({'segm': f'{prefix}.segm.json'} if found.masks else {})}


def write_truth(truth: SampleTruth, prefix: str) -> str:
    """Write ``<prefix>.gt.json``, as stock does where there is no annotation file, and return its name."""
    info = {
        'date_created': str(datetime.datetime.now()),
        'description': 'Coco json file converted by mmshared SharedCocoMetric.',
    }
    path = f'{prefix}.gt.json'
    dump({'info': info, **truth.to_dict()}, path)
    return path


def _write(out: TextIO, found: Collected, categories: List[str], masks: bool) -> None:
    scores = (found.mask_scores if masks else found.scores).astype(np.float64)
    start, separator = 0, ''
    out.write('[')
    for image, stop in zip(found.id_texts, np.cumsum(found.counts).tolist()):
        mine = slice(start, stop)
        columns = [
            found.boxes[mine].tolist(),
            scores[mine].tolist(),
            found.labels[mine].tolist(),
            found.masks.take(np.arange(start, stop)).all() if masks else [None] * (stop - start),
        ]
        for (x1, y1, x2, y2), score, label, mask in zip(*columns):
            box = json.dumps([x1, y1, x2 - x1, y2 - y1])
            outline = '' if mask is None else f', "segmentation": {mask.decode()}'
            out.write(
                f'{separator}{{"image_id": {image.decode()}, "bbox": {box}, "score": {json.dumps(score)}, '
                f'"category_id": {categories[label]}{outline}}}'
            )
            separator = ', '
        start = stop
    out.write(']')


@contextlib.contextmanager
def _opened(address: str) -> Iterator[TextIO]:
    """A file to write into that ends up at ``address``, wherever mmengine's backends can put it."""
    backend = get_file_backend(address)
    if isinstance(backend, LocalBackend):
        Path(address).parent.mkdir(parents=True, exist_ok=True)
        with open(address, 'w', encoding='utf-8') as file:
            yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'results.json'
        with open(path, 'w', encoding='utf-8') as file:
            yield file
        backend.put_text(path.read_text(encoding='utf-8'), address)
