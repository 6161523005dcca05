"""The rank tests: exact under exchangeability, the same as scipy's where scipy has them, and safe with ties and NaN."""

from itertools import combinations

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.stats import false_discovery_control, kstest, mannwhitneyu

from remanence.metrics.exchangeability import (
    Pool,
    competitive,
    discoveries,
    likeness,
    rank_sum_test,
    rank_test,
    smallest_list,
    standardised,
)


def _sampled(seed: int, *, classes: int, ties: bool) -> tuple[torch.Tensor, ...]:
    """Scores that depend on the class, of 12 private and 40 held-out records: exchangeable within a class only."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(52) % classes
    labels[:8] = 0  # more private records of one class than the held-out ones have
    scores = 3.0 * labels + torch.randn(52, generator=generator)
    scores = scores.round() if ties else scores
    return scores[:12], scores[12:], labels[:12], labels[12:]


def _pool(ours: torch.Tensor, theirs: torch.Tensor, labels: torch.Tensor, others: torch.Tensor) -> Pool:
    release = torch.zeros(len(ours), dtype=torch.long)
    return Pool(scores=torch.cat([ours, theirs])[None], labels=torch.cat([labels, others]), release=release)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
def test_p_values_are_uniform_under_exchangeability(classes: int) -> None:
    tests = [rank_test(_pool(*_sampled(seed, classes=classes, ties=False)), seed=seed) for seed in range(400)]
    together = np.array([test.together for test in tests])
    assert kstest(together, "uniform").pvalue > 0.01
    first = np.array([float(test.records[0]) for test in tests])
    for level in (0.1, 0.25, 0.5):
        assert (first <= level).mean() - level < 0.08
    sums = np.array([rank_sum_test(*_sampled(seed, classes=classes, ties=False)) for seed in range(400)])
    assert kstest(sums, "uniform").pvalue > 0.01


@pytest.mark.slow
def test_p_values_are_uniform_over_several_releases() -> None:
    """Three releases with scores of their own: a private record is scored with its own, held-out ones with each."""
    together, each = [], []
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        common, own = torch.randn(1, 60, generator=generator), torch.randn(3, 60, generator=generator)
        labels = torch.arange(60) % 2
        scores = standardised(common + own * torch.tensor([[1.0], [3.0], [0.1]]), labels, 12)
        found = rank_test(Pool(scores=scores, labels=labels, release=torch.arange(12) % 3), seed=seed)
        together.append(found.together)
        each.append(found.records)
    assert kstest(together, "uniform").pvalue > 0.01
    assert float((torch.cat(each) <= 0.1).double().mean()) <= 0.12


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3])
def test_ties_never_make_p_values_small(classes: int) -> None:
    tests = [rank_test(_pool(*_sampled(seed, classes=classes, ties=True)), seed=seed) for seed in range(400)]
    each = torch.stack([test.records for test in tests]).flatten()
    for level in (0.05, 0.1, 0.25):
        slack = 3 * (level * (1 - level) / 400) ** 0.5
        assert sum(test.together <= level for test in tests) / 400 <= level + slack
        assert float((each <= level).double().mean()) <= level + slack


def test_equal_scores_are_no_evidence() -> None:
    zeros, labels = torch.zeros(5), torch.zeros(5, dtype=torch.long)
    found = rank_test(_pool(zeros, zeros, labels, labels), seed=0)
    assert found.together == 1
    assert found.records.tolist() == [1.0] * 5
    assert rank_sum_test(zeros, zeros, labels, labels) == 1


def test_a_record_without_held_out_ones_of_its_class_is_not_found() -> None:
    held_out, labels = torch.linspace(0, 1, 50), torch.zeros(50, dtype=torch.long)
    private = torch.tensor([2.0, 5.0])
    found = rank_test(_pool(private, held_out, torch.tensor([0, 1]), labels), seed=0)
    assert found.records.tolist() == pytest.approx([1 / 51, 1.0])
    nobody = rank_test(_pool(private, held_out[:0], torch.tensor([0, 1]), labels[:0]), seed=0)
    assert (nobody.records.tolist(), nobody.together) == ([1.0, 1.0], 1.0)


def test_the_rank_of_a_record_is_counted() -> None:
    held_out = torch.arange(1.0, 101.0)
    zeros = torch.zeros(100, dtype=torch.long)
    found = rank_test(_pool(torch.tensor([25.5, 30.0, 200.0]), held_out, zeros[:3], zeros), seed=0)
    assert found.records.tolist() == pytest.approx([76 / 101, 72 / 101, 1 / 101])


@pytest.mark.parametrize("private", [3, 7])  # of 12 records: draws with and without repetitions that are few
def test_the_p_value_of_all_records_is_that_of_every_choice_of_them(private: int) -> None:
    scores, zeros = torch.randn(12, generator=torch.Generator().manual_seed(8)), torch.zeros(12, dtype=torch.long)
    surprise = -np.log(1 - scores.argsort().argsort().numpy() / 12)
    observed = surprise[:private].sum()
    exact = np.mean([surprise[list(chosen)].sum() >= observed - 1e-9 for chosen in combinations(range(12), private)])
    found = rank_test(_pool(scores[:private], scores[private:], zeros[:private], zeros[private:]), seed=0).together
    assert 0.2 < exact < 0.8
    assert found == pytest.approx(exact, abs=0.06)  # four standard deviations of 999 draws


def test_small_classes_share_their_ranks_and_keep_their_own() -> None:
    """With four held-out records of a class the ranks are among all, but a record that its own class beats is not
    found."""
    labels = torch.arange(200) % 50
    held_out = torch.zeros(200)
    held_out[labels == 7] = 3.0
    private, of_private = torch.tensor([1.0, 2.0]), torch.tensor([3, 7])
    found = rank_test(_pool(private, held_out, of_private, labels), seed=0)
    assert float(found.records[0]) < 0.6  # weighted: half of the private records are of class 7
    assert float(found.records[1]) == 1.0


@pytest.mark.parametrize(
    ("held_out", "classes", "count"), [(19, 1, 100), (199, 1, 10), (1999, 1, 1), (1990, 10, 10), (9, 1, 101)]
)
def test_the_smallest_list(held_out: int, classes: int, count: int) -> None:
    labels, zeros = torch.arange(100) % classes, torch.zeros(held_out)
    others = torch.arange(held_out) % classes
    assert smallest_list(_pool(torch.zeros(100), zeros, labels, others), 0.05) == count
    for leaked in (count - 1, count):  # no fewer are listed
        scores = torch.zeros(100)
        scores[:leaked] = 1.0
        found = discoveries(rank_test(_pool(scores, zeros, labels, others), seed=0).records, 0.05)
        assert int(found.sum()) == (leaked if leaked == count <= 100 else 0)


@pytest.mark.parametrize(("private", "fewest"), [(1, 19), (2, 10), (3, 7), (4, 5), (8, 3)])
def test_more_held_out_records_never_make_a_list_impossible(private: int, fewest: int) -> None:
    """Records of a class each, of which the ranks are among all first and among their own class later."""
    for held_out in range(1, 60):
        labels, others = torch.arange(private), torch.arange(private).repeat(held_out)
        smallest = smallest_list(_pool(torch.zeros(private), torch.zeros(len(others)), labels, others), 0.05)
        assert (smallest <= private) == (held_out >= fewest)


def test_what_resembles_every_record_singles_none_out() -> None:
    scores = torch.tensor([[0.9, 0.2, 0.3], [0.8, 0.8, 0.1], [0.5, 0.4, 0.7]])
    expected = torch.tensor([[0.6, -0.7, -0.6], [0.0, 0.0, -0.7], [-0.2, -0.3, 0.2]])
    assert torch.allclose(competitive(scores), expected)
    assert torch.equal(competitive(scores[:, :1]), scores[:, :1])


def test_leaks_stand_out_of_standardised_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(1, 400, generator=generator), torch.arange(400) % 2
    scores[:, labels == 1] = 10 + 5 * scores[:, labels == 1]
    plain = standardised(scores, labels, 0)
    for label in (0, 1):
        assert float(plain[0, labels == label].median()) == pytest.approx(0, abs=0.02)
        assert float(plain[0, labels == label].std()) == pytest.approx(1, abs=0.25)
    crowded = scores.clone()
    crowded[0, :300] += 100.0  # three quarters of all leak
    assert float(standardised(crowded, labels, 300)[0, :300].min()) > 10
    scores[0, :40] += 30.0
    assert float(standardised(scores, labels, 40)[0, :40].min()) > 2


def test_records_of_another_kind_are_told_from_held_out_ones() -> None:
    x = torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(400) % 4
    alike = likeness(x[:100], x[100:], labels[:100], labels[100:])
    assert alike.p > 0.001
    assert alike.expected == pytest.approx(24 / 99)
    pairs = torch.cat([x[:50], x[:50] + 0.01])  # two photographs of each
    assert likeness(pairs, x[100:], labels[:100] * 0, labels[100:] * 0).p < 1e-12


def test_scores_and_labels_must_fit() -> None:
    scores, labels = torch.zeros(1, 5), torch.zeros(5, dtype=torch.long)
    with refused("shape-mismatch", "labels"):
        Pool(scores=scores, labels=labels[:4], release=labels[:2])
    with refused("out-of-range", "release"):
        Pool(scores=scores, labels=labels, release=labels[:2] + 1)


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
