"""Records in the rows of a first layer, what else Stationarity compares, its slopes and refusals."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from resting import GREY, RECORDS, at_rest, layers_of, private, release
from torch import nn

from remanence import BadInput, CrossEntropy, Logistic, Training, WeightsOnly, load, train_victim
from remanence.attacks import Stationarity
from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import RowSpace
from remanence.engine.surrogate import Surrogate
from remanence.models import Standardise, initial_params, mlp, torch_params
from remanence.releases import weights_only


def test_the_first_layer_tells_how_many_records_there_were_and_what_they_span() -> None:
    victim, layers = at_rest(), layers_of(at_rest())
    span = RowSpace.of(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert span.centre is None
    x = victim.private.x.flatten(1) - victim.final["1.mean"]
    inside = torch.linalg.lstsq(span.basis.T, x.T).solution.T @ span.basis
    assert (x - inside).norm() < 1e-6 * x.norm()
    z = torch.linalg.lstsq(span.basis.T, x.T).solution.T
    seen = residual.forward(layers, x, None)
    torch.testing.assert_close(residual.forward(span.layers, z, None).logits, seen.logits, rtol=1e-6, atol=1e-6)


def test_records_that_were_not_centred_lie_in_a_plane_that_the_bias_tells() -> None:
    victim, layers = at_rest(centred=False), layers_of(at_rest(centred=False))
    x = victim.private.x.flatten(1)
    span = RowSpace.of(layers, 0.5, GREY)
    assert span.count == RECORDS
    assert span.centre is not None
    assert len(span.basis) == RECORDS - 1
    z = torch.linalg.lstsq(span.basis.T, (x - span.centre).T).solution.T
    torch.testing.assert_close(span.records_at(z), x, rtol=0.0, atol=1e-6)
    seen = residual.forward(layers, x, None)
    torch.testing.assert_close(residual.forward(span.layers, z, None).logits, seen.logits, rtol=1e-6, atol=1e-6)
    beside = torch.linalg.lstsq((x[1:] - x[0]).T, (GREY - x[0])[:, None]).solution[:, 0] @ (x[1:] - x[0]) + x[0]
    torch.testing.assert_close(span.centre, beside, rtol=0.0, atol=1e-5)  # the point of the plane nearest to grey


def test_planted_records_leave_nothing_in_the_plane_of_the_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    x, multipliers = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((6, 20), (6, 15)))
    weight, bias = multipliers.T @ x, multipliers.sum(0)
    layer = residual.Layer(weight=weight, bias=bias, target=weight, bias_target=bias)
    span = RowSpace.of((layer,), 0.5, torch.full((20,), 0.5, dtype=torch.float64))
    assert span.centre is not None
    z = torch.linalg.lstsq(span.basis.T, (x - span.centre).T).solution.T
    torch.testing.assert_close(z @ span.layers[0].weight.T + span.layers[0].bias, x @ weight.T + bias)
    rest = residual.left(span.layers, residual.forward(span.layers, z, None), multipliers)
    assert rest.objective < 1e-20
    silent = replace(layer, bias=torch.zeros_like(bias), bias_target=torch.zeros_like(bias))
    assert RowSpace.of((silent,), 0.5, torch.zeros_like(x[0])).centre is None  # a bias of zeros tells nothing


def test_where_no_gap_tells_the_rank_the_candidates_do() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = residual.layers_of(model, torch_params(model, seed=0), (64,))
    assert layers is not None
    assert len(RowSpace.of(layers, 0.5, GREY.float()).basis) == 40
    assert len(RowSpace.of(layers, 0.5, GREY.float(), most=7).basis) == 7
    assert len(RowSpace.of(layers_of(at_rest()), 0.5, GREY, most=7).basis) == RECORDS - 1  # whose gap is clear


def test_directions_grow_by_equal_ratios_and_those_in_front_read_as_before() -> None:
    model = mlp((64,), 5, hidden=(40,), activation=nn.ReLU)
    layers = residual.layers_of(model, {name: p.double() for name, p in torch_params(model, seed=0).items()}, (64,))
    assert layers is not None
    whole = RowSpace.of(layers, 0.5, GREY)
    parts = list(whole.growing(3))
    assert [len(part.basis) for part in parts] == [10, 20, 40]
    z = torch.randn(3, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z[:, 20:] = 0
    torch.testing.assert_close(parts[1].records_at(z[:, :20]), whole.records_at(z))
    seen, few = (residual.forward(part.layers, z[:, : len(part.basis)], None) for part in (whole, parts[1]))
    torch.testing.assert_close(few.logits, seen.logits)
    every, some = (part.layers[0] for part in (whole, parts[1]))
    assert some.bias_unit / some.unit == pytest.approx(every.bias_unit / every.unit)  # a bias weighs as before
    assert some.unit == pytest.approx(float(every.target[:, :20].square().sum()))
    assert [len(part.basis) for part in whole.growing(1)] == [40]


def test_a_pixel_is_what_random_images_have() -> None:
    span = RowSpace.of(layers_of(at_rest()), 0.5, GREY)
    z = span.coordinates(torch.randn(5000, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert float(z.square().mean().sqrt()) == pytest.approx(span.pixel, rel=0.05)


def test_true_records_are_doubted_less_than_others() -> None:
    victim, attack, digits = at_rest(hidden=(60, 60)), Stationarity(), load("digits")
    span = RowSpace.of(layers_of(victim), 0.5, GREY)
    last = (digits.y < 5).nonzero()[-RECORDS:, 0]
    x = torch.cat([victim.private.x, digits.x[last].double()]).flatten(1) - victim.final["1.mean"]
    z, labels = torch.linalg.lstsq(span.basis.T, x.T).solution.T, torch.cat([victim.private.y, digits.y[last]])
    doubts = []
    for rows in torch.arange(2 * RECORDS).split(RECORDS):
        free = [GREY.new_zeros(1, RECORDS, 60) for _ in range(2)]
        doubts.append(attack._doubt(span, z[None, rows], free, labels[rows])[0])
    assert (doubts[0][:, None] < doubts[1]).double().mean() > 0.95


@pytest.mark.parametrize(("loss", "usual"), [(None, 1.0), (Logistic(), 0.0)], ids=["five classes", "one output"])
def test_inner_layers_are_evened_out_where_classes_pull_apart(loss: Logistic | None, usual: float) -> None:
    shown = weights_only(at_rest(loss, hidden=(40, 30))).release
    attack = Stationarity(candidates=RECORDS, loss=loss or CrossEntropy(), steps=5, restarts=1)
    by_power = {power: replace(attack, inner_whitening=power).run(shown, seed=0).x for power in (None, 0.0, 0.5, 1.0)}
    assert [power for power in (0.0, 0.5, 1.0) if torch.equal(by_power[None], by_power[power])] == [usual]


def test_labels_are_those_that_are_given() -> None:
    shown, search = weights_only(at_rest()).release, Stationarity(steps=3, restarts=1, candidates=RECORDS)
    even, uneven = search.run(shown, seed=0), replace(search, labels=(1,) * RECORDS).run(shown, seed=0)
    assert uneven.y is not None
    assert uneven.y.tolist() == [1] * RECORDS
    assert not torch.equal(even.x, uneven.x)
    with pytest.raises(BadInput, match="`labels` must hold one of"):
        replace(search, labels=(1,)).run(shown, seed=0)


def test_further_rounds_keep_a_share_of_the_candidates() -> None:
    still = Stationarity(steps=1, restarts=1, lr=0.0, spread=0.1)
    once, twice = (replace(still, kept=kept).run(release(), seed=0).x for kept in ((), (0.3,)))
    assert int((once == twice).flatten(1).all(1).sum()) == 3


@pytest.mark.parametrize("hidden", [(40,), (40, 30)], ids=["one hidden layer", "two"])
@pytest.mark.parametrize("centred", [True, False])
def test_the_slopes_of_equilibrium_are_autograds(centred: bool, hidden: tuple[int, ...]) -> None:
    victim, attack = at_rest(centred=centred, hidden=hidden), Stationarity()
    span, generator = RowSpace.of(layers_of(victim), 0.5, GREY, inner=1.0), torch.Generator().manual_seed(0)
    z = span.coordinates(torch.randn(2, RECORDS, 64, generator=generator, dtype=torch.float64))
    z.requires_grad_()
    free = [nn.Parameter(torch.randn(2, RECORDS, h, generator=generator, dtype=torch.float64)) for h in hidden]
    labels = victim.private.y
    alpha = torch.tensor(Surrogate(beta=attack.sharpness).beta_at(0.3) * span.steepness)
    shown = weights_only(victim).release
    objective, of_z, of_free = attack._slopes(shown, span, z, free, labels, alpha, torch.zeros(()))
    by_z, *by_free = torch.autograd.grad(objective.sum(), (z, *free))
    torch.testing.assert_close(of_z, by_z, rtol=1e-3, atol=1e-6)  # autograd takes the step of ReLU, not the gate
    torch.testing.assert_close(of_free, by_free)


def test_layers_between_are_compared_with_their_singular_values_evened_out() -> None:
    layers = layers_of(at_rest(hidden=(40, 30)))
    first, between, last = RowSpace.of(layers, 0.5, GREY, inner=1.0).layers
    assert first.around is None
    assert last.around is None
    values = torch.linalg.svdvals(layers[1].weight)
    half = (RECORDS - 1) // 2
    evened = torch.cat([torch.ones(half).double(), values[half:] / values[half - 1]])
    torch.testing.assert_close(torch.linalg.svdvals(between.target), evened)
    x = torch.randn(RECORDS, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pulls = torch.randn(RECORDS, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert between.around is not None
    one, other = between.around
    torch.testing.assert_close(between.above(pulls).T @ between.below(x), one @ (pulls.T @ x) @ other)


def test_the_slopes_of_the_priors_are_those_of_differences() -> None:
    attack, tv = Stationarity(box=0.3, tv=0.7), torch.tensor(0.7, dtype=torch.float64)
    x = 0.5 + torch.randn(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, slope = attack._priors(x, tv)
    moved = 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    differences = attack._priors(x + moved, tv)[0] - before
    torch.testing.assert_close(differences, (slope * moved).flatten(1).sum(1), rtol=1e-4, atol=0.0)
    box_alone = replace(attack, tv=0.0)._priors(x, tv)[0]
    assert (before > box_alone).all()
    torch.testing.assert_close(attack._priors(x.flatten(2), tv)[0], box_alone)  # rows of a table have no neighbours


def test_equilibrium_refuses_other_nets_and_weights_that_do_not_tell_the_number() -> None:
    data = private(5)
    for activation, what in (
        (nn.ELU, "use KKT: the activation after `1` of the net is ELU"),
        (nn.ReLU, "set `candidates`"),
    ):
        model = mlp(data.shape, 5, hidden=(20,), activation=activation)
        initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
        victim = train_victim(model, Training(epochs=2), initial, data.take([]), data, seed=0)
        with pytest.raises(BadInput, match=what):
            Stationarity(steps=1).run(weights_only(victim).release, seed=0)


HIDDEN = mlp((1, 8, 8), 5, hidden=(20,), activation=nn.ReLU)


@pytest.mark.parametrize(
    "model",
    [
        mlp((1, 8, 8), 5, hidden=()),
        nn.Sequential(Standardise(1), *HIDDEN),
        nn.Sequential(nn.Conv2d(1, 2, 3), *HIDDEN),
        nn.Sequential(*list(HIDDEN)[1:]),
    ],
    ids=["linear", "standardised", "convolution", "not flat"],
)
def test_other_nets_are_refused(model: nn.Module) -> None:
    shown = WeightsOnly(model=model, final=model.state_dict(), shape=(1, 8, 8), num_classes=5)
    with refused("unsupported-model", "release"):
        Stationarity(candidates=5, steps=1).run(shown, seed=0)


def test_a_loss_that_does_not_suit_the_outputs_is_refused() -> None:
    with pytest.raises(BadInput, match=r"CrossEntropy\(\) compares outputs, .* give Logistic\(\) or SquaredError\(\)"):
        Stationarity(steps=1).run(release(Logistic()), seed=0)
    with pytest.raises(BadInput, match=r"Logistic\(\) takes one output, the net has 5: give CrossEntropy\(\)"):
        Stationarity(loss=Logistic(), steps=1).run(release(), seed=0)
    with pytest.raises(BadInput, match=r"`num_classes` of the release must be 5, the number of .* outputs, got 3"):
        Stationarity(steps=1).run(replace(release(), num_classes=3), seed=0)
