"""Features of convolutional clients: from the gradient of linear layers exactly, and matched beside the gradient."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from gradients import assert_exact, release_of, some_digits
from refusals import refused
from torch import Tensor, nn

from remanence import SGD, Data, Training, Victim
from remanence.attacks import FirstLayer, GradientMatching, TotalVariation, with_search
from remanence.models import initial_params, mlp, resnet
from remanence.releases import Gradient, gradient_at_initial, local_update, split_gradient
from remanence.training import CrossEntropy
from remanence.types import Params


def convolutional(hidden: tuple[int, ...] = (), *, norm: bool = False) -> nn.Sequential:
    with torch.device("meta"):
        sizes = [72, *hidden, 10]
        linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        dense = [layer for each in linear for layer in (each, nn.ReLU())][:-1]
        norms = [nn.BatchNorm2d(8)] if norm else []
        convolution = nn.Conv2d(1, 8, 3, stride=2)
        return nn.Sequential(convolution, *norms, nn.Sigmoid(), nn.Flatten(), *dense)


def weights(model: nn.Module, dtype: torch.dtype = torch.float64) -> Params:
    return {name: p.to(dtype) for name, p in initial_params(model, seed=0).items()}


def features_of(model: nn.Sequential, at: Params, x: Tensor) -> Tensor:
    """By torch, without our code."""
    real = nn.Sequential(*model[: [type(layer) for layer in model].index(nn.Flatten) + 1]).to_empty(device="cpu")
    real = real.to(x.dtype)
    real.load_state_dict({name: at[name] for name in real.state_dict()})
    return real(x).detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("start", [0, 20, 100])  # labels repeat in the last
def test_a_batch_smaller_than_the_classes_is_exact_from_one_linear_layer(
    digits: Data, start: int, dtype: torch.dtype
) -> None:
    batch = some_digits(digits, start, 6)
    model = mlp(batch.shape, 10, hidden=())
    release = release_of(model, weights(model, dtype), batch, loss=CrossEntropy())
    found = FirstLayer(guesses=False).run(release, seed=0)
    assert_exact(found, batch, within=1e-3 if dtype == torch.float32 else 1e-7)


def test_as_many_records_as_classes_are_not(digits: Data) -> None:
    batch = some_digits(digits, 0, 10)
    model = mlp(batch.shape, 10, hidden=())
    release = release_of(model, weights(model), batch, loss=CrossEntropy())
    with refused("not-identifiable"):
        FirstLayer(guesses=False).run(release, seed=0)
    few = Data(x=torch.rand(4, 3, generator=torch.Generator().manual_seed(0)), y=torch.arange(4), num_classes=10)
    narrow = mlp(few.shape, 10, hidden=())
    with refused("not-identifiable"):  # more records than features
        FirstLayer(guesses=False).run(release_of(narrow, weights(narrow), few, loss=CrossEntropy()), seed=0)
    with refused("not-identifiable"):  # no decoding at all
        FirstLayer(guesses=False, factorising=False).run(replace(release, batch_size=6), seed=0)


@pytest.mark.parametrize("hidden", [(), (200,)], ids=str)
def test_features_of_a_convolutional_client_are_exact(digits: Data, hidden: tuple[int, ...]) -> None:
    batch, model = some_digits(digits, 0, 4), convolutional(hidden)
    at = weights(model)
    head = split_gradient(release_of(model, at, batch, loss=CrossEntropy())).head
    assert head.bounds == (0.0, 1.0)
    found = FirstLayer(guesses=False).run(replace(head, labels=batch.y), seed=0)
    truth = Data(x=features_of(model, at, batch.x.double()), y=batch.y, num_classes=10, bounds=(0.0, 1.0))
    assert_exact(found, truth, within=1e-6)


def test_a_client_that_sends_its_last_layer_alone_shows_what_enters_it(digits: Data) -> None:
    batch, model = some_digits(digits, 0, 4), convolutional((30,))
    at = weights(model)
    release = release_of(model, at, batch, loss=CrossEntropy())
    alone = replace(release, gradient={name: g for name, g in release.gradient.items() if name.startswith("5.")})
    assert set(alone.simulate(batch.x.double(), batch.y)) == {"5.weight", "5.bias"}
    split = split_gradient(alone)
    hidden = nn.functional.linear(features_of(model, at, batch.x.double()), at["3.weight"], at["3.bias"]).relu()
    torch.testing.assert_close(split.backbone(batch.x.double()), hidden)
    found = FirstLayer(guesses=False).run(replace(split.head, labels=batch.y), seed=0)
    truth = Data(x=hidden, y=batch.y, num_classes=10, bounds=(-torch.inf, torch.inf))
    assert_exact(found, truth, within=1e-6)
    with refused("unsupported-model", "release"):
        split_gradient(replace(alone, gradient={"0.weight": release.gradient["0.weight"]}))


def objective_of(release: Gradient, **settings: object) -> tuple[float, Tensor, Tensor]:
    attack = with_search(GradientMatching(prior=None, **settings), steps=3, restarts=1)  # type: ignore[arg-type]
    found = attack.run(release, seed=0)
    assert found.y is not None
    return float(found.objective or 0), found.x, found.y


def test_the_objective_is_the_distance_of_gradients_and_of_features(digits: Data) -> None:
    batch, model = some_digits(digits, 0, 3), convolutional((200,))
    at = weights(model)
    release = release_of(model, at, batch, loss=CrossEntropy())
    value, x, y = objective_of(release, features=FirstLayer(guesses=False), features_weight=0.5)
    order = [batch.y.tolist().index(label) for label in y.tolist()]
    ours, true = (features_of(model, at, images) for images in (x, batch.x[order].double()))
    by_features = ((ours - true).square().sum(1) / true.square().sum(1)).mean()
    mine = release.simulate(x, y)
    one, other = (torch.cat([g[name].flatten() for name in release.gradient]) for g in (mine, release.gradient))
    assert value == pytest.approx(float(1 - torch.cosine_similarity(one, other, dim=0) + 0.5 * by_features), rel=1e-5)
    assert objective_of(release, features=FirstLayer(), features_weight=0.0)[0] < value


def test_where_features_are_not_found_the_gradient_is_matched_alone(digits: Data) -> None:
    batch, model = some_digits(digits, 0, 3), convolutional((5,))
    release = release_of(model, weights(model), batch, loss=CrossEntropy())
    kept = {name: g for name, g in release.gradient.items() if name in ("0.weight", "0.bias", "5.bias")}
    partial = replace(release, gradient=kept)
    assert torch.equal(objective_of(partial, features=FirstLayer())[1], objective_of(partial)[1])
    with refused("conflict", "features"):
        GradientMatching(start=FirstLayer(), features=FirstLayer())


def statistics_release(batch: Data, *, sent: bool) -> Gradient:
    model = convolutional(norm=True)
    at, none = weights(model), batch.take(slice(0, 0))
    client = Victim(model=model, training=Training(epochs=1), initial=at, final=at, fixed=none, private=batch)
    return gradient_at_initial(client, batch_norm="training", statistics=sent).release


def test_the_objective_holds_the_statistics_that_were_sent(digits: Data) -> None:
    batch = some_digits(digits, 0, 4).to("cpu", torch.float64)
    release = statistics_release(batch, sent=True)
    value, x, y = objective_of(release, statistics_weight=2.0)
    norm = nn.BatchNorm2d(8).double().train()
    convolved = nn.functional.conv2d(x, release.at["0.weight"], release.at["0.bias"], stride=2)
    norm(convolved)
    parts = []
    for name, old in (("running_mean", torch.zeros(8)), ("running_var", torch.ones(8))):
        sent = release.statistics[f"1.{name}"]  # type: ignore[index]
        parts.append((getattr(norm, name) - sent).square().sum() / (sent - old).square().sum())
    mine = release.simulate(x, y)
    one, other = (torch.cat([g[name].flatten() for name in release.gradient]) for g in (mine, release.gradient))
    expected = 1 - torch.cosine_similarity(one, other, dim=0) + 2 * torch.stack(parts).mean()
    assert value == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_statistics_bring_candidates_closer(digits: Data) -> None:
    """The gradient alone says little of the contrast, which BatchNorm takes out."""
    batch = some_digits(digits, 0, 4).to("cpu", torch.float64)
    errors = list[float]()
    for sent in (False, True):
        attack = with_search(GradientMatching(prior=TotalVariation(weight=1e-3)), steps=300)
        found = attack.run(statistics_release(batch, sent=sent), seed=0)
        errors.append(float(torch.cdist(batch.x.flatten(1), found.x.flatten(1)).min(1).values.mean()))
    assert errors[1] < errors[0]


def test_labels_of_a_residual_client_in_training_mode(digits: Data) -> None:
    batch = some_digits(digits, 0, 6).to("cpu", torch.float64)
    model = resnet(batch.shape, 10, blocks=(1, 1), width=4)
    at, none = weights(model), batch.take(slice(0, 0))
    client = Victim(
        model=model,
        training=Training(optimizer=SGD(lr=0.1), epochs=1),
        initial=at,
        final=at,
        fixed=none,
        private=batch,
    )
    for release in (gradient_at_initial(client, batch_norm="training").release, local_update(client).release):
        found = with_search(GradientMatching(features=FirstLayer(guesses=False)), steps=2).run(release, seed=0)
        assert found.y is not None
        assert sorted(found.y.tolist()) == sorted(batch.y.tolist())


class Squares(nn.Module):
    """What enters the linear layers has no weights, and is nothing that the parser knows."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden((2 * x.square() - 0.5).flatten(1))))  # type: ignore[no-any-return]


def test_features_before_which_there_are_no_weights_are_matched_too(digits: Data) -> None:
    batch = some_digits(digits, 0, 4)
    with torch.device("meta"):
        model = Squares()
    release = release_of(model, weights(model), batch, loss=CrossEntropy())
    split = split_gradient(release)
    truth = (2 * batch.x.double().square() - 0.5).flatten(1)
    torch.testing.assert_close(split.backbone(batch.x.double()), truth)
    found = FirstLayer(guesses=False).run(replace(split.head, labels=batch.y), seed=0)
    assert_exact(found, Data(x=truth, y=batch.y, num_classes=10, bounds=(-torch.inf, torch.inf)), within=1e-6)
    attack = with_search(GradientMatching(features=FirstLayer(guesses=False)), steps=3, restarts=1)
    assert len(attack.run(release, seed=0).x) == 4
