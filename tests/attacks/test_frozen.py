"""Layers that a training kept frozen stay frozen in its simulation; torch's own optimizers are the reference."""

import pytest
import torch
from refusals import refused
from simulating import NETS, some
from torch import nn
from torch.func import functional_call

from remanence import SGD, Adam, FineTuned, LocalUpdate, Training
from remanence.attacks import FirstLayer, GradientMatching, Linearised, SimuDy, Simulation, Whitening, with_search
from remanence.auditing.inputs.updates import update_release
from remanence.engine import updated_names
from remanence.models import initial_params
from remanence.releases import Gradient
from remanence.training.optimizers import Optimizer
from remanence.types import Params

EPOCHS, DECAY = 4, 0.01


def tuned(net: str, frozen: tuple[str, ...], optimizer: Optimizer) -> FineTuned:
    """A training by torch of all layers but those whose names begin with `frozen`."""
    data = some(3, side=12)
    model = NETS[net](data)
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    params: Params = {name: nn.Parameter(p.clone()) for name, p in initial.items()}
    trained = [p for name, p in params.items() if not name.startswith(frozen)]
    if isinstance(optimizer, SGD):
        steps = torch.optim.SGD(trained, lr=optimizer.lr, momentum=optimizer.momentum, weight_decay=DECAY)
    else:
        steps = torch.optim.Adam(trained, lr=optimizer.lr, weight_decay=DECAY)
    for _ in range(EPOCHS):
        steps.zero_grad()
        nn.functional.cross_entropy(functional_call(model, params, (data.x,)), data.y).backward()
        steps.step()
    return FineTuned(
        model=model,
        final={name: p.detach() for name, p in params.items()},
        shape=data.shape,
        num_classes=10,
        initial=initial,
        training=Training(optimizer=optimizer, epochs=EPOCHS, weight_decay=DECAY),
    )


CASES = [("mlp with relu", ("1.",)), ("mlp with elu", ("1.",)), ("mlp with relu", ("3.",)), ("cnn", ("0.", "2."))]


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), Adam(lr=0.01)], ids=["SGD", "Adam"])
@pytest.mark.parametrize(("net", "frozen"), CASES)
def test_the_true_records_lead_to_the_final_weights(net: str, frozen: tuple[str, ...], optimizer: Optimizer) -> None:
    release, data = tuned(net, frozen, optimizer), some(3, side=12)
    names = updated_names(release.model, release.initial, release.final)
    assert set(names) == {name for name in release.initial if not name.startswith(frozen)}
    unrolled = Simulation(clip=None).unrolled(
        release, data.x, data.y, distance=None, in_basis="auto", surrogate="auto", seed=0
    )
    weights, _ = unrolled(data.x, data.y)
    assert set(weights) == set(names)
    for name, value in weights.items():
        torch.testing.assert_close(value, release.final[name], rtol=1e-6, atol=1e-9)


def test_attacks_run_and_say_what_frozen_layers_forbid() -> None:
    release = tuned("mlp with relu", ("1.",), SGD(lr=0.1))
    for attack in (SimuDy(candidates=3), Linearised(candidates=3)):
        found = with_search(attack, steps=3).run(release, seed=0)
        assert found.x.shape == (3, 1, 12, 12)
        assert found.x.isfinite().all()
    with refused("unsupported-model", "whitening"):
        with_search(SimuDy(candidates=3, whitening=Whitening()), steps=1).run(release, seed=0)


def test_updates_of_a_head_are_simulated_as_such() -> None:
    release, data = tuned("mlp with relu", ("1.",), SGD(lr=0.1)), some(3, side=12)
    shown = update_release(
        release.model,
        release.initial,
        release.final,
        release.training,
        batch_size=3,
        shape=release.shape,
        num_classes=10,
    ).release
    assert isinstance(shown, LocalUpdate)
    assert set(shown.update) == {"3.weight", "3.bias"}
    for name, sent in shown.simulate(data.x, data.y).items():
        torch.testing.assert_close(sent, shown.sent[name], rtol=1e-6, atol=1e-9)
    found = with_search(GradientMatching(), steps=3).run(shown, seed=0)
    assert found.x.shape == data.x.shape
    gradient = Gradient(
        model=shown.model,
        at=shown.at,
        gradient=shown.sent,
        labels=None,
        batch_size=3,
        shape=shown.shape,
        loss=shown.loss,
    )
    with refused("unsupported-training", "release"):
        FirstLayer().run(gradient, seed=0)
