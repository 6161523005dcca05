"""The leak test on rows that do not lie in [0, 1]: normal, heavy-tailed, mostly zero, on different scales."""

from collections.abc import Callable
from math import inf

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from remanence import Data, Reconstruction, evaluate
from remanence.metrics.leakage import leak_test
from remanence.metrics.similarity import (
    ALIGNED,
    BY_COLUMN,
    DIRECTION,
    HALVES,
    STANDARDISED,
    column_ranges,
    similarities,
)

Draw = Callable[[int, torch.Generator], Tensor]
COLUMNS, PRIVATE, HELD_OUT = 20, 20, 200


def normal(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, COLUMNS, generator=generator)


def heavy_tailed(count: int, generator: torch.Generator) -> Tensor:
    """Cauchy's, which have no mean."""
    return torch.randn(count, COLUMNS, generator=generator) / torch.randn(count, COLUMNS, generator=generator)


def scaled(count: int, generator: torch.Generator) -> Tensor:
    """Normal columns of scales from 1e-3 to 1e4, far from zero."""
    return (normal(count, generator) + 5) * torch.logspace(-3, 4, COLUMNS)


def after_relu(count: int, generator: torch.Generator) -> Tensor:
    """Features of which three in four are zero."""
    return (normal(count, generator) - 0.7).relu()


KINDS: list[Draw] = [normal, heavy_tailed, scaled, after_relu]
by_kind = pytest.mark.parametrize("draw", KINDS, ids=lambda draw: draw.__name__)


def data(x: Tensor) -> Data:
    return Data(x=x, y=torch.arange(len(x)) % 2, num_classes=2, bounds=(-inf, inf))


@pytest.mark.slow
@by_kind
def test_candidates_that_know_nothing_raise_no_alarm(draw: Draw) -> None:
    audits, small, listed = 200, 0, 0
    for seed in range(audits):
        generator = torch.Generator().manual_seed(seed)
        private, held_out, candidates = (draw(n, generator) for n in (PRIVATE, HELD_OUT, PRIVATE))
        test = leak_test(candidates, data(private), data(held_out), seed=seed)
        small += test.together <= 0.05
        listed += bool(test.found.any())
    upper = binom.ppf(0.999, audits, 0.05)
    assert small <= upper
    assert listed <= upper


@by_kind
def test_noisy_copies_are_found(draw: Draw) -> None:
    generator = torch.Generator().manual_seed(0)
    private, held_out = draw(PRIVATE, generator), draw(HELD_OUT, generator)
    ranges = column_ranges(torch.cat([private, held_out]))
    noisy = private[:10] + 0.05 * ranges * torch.randn(10, COLUMNS, generator=generator)
    test = leak_test(noisy, data(private), data(held_out))
    assert int(test.found[:10].sum()) >= 8
    assert not bool(test.found[10:].any())
    assert test.together < 1e-3


def test_a_record_of_the_wrong_length_is_recognised_by_its_direction() -> None:
    generator = torch.Generator().manual_seed(0)
    private, held_out = normal(PRIVATE, generator), normal(HELD_OUT, generator)
    centre = torch.cat([private, held_out]).median(0).values
    test = leak_test(centre + 9 * (private - centre), data(private), data(held_out))
    assert bool(test.found.all())
    assert {test.recognised_by(i) for i in range(PRIVATE)} == {"direction"}


def test_half_of_the_columns_are_recognised_where_the_others_are_anything() -> None:
    generator = torch.Generator().manual_seed(0)
    private, held_out = scaled(PRIVATE, generator), scaled(HELD_OUT, generator)
    found = private.clone()
    found[:, ::2] = 1e6 * torch.randn(PRIVATE, COLUMNS // 2, generator=generator)
    test = leak_test(found, data(private), data(held_out))
    assert int(test.found.sum()) >= 18
    assert {test.recognised_by(i) for i in range(PRIVATE)} == {"columns"}


@by_kind
def test_scores_do_not_depend_on_the_units_of_columns(draw: Draw) -> None:
    generator = torch.Generator().manual_seed(0)
    records, candidates = draw(50, generator).double(), draw(6, generator).double()
    unit, shift = torch.logspace(-3, 3, COLUMNS).double(), torch.linspace(-4, 4, COLUMNS).double()
    for each in (STANDARDISED, DIRECTION, BY_COLUMN):
        scores = each.pairwise(candidates, records)
        torch.testing.assert_close(each.pairwise(unit * candidates + shift, unit * records + shift), scores)


def test_similarities_of_standardised_rows_are_numpys() -> None:
    generator = torch.Generator().manual_seed(0)
    records, candidates = (heavy_tailed(n, generator).double() for n in (60, 5))
    a, b = candidates.numpy(), records.numpy()
    ordered = np.sort(b, axis=0)
    centre, ranges = ordered[29], ordered[56] - ordered[3]  # three of sixty are left out at each end
    a, b = (a - centre) / ranges, (b - centre) / ranges
    for i in range(5):
        for j in range(60):
            error = np.mean((a[i] - b[j]) ** 2)
            by_column = np.mean(-20 * np.log10(np.abs(a[i] - b[j]) + 0.005))
            cosine = a[i] @ b[j] / np.linalg.norm(a[i]) / np.linalg.norm(b[j])
            pair = candidates[i : i + 1], records
            assert float(STANDARDISED.pairwise(*pair)[0, j]) == pytest.approx(-10 * np.log10(error), abs=1e-6)
            assert float(DIRECTION.pairwise(*pair)[0, j]) == pytest.approx(np.arctanh(cosine), abs=1e-6)
            assert float(BY_COLUMN.pairwise(*pair)[0, j]) == pytest.approx(by_column, abs=1e-6)


def test_ranges_pass_over_outliers_and_columns_that_are_mostly_one_value() -> None:
    x = torch.zeros(100, 4)
    x[:, 0] = torch.arange(100.0)
    x[0, 0] = -1e9
    x[:3, 1] = torch.tensor([1.0, 2.0, 8.0])
    x[:, 2] = 7.0
    x[:, 3] = torch.arange(100) % 2
    assert column_ranges(x).tolist() == [89.0, 8.0, 1.0, 1.0]


def test_which_similarities_and_metrics_serve_records_without_a_box() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, images = data(normal(4, generator)), data(torch.randn(4, 1, 9, 9, generator=generator))
    assert similarities(rows) == (STANDARDISED, DIRECTION, BY_COLUMN)
    assert similarities(images) == (STANDARDISED, ALIGNED, HALVES)


def test_scores_and_nulls_of_rows_without_a_box() -> None:
    generator = torch.Generator().manual_seed(0)
    shift, std = torch.linspace(-50, 50, COLUMNS), torch.linspace(0.1, 5, COLUMNS)
    private, held_out = (data(shift + std * normal(n, generator)) for n in (PRIVATE, 2000))
    scores = evaluate(Reconstruction(x=private.x), private, unrelated=held_out)
    assert [metric.name for metric in scores.metrics] == ["cosine", "mse", "mae", "ncc"]
    assert scores.means["cosine"].value == pytest.approx(1)
    assert bool(scores.found.all())
    noise = scores.nulls["noise"]
    assert "normal noise" in noise.meaning
    # two independent normal rows of these columns differ by twice their variance, less what the matching gains
    assert 0.8 < float(noise.values["mse"].mean() / std.square().mean()) < 2.1
    free = Data(x=private.x - shift + 30, y=private.y, num_classes=2, bounds=(0.0, 100.0))
    others = Data(x=held_out.x - shift + 30, y=held_out.y, num_classes=2, bounds=(0.0, 100.0))
    uniform = evaluate(Reconstruction(x=free.x), free, unrelated=others).nulls["noise"]
    assert "uniform noise" in uniform.meaning
    assert float(uniform.values["mae"].mean()) > 15  # of values all over the box from records near 30


def test_a_diverged_candidate_is_matched_last_however_large_errors_are() -> None:
    generator = torch.Generator().manual_seed(0)
    private, held_out = data(1e3 * normal(3, generator)), data(1e3 * normal(60, generator))
    candidates = torch.cat([torch.full((1, COLUMNS), torch.nan), 1e3 * normal(3, generator)])
    index = evaluate(Reconstruction(x=candidates), private, unrelated=held_out).index
    assert sorted(index.tolist()) == [1, 2, 3]
