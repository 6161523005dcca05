"""The power of the rank test: the numbers of held-out records that it needs, by counting and by the test itself."""

from math import comb, prod

import pytest
import torch

from remanence.metrics.exchangeability import Pool, discoveries, rank_test
from remanence.metrics.power import held_out_needed, power_of, unscored


def best_test(private: torch.Tensor, held_out: torch.Tensor) -> tuple[int, float]:
    """The list and the p-value where every private record scores above every held-out one."""
    scores = torch.cat([torch.ones(len(private)), torch.zeros(len(held_out))])[None]
    release = torch.zeros(len(private), dtype=torch.int64)
    found = rank_test(Pool(scores=scores, labels=torch.cat([private, held_out]), release=release), seed=0)
    return int(discoveries(found.records, 0.05).sum()), found.together


@pytest.mark.parametrize(
    ("private", "held_out", "level", "needed"),
    [
        ([0], [], 1.0, 19),  # one in twenty
        ([0], [], 0.005, 266),
        ([0] * 4, [], 0.005, 19),
        ([0, 6, 9, 9], [0] * 9 + [6] * 8 + [9] * 9, 0.005, 10),  # of class 9, which has half of the records
        ([0, 1, 2, 3], [], 0.005, 5),
        ([3, 3], [5] * 100, 1.0, 19),  # others are of no use
    ],
)
def test_the_number_of_held_out_records_is_the_least_with_which_the_test_can_list_some(
    private: list[int], held_out: list[int], level: float, needed: int
) -> None:
    ours, theirs = torch.tensor(private), torch.tensor(held_out, dtype=torch.int64)
    assert held_out_needed(ours, theirs, fdr=0.05, level=level) == needed
    for number, possible in ((needed - 1, False), (needed, True)):
        counts = [max(number, held_out.count(label)) for label in sorted(set(private))]
        others = [label for label in held_out if label not in private]
        given = torch.tensor(others + [x for x, n in zip(sorted(set(private)), counts, strict=True) for _ in range(n)])
        listed, _ = best_test(ours, given)
        choices = prod(comb(n + private.count(x), n) for x, n in zip(sorted(set(private)), counts, strict=True))
        assert (listed == len(private) and 1 / choices <= 0.75 * level) == possible  # with room for drawn permutations


def test_the_smallest_p_value_is_that_of_choosing_the_private_records_of_each_class() -> None:
    labels = torch.tensor([0, 0, 1] + [0] * 5 + [1] * 9 + [2] * 7)
    found = power_of(unscored(labels, private=3), fdr=0.05, level=0.005)
    assert found.smallest_p == pytest.approx(1 / (comb(7, 2) * comb(10, 1)))
    assert found.smallest_p == pytest.approx(best_test(labels[:3], labels[3:])[1], rel=0.3)
    assert found.records == 3
    assert (found.needed, found.lacking) == (13, (0, 1))  # two of three are of class 0
    alone = power_of(unscored(torch.zeros(10).long(), private=2), fdr=0.05, level=0.05)
    assert (alone.needed, alone.lacking, alone.smallest_list) == (19, (), 3)
    assert held_out_needed(torch.zeros(2), torch.zeros(19), fdr=0.05, level=0.05) == 0  # they are enough
    many = power_of(unscored(torch.zeros(3000).long(), private=100), fdr=0.05, level=0.05)
    assert many.smallest_p == 1 / 20_000  # the permutations that are drawn


def test_records_of_several_releases_are_chosen_for_each() -> None:
    labels, release = torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1])
    pool = Pool(scores=torch.zeros(2, 6), labels=labels, release=release)
    assert power_of(pool, fdr=0.05, level=0.05).smallest_p == pytest.approx(1 / (6 * 5))
