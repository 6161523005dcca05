"""Attacks on a network that normalises its records: what they find is what they find on the folded, equal network."""

from functools import cache

import pytest
import torch
from gradients import assert_exact, release_of, some_digits
from stationary import RECORDS, layers_of, private, release, stationary
from torch import Tensor, nn

from remanence import SGD, Data, Reconstruction, Training, Victim, WeightsOnly, train_victim
from remanence.attacks import GLM, KKT, FirstLayer, Stationarity, Stein, with_search
from remanence.attacks.weights import residual
from remanence.attacks.weights.row_space import RowSpace
from remanence.diagnostics.preflight import run_preflight
from remanence.diagnostics.span import estimate_span
from remanence.models import initial_params, mlp, normalized, normalized_params
from remanence.releases import all_but_one, fine_tuned, weights_only
from remanence.training.losses import CrossEntropy
from remanence.types import Params

MEAN, STD = 0.3, 0.3


def wrapped(model: nn.Module, params: Params, mean: object = MEAN, std: object = STD) -> tuple[nn.Module, Params]:
    net = normalized(model, mean, std)
    return net, normalized_params(net, params)


def folded(params: Params) -> Params:
    """The weights with which the net on records as they are equals the normalised one."""
    weight = params["1.weight"] / STD
    return params | {"1.weight": weight, "1.bias": params["1.bias"] - MEAN * weight.sum(1)}


def doubles(model: nn.Module, seed: int = 0) -> Params:
    return {name: p.double() for name, p in initial_params(model, seed=seed).items()}


@pytest.mark.parametrize(
    ("attack", "activation", "width"),
    [(FirstLayer(), nn.ReLU, 200), (Stein(), nn.ELU, 400), (Stein(), nn.ReLU, 600)],
    ids=["FirstLayer", "Stein, ELU", "Stein, ReLU"],
)
def test_gradients_give_the_records(
    attack: FirstLayer | Stein, activation: type[nn.Module], width: int, digits: Data
) -> None:
    batch = some_digits(digits.to("cpu", torch.float64), 0, 3)
    model = mlp(batch.shape, 10, hidden=(width,), activation=activation)
    params = doubles(model)
    sent = [release_of(*wrapped(model, params), batch, loss=CrossEntropy())]
    sent += [release_of(model, folded(params), batch, loss=CrossEntropy())]
    for each in sent:
        assert_exact(attack.run(each, seed=0), batch)


def test_a_linear_model_gives_its_unknown_record(digits: Data) -> None:
    data = digits.take(slice(0, 30)).to("cpu", torch.float64)
    model = mlp(data.shape, 10, hidden=())
    training = Training(optimizer=SGD(lr=0.05, momentum=0.9), epochs=1500, weight_decay=0.1)
    victim = train_victim(
        *(wrapped(model, doubles(model))[0], training, wrapped(model, doubles(model))[1]),
        data.take(slice(0, 29)),
        data.take(slice(29, 30)),
        seed=0,
    )
    case = all_but_one(victim)
    found = GLM().run(case.release, seed=0)
    torch.testing.assert_close(found.x, case.truth.x, rtol=0.0, atol=1e-6)
    assert found.objective < 1e-6


@cache
def normalised_victim() -> Victim:
    """Five classes of digits, two of each, trained with weight decay until the weights are stationary."""
    data = private(5)
    net, initial = wrapped(model := mlp(data.shape, 5, hidden=(60,), activation=nn.ReLU), doubles(model))
    training = Training(
        optimizer=SGD(lr=0.05, momentum=0.9), epochs=3000, weight_decay=0.02, lr_schedule=((2000, 0.2), (2500, 0.04))
    )
    return train_victim(net, training, initial, data.take(slice(0, 0)), data, seed=0)


def test_the_span_holds_the_records_and_no_others(digits: Data) -> None:
    victim = normalised_victim()
    found = estimate_span(weights_only(victim).release)
    assert found.rank == RECORDS
    others = digits.x[200:400].double()
    assert float(found.outside(victim.private.x).max()) < 1e-6 < 1e-3 < float(found.outside(others).min())


def test_the_span_of_an_update_needs_no_decay(digits: Data) -> None:
    data = some_digits(digits.to("cpu", torch.float64), 20, 14)
    net, initial = wrapped(model := mlp(data.shape, 10, hidden=(60,), activation=nn.ReLU), doubles(model))
    training = Training(optimizer=SGD(lr=0.01), epochs=30, batch_size=4)
    victim = train_victim(net, training, initial, data.take(slice(0, 0)), data, seed=0)
    found = estimate_span(fine_tuned(victim).release, rank=14)
    assert float(found.outside(data.x).max()) < 1e-6 < float(found.outside(digits.x[200:400].double()).min())


@pytest.mark.slow
def test_stationary_weights_give_the_records() -> None:
    victim = normalised_victim()
    assert run_preflight(victim).first_layer_residual < 0.01
    found = Stationarity().run(weights_only(victim).release, seed=0)
    distances = torch.cdist(victim.private.x.flatten(1), found.x.flatten(1)).amin(1)
    others = torch.cdist(victim.private.x.flatten(1), victim.private.x.flatten(1)).fill_diagonal_(9.0).amin(1)
    assert float((distances / others).median()) < 0.6


def test_the_gradient_of_the_stationarity_objective_is_autograds() -> None:
    victim, attack = normalised_victim(), Stationarity()
    shown, generator = weights_only(victim).release, torch.Generator().manual_seed(0)
    grey = attack.preprocessing.grey(shown, victim.final["model.1.weight"])
    assert grey.tolist() == pytest.approx([(0.5 - MEAN) / STD] * 64)
    space = RowSpace.from_layers(layers_of(victim), 0.5, grey, inner=1.0)
    z = 5 * space.coordinates(torch.randn(2, RECORDS, 64, generator=generator, dtype=torch.float64))  # beyond the box
    shifts, reset = [z.new_zeros(2, RECORDS, 60)], torch.ones(2, RECORDS, 1, dtype=torch.bool)
    objective = attack._objective(shown, space, z, shifts, reset, victim.private.y)
    objective.set_progress(0.0)
    leaves = {name: variable.init.clone().requires_grad_() for name, variable in objective.init().items()}
    value, grads = objective.value_and_grad(leaves)
    (expected,) = torch.autograd.grad(value.sum(), [leaves["z"]])
    torch.testing.assert_close(grads["z"], expected, rtol=1e-3, atol=1e-6)


def centred_by_a_buffer() -> WeightsOnly:
    """The network of `release()`, whose mean is subtracted by another layer, from records of images."""
    shown, mean = release(), stationary().final["1.mean"].view(1, 8, 8)
    inner = nn.Sequential(*(layer for k, layer in enumerate(shown.model) if k != 1))
    names = {"2.weight": "1.weight", "2.bias": "1.bias", "4.weight": "3.weight"}
    net = normalized(inner, mean, 1.0)
    final = normalized_params(net, {names[name]: p for name, p in shown.final.items() if name in names})
    return WeightsOnly(model=net, final=final, shape=shown.shape, num_classes=shown.num_classes)


@pytest.mark.parametrize(
    "attack",
    [with_search(KKT(candidates=RECORDS), steps=20), with_search(Stationarity(candidates=RECORDS), steps=20)],
    ids=["KKT", "Stationarity"],
)
def test_a_mean_is_a_normalisation(attack: KKT | Stationarity) -> None:
    found, expected = attack.run(centred_by_a_buffer(), seed=0), attack.run(release(), seed=0)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-5, atol=1e-6)


def test_candidates_of_a_closed_form_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, attack = weights_only(normalised_victim()).release, with_search(KKT(candidates=RECORDS), steps=10)
    expected = attack.run(shown, seed=0)
    monkeypatch.setattr(residual, "layers_of", lambda *_: None)
    assert_same(attack.run(shown, seed=0), expected)


def assert_same(found: Reconstruction, expected: Reconstruction) -> None:
    def flat(each: Reconstruction) -> Tensor:
        return each.x.flatten(1)

    torch.testing.assert_close(flat(found), flat(expected), rtol=1e-4, atol=1e-4)
    assert found.objective == pytest.approx(expected.objective, rel=1e-4)
