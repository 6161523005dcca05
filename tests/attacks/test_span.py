"""The span of the training records in a first layer: planted, trained with and without a record, and refused."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from remanence import SGD, Adam, Data, FineTuned, FineTunedUnknownRecipe, Training, WeightsOnly, load, split
from remanence.data import Split
from remanence.diagnostics.span import estimate_span
from remanence.engine import train
from remanence.errors import BadInput, NotEnoughKnowledge
from remanence.models import cnn, initial_params, mlp
from remanence.training import remaining_fraction
from remanence.types import Params, concat

SHAPE, ROWS = (20,), 40
DECAYING = Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=400, weight_decay=0.015)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planted(records: Tensor, *, noise: float = 0.0, biased: bool = True) -> WeightsOnly:
    """A first layer D'[X 1] with noise of this size on every number."""
    with_one = torch.cat([records, torch.ones(len(records), 1)], dim=1)
    layer = normal(len(records), ROWS, seed=1).T @ with_one + noise * normal(ROWS, with_one.shape[1], seed=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(records.shape[1], ROWS, bias=biased), nn.ReLU(), nn.Linear(ROWS, 2))
    final = {"1.weight": layer[:, :-1]} | ({"1.bias": layer[:, -1]} if biased else {})
    return WeightsOnly(model=model, final=final, shape=SHAPE, num_classes=2)


@pytest.mark.parametrize("centred", [False, True])
def test_a_planted_layer_has_the_rank_and_the_span_of_its_records(centred: bool) -> None:
    records, others = normal(7, *SHAPE, seed=3), normal(50, *SHAPE, seed=4)
    records = records - records.mean(0) if centred else records
    found = estimate_span(planted(records))
    assert found.rank == 7
    assert found.gap > 1e10
    assert found.basis.shape == (7, 21)
    assert float(found.outside(records).max()) < 1e-25
    assert float(found.outside(records.flip(0)[:1] + 1.0)) > 1e-3  # moved along a direction that no record has
    # of a vector without a direction of its own, 14 of 21 dimensions lie outside
    assert float(found.outside(others).mean()) == pytest.approx(14 / 21, abs=0.1)


def test_the_bias_tells_affine_from_linear_combinations() -> None:
    records = normal(7, *SHAPE, seed=3)
    mean, sum_of_all = records.mean(0, keepdim=True), records.sum(0, keepdim=True)
    biased, plain = estimate_span(planted(records)), estimate_span(planted(records, biased=False))
    assert float(biased.outside(mean)) < 1e-25 < 1e-3 < float(biased.outside(sum_of_all))
    assert max(float(plain.outside(x)) for x in (mean, sum_of_all)) < 1e-25
    assert estimate_span(planted(records - mean, biased=False)).rank == 6  # centred records depend on one another
    assert estimate_span(planted(records - mean)).rank == 7


def test_the_gap_closes_as_noise_rises() -> None:
    records = normal(7, *SHAPE, seed=3)
    gaps = [estimate_span(planted(records, noise=noise)).gap for noise in (1e-8, 1e-6, 1e-4, 1e-2)]
    assert gaps == sorted(gaps, reverse=True)
    assert estimate_span(planted(records, noise=1e-4)).rank == 7
    closed = estimate_span(planted(records, noise=1.0))
    assert closed.rank is None
    with refused("no-gap", "rank"):
        closed.outside(records)


@pytest.mark.parametrize("seed", range(20))
def test_weights_without_records_in_them_have_no_rank(seed: int) -> None:
    model = mlp(SHAPE, 2, hidden=(21,))  # a square layer, whose last value may be tiny
    release = WeightsOnly(model=model, final=initial_params(model, seed=seed), shape=SHAPE, num_classes=2)
    assert estimate_span(release).rank is None


@pytest.mark.parametrize("count", [20, 21, 30])
def test_as_many_records_as_features_say_nothing(count: int) -> None:
    assert estimate_span(planted(normal(count, *SHAPE, seed=5))).rank is None


def test_a_gap_of_the_classes_is_not_one_of_the_records() -> None:
    """Three strong directions, and the records between them and the noise hidden."""
    records = normal(9, *SHAPE, seed=3)
    records[3:] *= 1e-6
    hidden = planted(records, noise=1e-4, biased=False)
    assert estimate_span(replace(hidden, num_classes=2)).rank == 3
    assert estimate_span(replace(hidden, num_classes=3)).rank is None
    assert estimate_span(planted(records, noise=1e-12, biased=False)).rank == 9


def test_features_that_are_always_zero_are_none() -> None:
    """As many records as features that vary: the zero ones leave a gap, which says nothing about records."""
    records = normal(30, *SHAPE, seed=6)
    records[:, :5] = 0
    found = estimate_span(planted(records, noise=1e-9))
    assert found.gap > 1e6
    assert found.rank is None
    assert estimate_span(planted(records[:9], noise=1e-9)).rank == 9


def test_a_rank_that_is_known_needs_no_gap() -> None:
    records, others = normal(7, *SHAPE, seed=3), normal(50, *SHAPE, seed=4)
    noisy = estimate_span(planted(records, noise=0.1), rank=7)
    assert noisy.rank == 7
    assert noisy.gap < 20
    assert float(noisy.outside(records).max()) < float(noisy.outside(others).min())


# Training


@pytest.fixture(scope="module")
def parts() -> Split:
    found = split(load("digits"), private=20, fixed=1, public=0, test=500, seed=0)
    return Split(
        **{name: getattr(found, name).to("cpu", torch.float64) for name in ("private", "fixed", "public", "test")}
    )


def start(model: nn.Module) -> Params:
    return {name: p.double() for name, p in initial_params(model, seed=1).items()}


def released(training: Training, data: Data, *, known_start: bool = False) -> WeightsOnly | FineTuned:
    model = mlp(data.shape, data.num_classes, hidden=(48,), activation=nn.ReLU)
    final = train(training, model, start(model), data, seed=2)
    shown = {"model": model, "final": final, "shape": data.shape, "num_classes": data.num_classes}
    return FineTuned(**shown, initial=start(model), training=training) if known_start else WeightsOnly(**shown)


def test_a_record_lies_in_the_span_of_the_target_that_saw_it_only(parts: Split) -> None:
    one = parts.fixed
    with_it, without = (estimate_span(released(DECAYING, d)) for d in (concat([parts.private, one]), parts.private))
    assert (with_it.rank, without.rank) == (21, 20)
    assert float(with_it.outside(one.x)) < 1e-8
    assert float(without.outside(one.x)) > 1e-3
    assert float(with_it.outside(parts.private.x).max()) < 1e-8


def test_mini_batches_and_momentum_stay_in_the_span(parts: Split) -> None:
    training = replace(DECAYING, epochs=200, batch_size=10)
    assert estimate_span(released(training, parts.private)).rank == 20


def test_first_weights_that_have_not_died_hide_the_span(parts: Split) -> None:
    early = replace(DECAYING, epochs=100)
    assert abs(remaining_fraction(early, 100)) > 1e-3
    assert abs(remaining_fraction(DECAYING, 400)) < 1e-7
    assert estimate_span(released(early, parts.private)).rank is None
    assert estimate_span(released(replace(early, weight_decay=0.0), parts.private)).rank is None


def test_two_checkpoints_need_no_recipe(parts: Split) -> None:
    early = released(replace(DECAYING, epochs=100, weight_decay=0.0), parts.private, known_start=True)
    parts_shown = {name: getattr(early, name) for name in ("model", "final", "shape", "num_classes", "initial")}
    found = estimate_span(FineTunedUnknownRecipe(**parts_shown))
    assert found.rank == estimate_span(early).rank == 20
    assert float(found.outside(parts.private.x).max()) < 1e-8


@pytest.mark.parametrize("weight_decay", [0.0, 0.02])
def test_known_first_weights_are_subtracted(parts: Split, weight_decay: float) -> None:
    early = replace(DECAYING, epochs=100, weight_decay=weight_decay)
    found = estimate_span(released(early, parts.private, known_start=True))
    assert found.rank == 20
    assert float(found.outside(parts.private.x).max()) < 1e-15
    assert float(found.outside(parts.test.x).min()) > 1e-3


def test_weights_that_never_moved_are_refused(parts: Split) -> None:
    with refused("empty", "release"):
        estimate_span(released(Training(epochs=0), parts.private, known_start=True))


def test_steps_of_adam_leave_the_span(parts: Split) -> None:
    adam = Training(optimizer=Adam(lr=1e-2), epochs=100)
    assert estimate_span(released(adam, parts.private, known_start=True)).rank is None


def test_the_remaining_fraction_is_that_of_a_weight_without_gradient() -> None:
    plain = Training(optimizer=SGD(lr=0.1), weight_decay=0.05)
    assert remaining_fraction(plain, 300) == pytest.approx((1 - 0.1 * 0.05) ** 300)
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    heavy = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.05)
    weight.grad = torch.zeros_like(weight)
    for _ in range(300):
        heavy.step()
    assert remaining_fraction(replace(plain, optimizer=SGD(lr=0.1, momentum=0.9)), 300) == pytest.approx(
        float(weight.detach())
    )
    with pytest.raises(BadInput):
        remaining_fraction(replace(plain, optimizer=Adam()), 1)


# Refusals


def test_what_has_no_span_is_refused() -> None:
    model = cnn((1, 10, 10), 2)
    release = WeightsOnly(model=model, final=initial_params(model, seed=0), shape=(1, 10, 10), num_classes=2)
    with refused("unsupported-model", "release"):
        estimate_span(release)
    good = planted(normal(7, *SHAPE, seed=3))
    for weights, code in ((torch.zeros(ROWS, 20), "empty"), (torch.full((ROWS, 20), torch.nan), "not-finite")):
        with refused(code, "release"):
            estimate_span(replace(good, final={"1.weight": weights, "1.bias": torch.zeros(ROWS)}))
    for rank in (0, 21):
        with refused("out-of-range", "rank"):
            estimate_span(good, rank=rank)
    with refused("shape-mismatch", "records"):
        estimate_span(good).outside(torch.zeros(3, 19))
    with pytest.raises(NotEnoughKnowledge):
        estimate_span(object())
