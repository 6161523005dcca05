"""Records in the rows of a first layer, what else Stationarity compares, its slopes and refusals."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from stationary import GREY, RECORDS, layers_of, private, release, stationary
from torch import nn

from remanence import Adam, CrossEntropy, Logistic, WeightsOnly
from remanence.attacks import LBFGS, ImagePrior, Powers, Rounds, ShiftedSurrogate, Stationarity, with_search
from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import RowSpace, likely_count
from remanence.models import initial_params, mlp, torch_params
from remanence.releases import weights_only


def test_the_first_layer_tells_how_many_records_there_were_and_what_they_span() -> None:
    victim, layers = stationary(), layers_of(stationary())
    span = RowSpace.from_layers(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert span.centre is None
    x = victim.private.x.flatten(1) - victim.final["1.mean"]
    inside = torch.linalg.lstsq(span.basis.T, x.T).solution.T @ span.basis
    assert (x - inside).norm() < 1e-6 * x.norm()
    z = torch.linalg.lstsq(span.basis.T, x.T).solution.T
    activations = residual.forward(layers, x, None)
    torch.testing.assert_close(residual.forward(span.layers, z, None).logits, activations.logits, rtol=1e-6, atol=1e-6)


def test_records_that_were_not_centred_lie_in_a_plane_that_the_bias_tells() -> None:
    victim, layers = stationary(centred=False), layers_of(stationary(centred=False))
    x = victim.private.x.flatten(1)
    span = RowSpace.from_layers(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert len(span.basis) == RECORDS - 1
    z = torch.linalg.lstsq(span.basis.T, (x - span.centre).T).solution.T
    torch.testing.assert_close(span.records(z), x, rtol=0.0, atol=1e-6)
    activations = residual.forward(layers, x, None)
    torch.testing.assert_close(residual.forward(span.layers, z, None).logits, activations.logits, rtol=1e-6, atol=1e-6)
    beside = torch.linalg.lstsq((x[1:] - x[0]).T, (GREY - x[0])[:, None]).solution[:, 0] @ (x[1:] - x[0]) + x[0]
    torch.testing.assert_close(span.centre, beside, rtol=0.0, atol=1e-5)  # the point of the plane nearest to grey


def test_where_no_gap_tells_the_rank_the_candidates_do() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = residual.layers_of(model, torch_params(model, seed=0), (64,))
    assert len(RowSpace.from_layers(layers, 0.5, GREY.float()).basis) == 40
    assert len(RowSpace.from_layers(layers, 0.5, GREY.float(), max_rank=7).basis) == 7
    assert (
        len(RowSpace.from_layers(layers_of(stationary()), 0.5, GREY, max_rank=7).basis) == RECORDS - 1
    )  # whose gap is clear


def test_more_candidates_than_records_where_noise_hides_the_rank() -> None:
    """Planted: directions of known size in noise whose largest singular value is known."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.01 * torch.randn(200, 300, generator=generator)
    edge = 0.01 * (200**0.5 + 300**0.5)
    left, right = (torch.linalg.qr(torch.randn(side, 60, generator=generator))[0] for side in (200, 300))
    for directions, expected in ((6, 18), (10, 30), (60, 100)):  # at most half of the rows
        values = edge * torch.linspace(2, 6, directions)
        assert likely_count(left[:, :directions] * values @ right[:, :directions].T + noise) == expected
    assert likely_count(noise) is None


def test_directions_grow_by_equal_ratios_and_those_in_front_read_as_before() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = residual.layers_of(model, {name: p.double() for name, p in torch_params(model, seed=0).items()}, (64,))
    whole = RowSpace.from_layers(layers, 0.5, GREY)
    parts = list(whole.curriculum(3))
    assert [len(part.basis) for part in parts] == [10, 20, 40]
    z = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, 20:] = 0
    torch.testing.assert_close(parts[1].records(z[:, :20]), whole.records(z))
    activations, few = (residual.forward(part.layers, z[:, : len(part.basis)], None) for part in (whole, parts[1]))
    torch.testing.assert_close(few.logits, activations.logits)
    every, some = (part.layers[0] for part in (whole, parts[1]))
    assert some.bias_scale / some.scale == pytest.approx(every.bias_scale / every.scale)  # a bias weighs as before
    assert some.scale == pytest.approx(float(every.target[:, :20].square().sum()))
    assert [len(part.basis) for part in whole.curriculum(1)] == [40]


@pytest.mark.parametrize(("loss", "usual"), [(None, 1.0), (Logistic(), 0.0)], ids=["five classes", "one output"])
def test_inner_layers_are_whitened_where_there_are_several_classes(loss: Logistic | None, usual: float) -> None:
    shown = weights_only(stationary(loss, hidden=(40, 30))).release
    attack = with_search(Stationarity(candidates=RECORDS, loss=loss or CrossEntropy()), steps=200, restarts=1)
    by_power = {
        power: replace(attack, whitening=Powers(inner=power)).run(shown, seed=0).x for power in (None, 0.0, 0.5, 1.0)
    }
    assert [power for power in (0.0, 0.5, 1.0) if torch.equal(by_power[None], by_power[power])] == [usual]


def test_labels_are_those_that_are_given() -> None:
    shown, search = (
        weights_only(stationary()).release,
        with_search(Stationarity(candidates=RECORDS), steps=3, restarts=1),
    )
    even, uneven = search.run(shown, seed=0), replace(search, labels=(1,) * RECORDS).run(shown, seed=0)
    assert uneven.y.tolist() == [1] * RECORDS
    assert not torch.equal(even.x, uneven.x)
    with refused("shape-mismatch", "labels"):
        replace(search, labels=(1,)).run(shown, seed=0)


def test_further_rounds_keep_a_share_of_the_candidates() -> None:
    still = with_search(Stationarity(init_std=0.1), steps=1, restarts=1, optimizer=Adam(lr=0.0))
    once, twice = (
        replace(still, rounds=Rounds(keep_fractions=fractions)).run(release(), seed=0).x for fractions in ((), (0.3,))
    )
    assert int((once == twice).flatten(1).all(1).sum()) == 3


def test_the_candidates_of_the_best_restarts_are_returned() -> None:
    search = with_search(Stationarity(candidates=RECORDS), steps=5, restarts=3)
    one, two, all_of_them = (replace(search, rounds=Rounds(returned=n)).run(release(), seed=0) for n in (1, 2, 9))
    assert [len(each.x) for each in (one, two, all_of_them)] == [RECORDS, 2 * RECORDS, 3 * RECORDS]
    torch.testing.assert_close(one.x, two.x[:RECORDS])
    assert two.y is not None
    assert one.y is not None
    assert two.y.tolist() == 2 * one.y.tolist()
    assert one.objective == two.objective == all_of_them.objective


@pytest.mark.parametrize("hidden", [(40,), (40, 30)], ids=["one hidden layer", "two"])
@pytest.mark.parametrize("centred", [True, False])
def test_the_gradients_of_the_objective_are_autograds(centred: bool, hidden: tuple[int, ...]) -> None:
    victim, attack = stationary(centred=centred, hidden=hidden), Stationarity()
    space, generator = RowSpace.from_layers(layers_of(victim), 0.5, GREY, inner=1.0), torch.Generator().manual_seed(0)
    z = space.coordinates(torch.randn(2, RECORDS, 64, generator=generator, dtype=torch.float64))
    shifts = [torch.randn(2, RECORDS, h, generator=generator, dtype=torch.float64) for h in hidden]
    reset = torch.ones(2, RECORDS, 1, dtype=torch.bool)
    objective = attack._objective(weights_only(victim).release, space, z, shifts, reset, victim.private.y)
    objective.set_progress(0.6)
    leaves = {name: variable.init.clone().requires_grad_() for name, variable in objective.init().items()}
    value, grads = objective.value_and_grad(leaves)
    expected = dict(zip(leaves, torch.autograd.grad(value.sum(), list(leaves.values())), strict=True))
    # autograd takes ReLU's own derivative, not the surrogate
    torch.testing.assert_close(grads.pop("z"), expected.pop("z"), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(grads, expected)


@pytest.mark.parametrize("scale", [30.0, 300.0, 1000.0])
def test_candidates_that_are_classified_with_certainty_have_finite_gradients(scale: float) -> None:
    """Their errors are below what float32 can hold, and tempered to the norm of all others."""
    victim, generator = stationary(hidden=(40, 30)), torch.Generator().manual_seed(0)
    space = RowSpace.from_layers(layers_of(victim), 0.5, GREY, inner=1.0).to_float32()
    z = scale * space.coordinates(torch.randn(1, RECORDS, 64, generator=generator))
    logits = residual.forward(space.layers, z, torch.full_like(z[..., :1], 40.0)).logits
    shifts = [torch.zeros(1, RECORDS, h) for h in (40, 30)]
    reset = torch.ones(1, RECORDS, 1, dtype=torch.bool)
    shown = weights_only(victim).release
    objective = Stationarity()._objective(shown, space, z, shifts, reset, logits[0].argmax(1))
    for progress in (0.0, 0.25, 0.5):
        objective.set_progress(progress)
        value, grads = objective.value_and_grad({name: each.init for name, each in objective.init().items()})
        assert value.isfinite().all()
        assert all(grad.isfinite().all() for grad in grads.values())


def test_layers_between_are_compared_with_their_singular_values_evened_out() -> None:
    layers = layers_of(stationary(hidden=(40, 30)))
    first, between, last = RowSpace.from_layers(layers, 0.5, GREY, inner=1.0).layers
    assert first.whitening is None
    assert last.whitening is None
    values = torch.linalg.svdvals(layers[1].weight)
    half = (RECORDS - 1) // 2
    evened = torch.cat([torch.ones(half).double(), values[half:] / values[half - 1]])
    torch.testing.assert_close(torch.linalg.svdvals(between.target), evened)
    x = torch.randn(RECORDS, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pulls = torch.randn(RECORDS, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert between.whitening is not None
    one, other = between.whitening
    torch.testing.assert_close(between.whiten_deltas(pulls).T @ between.whiten_inputs(x), one @ (pulls.T @ x) @ other)


def test_the_gradient_of_the_prior_is_that_of_differences() -> None:
    shown, labels, generator = release(), private(5).y, torch.Generator().manual_seed(0)
    space = RowSpace.from_layers(layers_of(stationary()), 0.5, GREY)
    z = 3 * space.coordinates(torch.randn(2, RECORDS, 64, generator=generator, dtype=torch.float64))
    reset, values = torch.ones(2, RECORDS, 1, dtype=torch.bool), {}
    step = 1e-6 * torch.randn(z.shape, generator=generator, dtype=torch.float64)
    for prior in (ImagePrior(), ImagePrior(box=30.0), ImagePrior(box=30.0, total_variation=70.0)):
        attack = Stationarity(prior=prior, surrogate=ShiftedSurrogate(beta=(1e6, 1e6)))
        objective = attack._objective(shown, space, z, [z.new_zeros(2, RECORDS, 40)], reset, labels)
        objective.set_progress(1.0)
        variables = {name: variable.init for name, variable in objective.init().items()}
        values[prior], grads = objective.value_and_grad(variables)
        difference = objective.value_and_grad(variables | {"z": z + step})[0] - values[prior]
        torch.testing.assert_close(difference, (grads["z"] * step).flatten(1).sum(1), rtol=1e-3, atol=1e-9)
    plain, box, both = values.values()
    assert (plain < box).all()
    assert (box < both).all()


HIDDEN = mlp((1, 8, 8), 5, hidden=(20,), activation=nn.ReLU)
SHORT = with_search(Stationarity(candidates=5), steps=1)


@pytest.mark.parametrize(
    "model",
    [
        mlp((1, 8, 8), 5, hidden=()),
        mlp((1, 8, 8), 5, hidden=(20,), activation=nn.Hardswish),
        nn.Sequential(nn.Conv2d(1, 2, 3), *HIDDEN),
    ],
    ids=["linear", "hardswish", "convolution"],
)
def test_other_networks_are_refused(model: nn.Module) -> None:
    shown = WeightsOnly(model=model, final=model.state_dict(), shape=(1, 8, 8), num_classes=5)
    with refused("unsupported-model", "release"):
        SHORT.run(shown, seed=0)


def test_weights_that_were_not_trained_do_not_give_the_number_of_records() -> None:
    data = private(5)
    model = mlp(data.shape, 5, hidden=(20,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    shown = WeightsOnly(model=model, final=initial, shape=data.shape, num_classes=5)
    with refused("not-enough-knowledge", "candidates"):
        replace(SHORT, candidates=None).run(shown, seed=0)


def test_a_loss_that_does_not_suit_the_outputs_is_refused() -> None:
    for loss, shown in ((CrossEntropy(), release(Logistic())), (Logistic(), release())):
        with refused("conflict", "loss"):
            replace(SHORT, loss=loss).run(shown, seed=0)
    with refused("shape-mismatch", "num_classes"):
        SHORT.run(replace(release(), num_classes=3), seed=0)
    with refused("wrong-type", "optimizer"):
        with_search(SHORT, optimizer=LBFGS())
