"""Make ``lvis_table.json``: what lvis 0.5.3 says of the cases in ``lvis_cases.py``.

The package's accumulation needs ``numpy.float``, which numpy 1.24 took away, so it runs in an environment of its own::

    python -m venv /tmp/lvis && /tmp/lvis/bin/pip install 'numpy<1.24' pycocotools==2.0.7 lvis==0.5.3
    /tmp/lvis/bin/python tests/evaluation/make_lvis_table.py

It goes the way of mmdet's LVISMetric: results written as JSON, LVISResults from that file, LVISEval with its own
defaults, since what that metric sets (``imgIds``, ``useCats``, ``maxDets``) are names that LVISEval does not look at.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pycocotools.mask as mask_utils
from lvis import LVIS, LVISEval, LVISResults
from lvis_cases import CASES, make_case

HERE = Path(__file__).parent


def as_results(file: Dict[str, Any], predictions: List[Dict[str, Any]], segm: bool) -> List[Dict[str, Any]]:
    """The detections as results of the COCO format, as mmdet writes them."""
    ids = list({category['id']: None for category in file['categories']})
    results = []
    for found in predictions:
        for box, score, label, polygon in zip(*(found[k] for k in ('bboxes', 'scores', 'labels', 'polygons'))):
            result = {
                'image_id': found['img_id'],
                'bbox': [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                'score': score,
                'category_id': ids[label],
            }
            if segm:
                rle = mask_utils.merge(mask_utils.frPyObjects([polygon], 250, 250))
                result['segmentation'] = {'size': rle['size'], 'counts': rle['counts'].decode()}
            results.append(result)
    return results


def evaluate(case: str, iou_type: str) -> Dict[str, Any]:
    """LVISEval's results, and the mean precision of each category (nan where there is none)."""
    file, predictions = make_case(**CASES[case])
    with tempfile.TemporaryDirectory() as folder:
        truth, results = Path(folder, 'truth.json'), Path(folder, 'results.json')
        truth.write_text(json.dumps(file))
        results.write_text(json.dumps(as_results(file, predictions, iou_type == 'segm')))
        lvis = LVIS(str(truth))
        evaluation = LVISEval(lvis, LVISResults(lvis, str(results)), iou_type)
    evaluation.run()
    classes = []
    for k in range(len(evaluation.params.cat_ids)):
        precision = evaluation.eval['precision'][:, :, k, 0]
        precision = precision[precision > -1]
        classes.append(float(np.mean(precision)) if precision.size else None)
    return {'results': {k: float(v) for k, v in evaluation.get_results().items()}, 'classes': classes}


if __name__ == '__main__':
    table = {case: {kind: evaluate(case, kind) for kind in ('bbox', 'segm')} for case in CASES}
    (HERE / 'lvis_table.json').write_text(json.dumps(table, indent=1) + '\n')
