"""Attacks on networks as users bring them find what they find on the `mlp()` that these equal."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from networks import MLPS, SHAPE, Equal, named
from torch import Tensor, nn

from remanence import SGD, Adam, Attack, Data, Gradient, SquaredError, Training, load
from remanence.attacks import GLM, KKT, FirstLayer, Mnemonist, RecoNN, SimuDy, Stationarity, Stein, with_search
from remanence.attacks.one_unknown.fitting import Fitting
from remanence.engine import engine_for
from remanence.models import mlp, server_params
from remanence.releases import (
    Case,
    Victim,
    all_but_one,
    fine_tuned,
    gradient_at_initial,
    train_victim,
    train_victims,
    weights_only,
)
from remanence.search import Search, Whitening
from remanence.shadow import build_bank
from remanence.types import Reconstruction

with torch.device("meta"):
    NAMED = Equal(
        theirs=named(nn.ELU), ours=mlp(SHAPE, 10, hidden=(6,), activation=nn.ELU), names={"fc1": "1", "fc2": "3"}
    )
RECONN = RecoNN(hidden=(16,), fitting=Fitting(epochs=2, batch_size=8))
FULL = Training(optimizer=SGD(lr=0.1), epochs=5, weight_decay=1e-3)


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits").take(slice(0, 40)).to("cpu", torch.float64)


def victims(equal: Equal, data: Data, count: int = 1, training: Training = FULL) -> list[Victim]:
    """One victim of each network: all but `count` records are fixed."""
    fixed, private = data.take(slice(0, len(data) - count)), data.take(slice(len(data) - count, len(data)))
    made = zip((equal.theirs, equal.ours), equal.params(), strict=True)
    return [train_victim(model, training, params, fixed, private, seed=0) for model, params in made]


def assert_same(found: Reconstruction, expected: Reconstruction) -> None:
    torch.testing.assert_close(found.x, expected.x, rtol=1e-6, atol=1e-8)
    assert (found.objective is None) == (expected.objective is None)
    assert (found.objective or 0.0) == pytest.approx(expected.objective or 0.0, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("equal", [*MLPS.values(), NAMED], ids=[*MLPS, "named, ELU"])
@pytest.mark.parametrize("training", [FULL, replace(FULL, batch_size=7)], ids=["full batch", "mini-batches"])
def test_victims_end_at_the_same_weights(equal: Equal, training: Training, digits: Data) -> None:
    (fixed, targets), ends = (digits.take(slice(0, 20)), digits.take(slice(20, 23))), []
    for model, params in zip((equal.theirs, equal.ours), equal.params(), strict=True):
        ends.append([v.final for v in train_victims(model, training, params, fixed, targets, seed=0)])
    for theirs, ours in zip(*ends, strict=True):
        torch.testing.assert_close(equal.rename(theirs), ours)


def test_glm_takes_its_layer_from_the_network(digits: Data) -> None:
    with torch.device("meta"):
        theirs = nn.Sequential()
        theirs.add_module("flat", nn.Flatten())
        theirs.add_module("fc", nn.Linear(64, 10))
    equal = Equal(theirs=theirs, ours=mlp(SHAPE, 10, hidden=()), names={"fc": "1"})
    found, expected = (GLM().run(all_but_one(v).release, seed=0) for v in victims(equal, digits))
    assert_same(found, expected)


@pytest.mark.parametrize("attack", [RECONN, Mnemonist(reconstructor=RECONN, masks=64)], ids=["RecoNN", "Mnemonist"])
@pytest.mark.parametrize("equal", [NAMED, MLPS["a class"]], ids=["named layers", "a class"])
def test_reconstructors_read_the_first_layer_where_it_is(
    attack: RecoNN | Mnemonist, equal: Equal, digits: Data
) -> None:
    found = []
    for victim in victims(equal, digits):
        release = all_but_one(victim).release
        bank = build_bank(release, digits.take(slice(0, 12)), seed=0)
        layer = bank.first_layer()
        first = next(name for name, p in release.final.items() if p.shape == (6, 64))
        like = bank.weights.mean(0, keepdim=True)
        torch.testing.assert_close(layer.select(like)[0], release.final[first], rtol=0.0, atol=0.05)
        found.append(attack.fit(bank, seed=0).run(release, seed=0))
    assert_same(*found)


REVEALED: dict[str, tuple[Callable[[Victim], Case], Attack]] = {
    "Stationarity": (weights_only, with_search(Stationarity(candidates=4), steps=20, restarts=1)),
    "KKT": (weights_only, with_search(KKT(candidates=4), steps=20)),
    "SimuDy, whitened": (
        fine_tuned,
        SimuDy(candidates=4, whitening=Whitening(), search=Search(optimizer=Adam(lr=0.01), steps=5)),
    ),
    "FirstLayer": (gradient_at_initial, FirstLayer()),
}


@pytest.mark.parametrize(("reveal", "attack"), REVEALED.values(), ids=REVEALED)
@pytest.mark.parametrize("name", ["named layers", "a class", "functional"])
def test_closed_forms_hold_for_classes_of_a_users_own(
    name: str, reveal: Callable[[Victim], Case], attack: Attack, digits: Data
) -> None:
    found, expected = (attack.run(reveal(v).release, seed=0) for v in victims(MLPS[name], digits.take(range(4)), 4))
    assert_same(found, expected)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Linear(20, 500), nn.Linear(500, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.rows(x)))
        return logits


def test_stein_takes_classes_of_a_users_own() -> None:
    with torch.device("meta"):
        equal = Equal(
            theirs=Wide(),
            ours=mlp((20,), 1, hidden=(500,), activation=nn.Tanh),
            names={"rows": "1", "head": "3"},
            shape=(20,),
        )
    batch = Data(x=torch.eye(20).double()[:2], y=torch.tensor([1, 0]), num_classes=2)
    found = []
    for model in (equal.theirs, equal.ours):
        at = server_params(model, seed=0)
        gradient = engine_for(model, Training(loss=SquaredError()), (20,)).gradient(at, batch.x, batch.y)
        release = Gradient(
            model=model, at=at, gradient=gradient, labels=None, batch_size=2, shape=(20,), loss=SquaredError()
        )
        found.append(Stein().run(release, seed=0))
    assert_same(*found)
    assert torch.cdist(found[0].x, batch.x).min(1).values.max() < 1e-6
