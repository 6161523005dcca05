"""Converged models, made by L-BFGS and Newton steps and by our own training, give their unknown record away exactly."""

import dataclasses

import pytest
import torch
from refusals import refused
from torch import Tensor, nn
from torch.func import grad, jacrev
from torch.nn.functional import cross_entropy

from remanence import (
    DPGD,
    SGD,
    AdamW,
    AllButOne,
    AllButOneUnknownInit,
    CrossEntropy,
    Data,
    Logistic,
    SquaredError,
    Training,
    train_victim,
)
from remanence.attacks.one_unknown.glm import GLM
from remanence.data import Split
from remanence.models import initial_params, mlp, torch_params
from remanence.releases import all_but_one


def release_of(fixed: Data, target: Data, weight_decay: float) -> AllButOne:
    """The minimiser of mean cross-entropy + weight_decay/2 |theta|^2, intercept included: L-BFGS, then Newton."""
    x, y = torch.cat([fixed.x, target.x]).flatten(1), torch.cat([fixed.y, target.y])
    num_classes = target.num_classes

    def loss(theta: Tensor) -> Tensor:
        weight, bias = theta.reshape(num_classes, 65).split([64, 1], dim=1)
        return cross_entropy(x @ weight.T + bias[:, 0], y) + weight_decay / 2 * theta.square().sum()

    theta = torch.zeros(num_classes * 65, dtype=x.dtype, requires_grad=True)
    search = torch.optim.LBFGS([theta], max_iter=200, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        theta.grad = grad(loss)(theta.detach())
        return loss(theta.detach())

    search.step(step)
    best = theta.detach()
    for _ in range(3):
        best = best - torch.linalg.solve(jacrev(grad(loss))(best), grad(loss)(best))
    weight, bias = best.reshape(num_classes, 65).split([64, 1], dim=1)
    final = {"1.weight": weight, "1.bias": bias[:, 0]}
    return AllButOne(
        model=mlp(target.shape, num_classes, hidden=()),
        final=final,
        shape=target.shape,
        num_classes=num_classes,
        initial={name: torch.zeros_like(p) for name, p in final.items()},
        training=Training(weight_decay=weight_decay),
        fixed=fixed,
    )


def exact(data: Data) -> Data:
    return data.to("cpu", torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "weight_decay"), [(10, 1e-1), (10, 1e-2), (10, 1e-3), (2, 1e-2)])
def test_the_unknown_record_of_a_minimiser_is_exact(parts: Split, classes: int, weight_decay: float) -> None:
    fixed, private = (
        dataclasses.replace(exact(data), y=data.y % classes, num_classes=classes)
        for data in (parts.fixed, parts.private)
    )
    for k in range(3):
        target = private.take(slice(k, k + 1))
        found = GLM().run(release_of(fixed, target, weight_decay), seed=0)
        assert (found.x - target.x).abs().max() < 1e-6
        assert found.y.tolist() == target.y.tolist()
        assert found.objective < 1e-6


def trained(parts: Split, dtype: torch.dtype, epochs: int) -> tuple[float, float]:
    """The largest error of a pixel and the objective, for a victim of our own training."""
    fixed, target = (data.to("cpu", dtype) for data in (parts.fixed, parts.private.take(slice(0, 1))))
    model = mlp(fixed.shape, 10, hidden=())
    initial = {name: p.to(dtype) for name, p in initial_params(model, seed=0).items()}
    training = Training(optimizer=SGD(lr=0.5, momentum=0.9), epochs=epochs, weight_decay=1e-2)
    found = GLM().run(all_but_one(train_victim(model, training, initial, fixed, target, seed=0)).release, seed=0)
    assert found.objective is not None
    return float((found.x - target.x).abs().max()), found.objective


def test_the_objective_is_small_at_a_stationary_point_alone(parts: Split) -> None:
    error, objective = trained(parts, torch.float64, 600)
    assert error < 1e-6
    assert objective < 1e-5
    error, objective = trained(parts, torch.float32, 600)
    assert error < 1e-3
    assert objective < 1e-3
    error, objective = trained(parts, torch.float64, 20)
    assert error > 0.1
    assert objective > 0.1


def test_what_has_no_closed_form_is_refused(parts: Split) -> None:
    target = parts.private.take(slice(0, 1))
    release = release_of(exact(parts.fixed), exact(target), 1e-1)
    deep = mlp(target.shape, 10)
    with torch.device("meta"):
        headless = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    for model in (deep, headless, deep[1]):
        with refused("unsupported-model", "release"):
            GLM().run(dataclasses.replace(release, model=model), seed=0)
    for training in (
        Training(batch_size=10),
        Training(privacy=DPGD(clip=1.0, noise=1.0)),
        Training(optimizer=AdamW()),
        Training(loss=lambda logits, labels: logits.mean()),
    ):
        with refused("unsupported-training", "release"):
            GLM().run(dataclasses.replace(release, training=training), seed=0)
    full = dataclasses.replace(release, training=Training(batch_size=len(parts.fixed) + 1, weight_decay=1e-1))
    assert torch.equal(GLM().run(full, seed=0).x, GLM().run(release, seed=0).x)


def normalised(features: int, outputs: int) -> nn.Module:
    """One linear layer after a normalisation by buffers."""

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(features))
            self.register_buffer("std", torch.ones(features))
            self.linear = nn.Linear(features, outputs)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.linear((x - self.mean) / self.std)
            return logits

    with torch.device("meta"):
        return Normalised()


@pytest.mark.parametrize("decay_biases", [False, True])
@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic(), SquaredError(values=(0.0, 3.0))])
def test_one_output_and_undecayed_intercepts_of_our_own_training(
    loss: CrossEntropy | Logistic | SquaredError, decay_biases: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(41, 5, generator=generator, dtype=torch.float64)
    data = Data(x=x, y=(x[:, 0] + 0.3 * torch.rand(41, generator=generator) > 0.6).long(), num_classes=2)
    fixed, target = data.take(slice(0, 40)), data.take(slice(40, 41))
    model = normalised(5, 2 if isinstance(loss, CrossEntropy) else 1)
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    initial |= {"mean": x.mean(0), "std": x.std(0)}
    training = Training(
        optimizer=SGD(lr=0.2, momentum=0.9), epochs=1000, weight_decay=0.05, decay_biases=decay_biases, loss=loss
    )
    shown = all_but_one(train_victim(model, training, initial, fixed, target, seed=0)).release
    found = GLM().run(shown, seed=0)
    assert (found.x - target.x).abs().max() < 1e-6
    assert found.y.tolist() == target.y.tolist()
    assert found.objective < 1e-6
    other = dataclasses.replace(shown, training=dataclasses.replace(training, decay_biases=not decay_biases))
    assert (GLM().run(other, seed=0).x - target.x).abs().max() > 1e-3


def test_initial_weights_need_not_be_known(parts: Split) -> None:
    target = exact(parts.private.take(slice(0, 1)))
    shown = release_of(exact(parts.fixed), target, 1e-1)
    fields = {f.name: getattr(shown, f.name) for f in dataclasses.fields(shown) if f.name != "initial"}
    assert torch.equal(GLM().run(AllButOneUnknownInit(**fields), seed=0).x, GLM().run(shown, seed=0).x)
