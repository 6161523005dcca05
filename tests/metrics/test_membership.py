"""The membership test keeps its rate, and its AUC is scikit-learn's."""

import pytest
import torch
from refusals import refused
from scipy.stats import binom
from sklearn.metrics import roc_auc_score
from torch import Tensor

from remanence import load, split
from remanence.diagnostics.span import Span
from remanence.metrics import membership_test
from remanence.metrics.statistics import auc


def test_the_auc_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, null = (
        torch.randint(5, (30,), generator=generator) + 1.0,
        torch.randint(6, (50,), generator=generator) * 1.0,
    )
    expected = roc_auc_score([1] * 30 + [0] * 50, torch.cat([scores, null]))
    assert auc(scores, null) == pytest.approx(expected)
    found = membership_test(scores, null)
    assert found.auc.value == pytest.approx(expected)
    assert found.auc.low < expected < found.auc.high


def energy_outside(x: Tensor, records: Tensor) -> Tensor:
    values, directions = torch.linalg.svd(records.flatten(1).double(), full_matrices=False)[1:]
    found = Span(values=values, directions=directions, rank=len(records), gap=1e9, shape=tuple(records.shape[1:]))
    return found.outside(x)


@pytest.mark.slow
def test_one_in_a_hundred_records_that_were_not_trained_on_is_called_so() -> None:
    """Over 10 spans of 30 digits each; other digits are tested against other digits."""
    identified, total, wrong = 0, 0, []
    digits = load("digits")
    for seed in range(10):
        parts = split(digits, private=30, fixed=0, public=300, test=1000, seed=seed)
        trained, others, held_out = (
            -energy_outside(d.x, parts.private.x) for d in (parts.private, parts.public, parts.test)
        )
        found = membership_test(others, held_out, seed=seed)
        identified, total = identified + int(found.identified.sum()), total + len(others)
        wrong.append(found.false_positives.value)
        assert found.auc.low < 0.53
        assert found.auc.high > 0.47
        assert float(trained.min()) > float(held_out.max())
    # p-values against one sample of 500 are exact on average; that it is finite doubles the variance at most
    assert identified <= total * 0.01 + 3 * (2 * total * 0.01 * 0.99) ** 0.5
    assert binom.cdf(identified, total, 0.01) > 1e-3
    assert 0.005 < sum(wrong) / len(wrong) < 0.015


def test_too_few_held_out_records_identify_nobody() -> None:
    found = membership_test(torch.ones(5), torch.zeros(100))
    assert not found.identified.any()
    assert found.auc.value == 1
    with refused("too-few", "held_out"):
        membership_test(torch.ones(5), torch.zeros(1))
