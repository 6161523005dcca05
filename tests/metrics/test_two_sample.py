"""Two-sample tests within classes, beside SciPy and an enumeration of all permutations."""

from itertools import combinations

import pytest
import torch
from scipy.stats import mannwhitneyu

from remanence.metrics.two_sample import neighbour_test, shift_test


def test_rank_sums_of_one_class_are_those_of_mann_and_whitney() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randint(0, 6, (n, 3), generator=generator).float() for n in (30, 90))
    ours[:, 1] += 1
    zeros = torch.zeros(30, dtype=torch.long), torch.zeros(90, dtype=torch.long)
    for column, test in enumerate(shift_test(ours, theirs, *zeros)):
        expected = mannwhitneyu(ours[:, column], theirs[:, column], use_continuity=False, method="asymptotic")
        assert test.observed == pytest.approx(expected.statistic / (30 * 90), abs=1e-6)
        assert test.p == pytest.approx(expected.pvalue, rel=1e-6)


def test_classes_that_differ_are_no_shift_of_records() -> None:
    """Private records are mostly of the darker class; within classes they are alike."""
    x = torch.arange(40.0).remainder(10)[:, None] + 100 * torch.tensor([0.0] * 20 + [1.0] * 20)[:, None]
    labels = torch.tensor([0] * 20 + [1] * 20)
    private = torch.tensor([*range(10), *range(20, 22)])
    others = torch.tensor([i for i in range(40) if i not in private.tolist()])
    both = torch.cat([private[:10], private[:10] + 10])  # ranks of the ten are the same in both halves of the class
    (test,) = shift_test(x[both[:10]], x[both[10:]], labels[both[:10]], labels[both[10:]])
    assert (test.observed, test.p) == (0.5, 1.0)
    assert shift_test(x[private], x[others], labels[private], labels[others])[0].p > 0.01


def test_neighbours_have_the_p_value_of_all_permutations() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(10, 2, generator=generator)
    x[:3] += 3
    labels = torch.zeros(10, dtype=torch.long)
    found = neighbour_test(x[:4], x[4:], labels[:4], labels[4:], seed=0)
    nearest = torch.cdist(x, x).fill_diagonal_(torch.inf).argmin(1).tolist()
    counts = [sum(nearest[i] in chosen for i in chosen) for chosen in combinations(range(10), 4)]
    exact = sum(count >= round(4 * found.observed) for count in counts) / len(counts)
    assert found.expected == pytest.approx(sum(counts) / len(counts) / 4)
    assert found.p == pytest.approx(exact, abs=0.03)
    assert 0.01 < exact < 0.5
