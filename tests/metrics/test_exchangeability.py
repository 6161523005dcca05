"""The rank tests: exact under exchangeability, the same as scipy's where scipy has them, and safe with ties and NaN."""

import numpy as np
import pytest
import torch
from scipy.stats import false_discovery_control, kstest, mannwhitneyu

from remanence.metrics import MSE
from remanence.metrics.exchangeability import (
    discoveries,
    exact_copies,
    leak_test,
    nearest_scores,
    rank_sum_test,
    rank_test,
)
from remanence.types import Data


def _sampled(seed: int, *, classes: int, ties: bool) -> tuple[torch.Tensor, ...]:
    """Scores that depend on the class, of 12 private and 40 held-out records: exchangeable within a class only."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(52) % classes
    labels[:8] = 0  # more private records of one class than the held-out ones have
    scores = 3.0 * labels + torch.randn(52, generator=generator)
    scores = scores.round() if ties else scores
    return scores[:12], scores[12:], labels[:12], labels[12:]


@pytest.mark.parametrize("classes", [1, 3])
def test_p_values_are_uniform_under_exchangeability(classes: int) -> None:
    tests = [rank_test(*_sampled(seed, classes=classes, ties=False), seed=seed, draws=99) for seed in range(400)]
    together = np.array([test.together for test in tests])
    assert kstest(together - 0.005, "uniform").pvalue > 0.01  # in steps of 1/100
    first = np.array([float(test.records[0]) for test in tests])
    for level in (0.1, 0.25, 0.5):
        assert abs((first <= level).mean() - level) < 0.08
    sums = np.array([rank_sum_test(*_sampled(seed, classes=classes, ties=False)) for seed in range(400)])
    assert kstest(sums, "uniform").pvalue > 0.01


@pytest.mark.parametrize("classes", [1, 3])
def test_ties_never_make_p_values_small(classes: int) -> None:
    tests = [rank_test(*_sampled(seed, classes=classes, ties=True), seed=seed, draws=99) for seed in range(400)]
    each = torch.stack([test.records for test in tests]).flatten()
    for level in (0.05, 0.1, 0.25):
        slack = 3 * (level * (1 - level) / 400) ** 0.5
        assert sum(test.together <= level for test in tests) / 400 <= level + slack
        assert float((each <= level).double().mean()) <= level + slack


def test_equal_scores_are_no_evidence() -> None:
    zeros, labels = torch.zeros(5), torch.zeros(5, dtype=torch.long)
    found = rank_test(zeros, zeros, labels, labels, seed=0, draws=99)
    assert found.together == 1
    assert found.records.tolist() == [1.0] * 5
    assert rank_sum_test(zeros, zeros, labels, labels) == 1


def test_a_record_without_a_score_or_without_held_out_ones_is_not_found() -> None:
    held_out, labels = torch.linspace(0, 1, 50), torch.zeros(50, dtype=torch.long)
    private = torch.tensor([torch.nan, 2.0, 5.0])
    found = rank_test(private, held_out, torch.tensor([0, 0, 1]), labels, seed=0, draws=99)
    assert found.records.tolist() == pytest.approx([1.0, 1 / 51, 1.0])


def test_the_rank_of_a_record_is_counted() -> None:
    held_out = torch.tensor([0.1, 0.2, 0.3, 0.4])
    zeros = torch.zeros(4, dtype=torch.long)
    found = rank_test(torch.tensor([0.25, 0.3, 0.5]), held_out, zeros[:3], zeros, seed=0, draws=9)
    assert found.records.tolist() == pytest.approx([3 / 5, 3 / 5, 1 / 5])


def test_the_rank_sum_test_of_one_class_is_that_of_mann_and_whitney() -> None:
    generator = torch.Generator().manual_seed(0)
    for digits in (0, 6):
        ours, theirs = torch.randn(20, generator=generator) + 0.4, torch.randn(60, generator=generator)
        ours, theirs = ours.round(decimals=digits), theirs.round(decimals=digits)
        labels = torch.zeros(60, dtype=torch.long)
        expected = mannwhitneyu(ours.double(), theirs.double(), alternative="greater", method="asymptotic").pvalue
        assert rank_sum_test(ours, theirs, labels[:20], labels) == pytest.approx(expected, rel=1e-9)


def test_classes_of_other_frequencies_are_no_evidence() -> None:
    generator = torch.Generator().manual_seed(1)
    private_labels, labels = (torch.rand(300, generator=generator) < q for q in (0.9, 0.3))
    ours, theirs = (2.0 * each + torch.randn(300, generator=generator) for each in (private_labels, labels))
    assert mannwhitneyu(ours, theirs, alternative="greater").pvalue < 1e-10
    assert rank_sum_test(ours, theirs, private_labels.long(), labels.long()) > 0.01


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    generator = torch.Generator().manual_seed(0)
    for power in (1.0, 2.0, 6.0):
        for fdr in (0.05, 0.2):
            p = torch.rand(80, generator=generator, dtype=torch.double) ** power
            p[10:20] = p[10]  # ties
            expected = false_discovery_control(p.numpy()) <= fdr
            assert discoveries(p, fdr).tolist() == expected.tolist()
    assert not discoveries(torch.ones(5), 0.05).any()
    assert not len(discoveries(torch.ones(0), 0.05))


def _data(x: torch.Tensor) -> Data:
    return Data(x=x, y=torch.zeros(len(x), dtype=torch.long), num_classes=1)


def test_candidates_that_are_the_records_are_found_and_others_are_not() -> None:
    x = torch.rand(60, 20, generator=torch.Generator().manual_seed(0))
    private, held_out, strangers = _data(x[:10]), _data(x[10:50]), x[50:]
    leaked = leak_test(x[:10] + 1e-4, private, held_out, MSE, seed=0)
    assert leaked.together <= 1e-3
    assert (leaked.records == 1 / 41).all()
    assert leak_test(strangers, private, held_out, MSE, seed=0).together > 0.01
    assert exact_copies(x[:10] + 1e-4, private, held_out).all()
    assert not exact_copies(strangers, private, held_out).any()
    assert nearest_scores(x[:0], x, MSE).tolist() == [-torch.inf] * 60


def test_no_copy_is_made_of_a_record_that_was_held_out_too_nor_by_one_value_throughout() -> None:
    x = torch.rand(20, 8, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0
    private = _data(x[:5])
    assert exact_copies(x[1:5], private, _data(x[5:])).tolist() == [False, True, True, True, True]
    assert not exact_copies(x[:1], private, _data(x[5:])).any()  # blank
    assert not exact_copies(x[1:2], private, _data(x[1:])).any()
