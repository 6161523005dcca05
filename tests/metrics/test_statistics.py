import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, bootstrap

from remanence.metrics.statistics import (
    binomial_proportion,
    bootstrap_mean,
    bootstrap_statistic,
    clustered_proportion,
    p_values,
    rank_correlation,
    roc,
)


def test_the_bootstrap_agrees_with_scipy() -> None:
    values = torch.rand(60, generator=torch.Generator().manual_seed(0)) ** 2
    ours = bootstrap_mean(values, seed=0, resamples=5000)
    theirs = bootstrap(
        (values.numpy(),), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert ours.value == pytest.approx(float(values.mean()))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.004)


def test_the_bootstrap_leaves_unscored_records_out() -> None:
    values = torch.tensor([1.0, torch.nan, 3.0])
    assert bootstrap_mean(values, seed=0).value == 2.0
    assert np.isnan(bootstrap_mean(values[1:2], seed=0).value)


@given(total=st.integers(1, 300), data=st.data())
def test_the_binomial_interval_is_clopper_pearson(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    ours = binomial_proportion(count, total)
    assert ours.low == pytest.approx(beta.ppf(0.025, count, total - count + 1) if count else 0.0, abs=1e-9)
    assert ours.high == pytest.approx(beta.ppf(0.975, count + 1, total - count) if count < total else 1.0, abs=1e-9)


@pytest.mark.parametrize(
    "counts", [[1] * 15, [1] * 29 + [0], [0] * 5], ids=["all found", "all but one found", "none found"]
)
def test_clusters_of_one_record_are_independent_records(counts: list[int]) -> None:
    ours, theirs = clustered_proportion(counts, 1), binomial_proportion(sum(counts), len(counts))
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.005)


def test_whole_clusters_count_as_one_record_each() -> None:
    ours, theirs = clustered_proportion([64] * 5, 64), binomial_proportion(5, 5)
    assert (ours.value, ours.low, ours.high) == pytest.approx((1.0, theirs.low, 1.0))
    assert clustered_proportion([7], 10) == binomial_proportion(7, 10)


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.9], ids=lambda alike: f"correlation {alike}")
def test_the_interval_over_clusters_covers_where_records_stand_or_fall_together(alike: float) -> None:
    """Beta-binomial counts of ten batches of 20: 95 % intervals contain the true proportion, where those of independent
    records miss it."""
    generator, covered, covered_by_records = np.random.default_rng(0), 0, 0
    for _ in range(400):
        spread = (1 - alike) / max(alike, 1e-6)
        of_batches = generator.beta(0.6 * spread, 0.4 * spread, size=10) if alike else np.full(10, 0.6)
        counts = generator.binomial(20, of_batches).tolist()
        ours, theirs = clustered_proportion(counts, 20), binomial_proportion(sum(counts), 200)
        covered += ours.low <= 0.6 <= ours.high
        covered_by_records += theirs.low <= 0.6 <= theirs.high
    assert covered >= 0.93 * 400
    assert alike == 0 or covered_by_records < 0.7 * 400


@given(
    scores=st.lists(st.integers(0, 20), min_size=1, max_size=20),
    null=st.lists(st.integers(0, 20), min_size=1, max_size=50),
)
def test_p_values_count_the_null_scores_at_least_as_good(scores: list[int], null: list[int]) -> None:
    ours = p_values(torch.tensor(scores).float(), torch.tensor(null).float(), distinct=len(null))
    naive = [(1 + sum(n >= s for n in null)) / (1 + len(null)) for s in scores]
    assert ours.tolist() == pytest.approx(naive)


def test_an_unscored_record_has_p_one() -> None:
    assert p_values(torch.tensor([torch.nan]), torch.tensor([0.0]), distinct=1).tolist() == [1.0]


def test_the_same_comparison_drawn_again_and_again_shows_no_more_than_once() -> None:
    null = torch.zeros(2000)  # one pair, drawn 2000 times
    assert p_values(torch.tensor([1.0]), null, distinct=1).tolist() == [0.5]


def test_the_roc_is_the_share_of_p_values_below_each_level() -> None:
    generator = torch.Generator().manual_seed(0)
    null, scores = torch.randn(1999, generator=generator), torch.randn(500, generator=generator) + 1
    curve = roc(scores, null, distinct=len(null))
    threshold = null.sort(descending=True).values
    for found, level in ((curve.tpr_at_1_percent, threshold[19]), (curve.tpr_at_01_percent, threshold[1])):  # 1 + 19
        assert found is not None
        exact = binomtest(int((scores > level).sum()), 500).proportion_ci(0.95, "exact")
        assert found.value == pytest.approx(float((scores > level).float().mean()))
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert list(curve.tpr) == sorted(curve.tpr)
    assert curve.tpr[-1] == 1.0


def test_the_roc_is_silent_where_the_null_is_too_small() -> None:
    curve = roc(torch.tensor([1.0]), torch.zeros(2000), distinct=500)
    assert curve.tpr_at_1_percent is not None
    assert curve.tpr_at_1_percent.value == 1.0
    assert curve.tpr_at_01_percent is None


def test_a_rank_correlation_is_that_of_the_ranks() -> None:
    one = torch.tensor([1.0, 5.0, 2.0, 9.0])
    assert rank_correlation(one, one.exp()) == pytest.approx(1)
    assert rank_correlation(one, -one) == pytest.approx(-1)
    assert np.isnan(rank_correlation(one, torch.ones(4)))


def test_the_bootstrap_of_a_statistic_is_that_of_the_mean_for_the_mean() -> None:
    values = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    found = bootstrap_statistic(lambda rows: float(values[rows].mean()), [len(values)], seed=0)
    known = bootstrap_mean(values, seed=1)
    assert found.value == pytest.approx(known.value)
    assert found.low == pytest.approx(known.low, abs=0.03)
    assert found.high == pytest.approx(known.high, abs=0.03)
