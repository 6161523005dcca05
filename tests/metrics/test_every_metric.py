"""What every metric and matching keeps: no records give no scores, a pickled copy is equal, wrong input is refused."""

import pickle

import pytest
import torch
from refusals import refused

from remanence.metrics import LPIPS, MATCHINGS, METRICS, Matching, Metric, greedy_ssim, identity

by_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
by_matching = pytest.mark.parametrize("matching", MATCHINGS, ids=lambda matching: matching.name)
NONE, SOME = torch.zeros(0, 3, 8, 8), torch.zeros(2, 3, 8, 8)


@by_metric
def test_a_metric_is_pickled_and_shown_by_its_name(metric: Metric) -> None:
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert f"name='{metric.name}'" in repr(metric)
    assert "function" not in repr(metric)


@by_metric
def test_no_records_give_no_scores(metric: Metric) -> None:
    if metric is LPIPS:
        pytest.skip("needs its weights")
    assert metric.pairwise(NONE, SOME).shape == (0, 2)
    assert metric.pairwise(SOME, NONE).shape == (2, 0)
    assert metric.paired(NONE, NONE).shape == (0,)


@by_matching
def test_a_matching_is_pickled_and_shown_by_its_name(matching: Matching) -> None:
    assert pickle.loads(pickle.dumps(matching)) == matching
    assert repr(matching) == f"Matching(name='{matching.name}')"


@by_matching
def test_records_of_another_shape_are_refused(matching: Matching) -> None:
    with refused("shape-mismatch", "candidates"):
        matching(torch.zeros(2, 5), torch.zeros(2, 6))


def test_a_matching_of_images_refuses_tables_and_identity_another_number() -> None:
    with refused("shape-mismatch", "truth"):
        greedy_ssim(torch.zeros(2, 5), torch.zeros(2, 5))
    with refused("shape-mismatch", "candidates"):
        identity(torch.zeros(2, 5), torch.zeros(3, 5))
