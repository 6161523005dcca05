"""Images from the weights of a CNN: the objective against autograd, a victim trained until stationary, refusals."""

from functools import cache
from math import inf

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import minimize_scalar
from stationary import private
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

from remanence import SGD, Data, Training, Victim, WeightsOnly, load, train_victim
from remanence.attacks import LBFGS, ConvStationarity, TotalVariation, with_search
from remanence.attacks.weights import residual
from remanence.attacks.weights.features import ExplainedHead, unexplained
from remanence.attacks.weights.row_space import RowSpace
from remanence.diagnostics import run_preflight
from remanence.metrics import SSIM, evaluate
from remanence.models import apply, initial_params, mlp, resnet, torch_params
from remanence.releases import split_release, weights_only
from remanence.types import Params

SHAPE, RECORDS = (1, 8, 8), 10


def network(*head: nn.Module, bias: bool = True) -> nn.Sequential:
    """Two convolutions, and by default two fully connected layers."""
    head = head or (nn.Flatten(), nn.Linear(512, 60, bias=bias), nn.ReLU(), nn.Linear(60, 5, bias=bias))
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()), *head
    ).to("meta")


@cache
def stationary() -> Victim:
    """Ten digits of five classes, and a CNN that is trained on them until it is stationary."""
    data, model = private(5), network()
    training = Training(
        optimizer=SGD(lr=0.05, momentum=0.9),
        epochs=4000,
        weight_decay=0.01,
        lr_schedule=((1600, 0.3), (2400, 0.1), (3000, 0.02), (3500, 0.002)),
    )
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    return train_victim(model, training, initial, data.take(slice(0, 0)), data, seed=0)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def objective(release: WeightsOnly, attack: ConvStationarity, x: Tensor, labels: Tensor) -> ExplainedHead:
    parts = split_release(release)
    layers = residual.layers_of(parts.head.model, parts.head.final, parts.head.shape)
    assert layers is not None
    space = RowSpace.from_layers(layers, attack.whitening, torch.zeros(parts.head.shape).double(), max_rank=None)
    made = ExplainedHead(
        attack=attack,
        release=release,
        backbone=parts.backbone,
        space=space,
        labels=labels,
        initial=x[None],
        beta=x.new_zeros(()),
        late=x.new_zeros(()),
    )
    made.set_progress(1.0)
    return made


def explained(model: nn.Module, final: Params, x: Tensor, labels: Tensor) -> Params:
    """The negated gradient of the summed loss by the fully connected layers, by autograd through all of the network."""
    leaves = {name: final[name].clone().requires_grad_() for name in ("5.weight", "7.weight")}
    loss = cross_entropy(apply(model, final | leaves, x), labels, reduction="sum")
    return {name: -g for name, g in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)}


def planted(x: Tensor, labels: Tensor, *, noise: float = 0.0) -> WeightsOnly:
    """A network whose first fully connected layer is a sum over the features of `x`, and noise."""
    model = network(bias=False)
    final = {name: p.double() for name, p in torch_params(model, seed=1).items()}
    found = explained(model, final, x, labels)
    norm = final["5.weight"].norm() / found["5.weight"].norm()
    final["5.weight"] = norm * found["5.weight"] + noise * final["5.weight"]
    return WeightsOnly(model=model, final=final, shape=SHAPE, num_classes=5)


def value_at(release: WeightsOnly, attack: ConvStationarity, x: Tensor, progress: float = 1.0) -> float:
    made = objective(release, attack, x, torch.arange(5))
    made.set_progress(progress)
    value, grads = made.value_and_grad({name: v.init for name, v in made.init().items()})
    assert grads.keys() == {"x", "shift 0"}
    return float(value)


def test_candidates_without_a_gradient_explain_nothing() -> None:
    space = objective(planted(images(5), torch.arange(5)), ConvStationarity(), images(5), torch.arange(5)).space
    inputs = [images(2)[:, 0, :5, :1].expand(2, 5, layer.weight.shape[1]) for layer in space.layers]
    deltas = [torch.zeros(2, 5, len(layer.weight)).double().requires_grad_() for layer in space.layers]
    value = unexplained(space, inputs, deltas, torch.zeros(2, 5, space.basis.shape[1]).double(), span=1.0)
    total = sum(float(layer.target.square().sum()) / layer.scale for layer in space.layers)
    assert value.tolist() == pytest.approx([total, total])
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(value.sum(), deltas))


def test_the_objective_is_what_the_gradients_of_the_loss_leave_of_the_fully_connected_layers() -> None:
    x, labels = images(5), torch.arange(5)
    release = planted(x, labels, noise=0.2)  # all 60 rows are independent
    attack = ConvStationarity(whitening=0.0, span=1.0, beta=(1e9, 1e9))  # ReLU's own derivative, all of the rows
    for records in (x, (x + 0.2 * images(5, seed=1)).clamp(0, 1)):
        gradient = explained(release.model, release.final, records, labels)

        def left(factor: float, gradient: Params = gradient) -> float:
            parts = [(release.final[name], g) for name, g in gradient.items()]
            return sum(float((w - factor * g).square().sum() / w.square().sum()) for w, g in parts)

        best = minimize_scalar(left, bounds=(0, 1e3), method="bounded", options={"xatol": 1e-10})
        assert best.fun < 0.95 * left(0)
        np.testing.assert_allclose(value_at(release, attack, records), best.fun, rtol=1e-6)


def test_what_is_outside_the_span_counts_and_the_total_variation_late() -> None:
    x, labels = images(5), torch.arange(5)
    release = planted(x, labels)

    def value(x: Tensor, span: float, weight: float = 0.0, progress: float = 1.0) -> float:
        attack = ConvStationarity(whitening=0.0, span=span, prior=TotalVariation(weight=weight))
        return value_at(release, attack, x, progress)

    assert value(x, 0.0) == pytest.approx(value(x, 1e3), rel=1e-6)
    others = (x + 0.2 * images(5, seed=1)).clamp(0, 1)
    assert value(others, 1e3) > 1.02 * value(others, 0.0)
    rough = (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()).item()
    assert value(x, 1.0, weight=0.2) - value(x, 1.0) == pytest.approx(0.2 * rough, rel=1e-6)
    assert value(x, 1.0, weight=0.2, progress=0.4) == value(x, 1.0, progress=0.4)


@pytest.mark.slow
def test_the_features_of_the_records_meet_the_conditions_of_a_stationary_mlp() -> None:
    victim = stationary()
    parts = split_release(weights_only(victim).release)

    def head_victim(x: Tensor) -> Victim:
        data = Data(x=parts.backbone.embed(x), y=victim.private.y, num_classes=5, bounds=(0.0, inf))
        return Victim(
            model=parts.head.model,
            training=victim.training,
            initial=parts.head.final,
            final=parts.head.final,
            fixed=data.take(slice(0, 0)),
            private=data,
        )

    digits = load("digits")
    others = torch.cat([digits.x[digits.y == label][-2:] for label in range(5)]).double()
    truth, chance = (run_preflight(head_victim(x)) for x in (victim.private.x, others))
    assert truth.first_layer_residual < 0.1
    assert chance.first_layer_residual > 0.5


@pytest.mark.slow
def test_digits_come_back_from_the_weights_of_a_cnn() -> None:
    """By all records together: how many of ten are listed turns with the machine's rounding."""
    case = weights_only(stationary())
    attack = with_search(ConvStationarity(candidates=RECORDS), steps=2000)
    found = attack.run(case.release, seed=0)
    digits = load("digits")
    unrelated = Data(x=digits.x[-500:].double(), y=digits.y[-500:], num_classes=10)
    few = unrelated.take(unrelated.y < 5)
    scores = evaluate(found, case.truth, unrelated=Data(x=few.x, y=few.y, num_classes=5), metrics=(SSIM,), seed=0)
    assert scores.test.together < 1e-3
    assert scores.means[SSIM.name].low > float(scores.nulls["unrelated"].values[SSIM.name].mean())


def released(model: nn.Module, shape: tuple[int, ...] = SHAPE, classes: int = 5) -> WeightsOnly:
    return WeightsOnly(model=model, final=initial_params(model, seed=0), shape=shape, num_classes=classes)


def pooled() -> nn.Sequential:
    """Fully connected layers on pooled records: no weights before the first of them, and no MLP."""
    return nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 5)).to("meta")


def tied() -> nn.Sequential:
    """An MLP of which two layers have one matrix of weights: neither an MLP here, nor are there convolutions."""
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    layers[2].weight = layers[0].weight
    return nn.Sequential(nn.Flatten(), *layers)


def test_images_are_searched_through_layers_without_weights() -> None:
    attack = with_search(ConvStationarity(candidates=4), steps=2, restarts=1)
    found = attack.run(released(pooled()), seed=0)
    assert found.x.shape == (4, *SHAPE)
    parts = split_release(released(pooled()))
    x = images(3).float()
    assert torch.equal(parts.backbone.embed(x), max_pool2d(x, 2).flatten(1))
    assert parts.backbone.params == {}


REFUSED = {
    "one linear layer": (
        network(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
        "5 combinations of the records' 8 features (rank at most 5)",
    ),
    "ResNet": (resnet(SHAPE, 5, blocks=(1,), width=4), "rank at most 5"),
    "MLP": (mlp(SHAPE, 5, activation=nn.ReLU), "use Stationarity"),
    "tanh": (network(nn.Flatten(), nn.Linear(512, 6), nn.Tanh(), nn.Linear(6, 5)), "Tanh"),
    "norm": (
        network(nn.Flatten(), nn.Linear(512, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5)).eval(),
        "BatchNorm `6` after `5`",
    ),
    "tied": (tied(), "`3.weight` is shared by two layers"),
}


@pytest.mark.parametrize(("model", "reason"), REFUSED.values(), ids=REFUSED)
def test_networks_that_do_not_tell_records_are_refused_with_the_reason(model: nn.Module, reason: str) -> None:
    with refused("unsupported-model", "release") as refusal:
        ConvStationarity(candidates=4).run(released(model), seed=0)
    assert reason in str(refusal.value)


def test_settings_that_do_not_fit_are_refused() -> None:
    with refused("wrong-type", "optimizer"):
        with_search(ConvStationarity(), optimizer=LBFGS())
    with refused("not-enough-knowledge", "candidates"):
        ConvStationarity().run(released(network()), seed=0)
    with refused("shape-mismatch", "labels"):
        ConvStationarity(candidates=4, labels=(0, 1)).run(released(network()), seed=0)
