"""SharedCocoMetric gives CocoMetric's numbers, whatever the file, the detector and the options."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .metric_cases import BACKENDS, FEATURES, Case, assert_same, outcome, shared_metric, stock_metric, write

METRICS = st.sampled_from(['bbox', 'segm', 'proposal', ['bbox', 'segm'], ['proposal', 'bbox']])
OPTIONS = st.fixed_dictionaries(
    {'metric': METRICS},
    optional={
        'classwise': st.booleans(),
        'proposal_nums': st.sampled_from([(1, 3, 5), (100, 1, 10), (2, 2, 2)]),
        'iou_thrs': st.sampled_from([[0.5], [0.3, 0.5, 0.75, 0.9, 0.95, 0.97]]),
        'metric_items': st.sampled_from([['mAP', 'AR@100'], ['AR_s@1000', 'mAP_75'], []]),
        'sort_categories': st.booleans(),
        'prefix': st.just('other'),
        'use_mp_eval': st.just(False),
    },
)
CASES = st.builds(Case, st.sets(st.sampled_from(FEATURES), max_size=5), st.integers(0, 2**32), st.integers(1, 6))


@pytest.mark.parametrize('backend', BACKENDS)
@settings(max_examples=150, deadline=None)
@given(case=CASES, options=OPTIONS)
def test_same_as_stock(tmp_path_factory, backend, case, options):
    folder = tmp_path_factory.mktemp('case')
    file = write(folder, case.content)
    if 'unsorted' in case.features and not options.get('sort_categories'):
        options['classwise'] = False  # stock then gives classes the figures of others
    ours = outcome(shared_metric(file, folder, backend, **options), case.samples)
    assert_same(outcome(stock_metric(file, **options), case.samples), ours, backend == 'pycocotools')
