"""Which attacks apply: what is missing is said in plain words, and ordinary networks get what is honest."""

from dataclasses import fields, replace
from time import process_time

import pytest
import torch
from nets import SmallCNN, fitted, seeded
from torch import nn

from remanence import SGD, Adam, Data, FineTuned, FineTunedUnknownRecipe, Gradient, Training, WeightsOnly, applicable
from remanence.attacks import KKT, Stein
from remanence.auditing.attempts.applicability import Applicability
from remanence.engine import loss_gradient
from remanence.models import centred_mlp, initial_params, mlp, torch_params
from remanence.progress import time_limit
from remanence.training import CrossEntropy

RECIPE = Training(optimizer=Adam(lr=1e-3), epochs=2, batch_size=16)


@pytest.fixture(scope="module")
def images(digits: Data) -> Data:
    return digits.take(slice(0, 32))


@pytest.fixture(scope="module")
def tuned(images: Data) -> FineTuned:
    """An ordinary CNN with BatchNorm and dropout, trained by Adam in training mode, its base known."""
    model = seeded(SmallCNN)
    initial = {name: p.clone() for name, p in model.state_dict().items()}
    final = fitted(model, images, epochs=2).state_dict()
    return FineTuned(model=model, final=final, shape=images.shape, num_classes=10, initial=initial, training=RECIPE)


def asked(release: object, *names: str) -> dict[str, Applicability]:
    return {each.name: each for each in applicable(release, records=4, attacks=names)}


def without(release: FineTuned, *names: str) -> dict[str, object]:
    return {each.name: getattr(release, each.name) for each in fields(release) if each.name not in names}


def test_one_thing_that_is_missing_is_said(tuned: FineTuned) -> None:
    words = {
        "SimuDy": ("--base", "--recipe"),
        "Linearised": ("--base", "--recipe"),
        "RecoNN": ("all records but one", "all records but one"),
        "Mnemonist": ("all records but one", "all records but one"),
        "GradientMatching": ("audit update", "audit update"),
        "FirstLayer": ("audit update", "audit update"),
    }
    alone = asked(WeightsOnly(**without(tuned, "initial", "training")), *words)
    with_base = asked(FineTunedUnknownRecipe(**without(tuned, "training")), *words)
    for name, (by_weights, by_base) in words.items():
        assert alone[name].status == with_base[name].status == "refused"
        assert by_weights in (alone[name].reason or "")
        assert by_base in (with_base[name].reason or "")


def test_a_network_that_does_not_fit_is_described(tuned: FineTuned) -> None:
    (found,) = asked(tuned, "Stationarity").values()
    assert found.status == "refused"
    assert found.reason.startswith(
        "works on fully connected nets with ReLU and a hidden layer, this is a CNN: conv1 3x3"
    )
    assert len(found.reason) < 250


def test_updates_are_told_from_models(images: Data) -> None:
    model = mlp(images.shape, 10, hidden=(20,), activation=nn.ReLU)
    at = initial_params(model, seed=0)
    gradient = loss_gradient(model, at, images.x[:4], images.y[:4], loss=CrossEntropy())
    sent = Gradient(
        model=model, at=at, gradient=gradient, labels=None, batch_size=4, shape=images.shape, loss=CrossEntropy()
    )
    found = asked(sent, "KKT", "FirstLayer")
    assert "audit model" in (found["KKT"].reason or "")
    assert found["FirstLayer"].status == "runs"


@pytest.mark.slow
def test_batch_norm_and_dropout_are_simulated_in_a_weaker_variant(tuned: FineTuned) -> None:
    found = asked(tuned, "Linearised", "SimuDy")
    for each in found.values():
        assert each.status == "weaker", each.reason
        assert "dropout" in each.reason
        assert "BatchNorm" in each.reason
    assert not torch.equal(tuned.initial["norm1.running_mean"], tuned.final["norm1.running_mean"])  # left alone


@pytest.mark.slow
def test_models_in_training_mode_are_asked_as_they_are_published(tuned: FineTuned) -> None:
    model = seeded(SmallCNN).train()
    (found,) = asked(replace(tuned, model=model), "Linearised").values()
    assert found.status == "weaker"
    assert model.training


def test_kkt_is_scaled_to_the_length_of_the_weights(images: Data) -> None:
    def attack(model: nn.Module, factor: float) -> KKT:
        final = {name: p * factor for name, p in torch_params(model, seed=0).items()}
        shown = WeightsOnly(model=model, final=final, shape=images.shape, num_classes=10)
        return asked(shown, "KKT")["KKT"].attack

    biased, homogeneous = (
        mlp(images.shape, 10, hidden=(20,), activation=nn.ReLU),
        centred_mlp(images.shape, 10, hidden=(20,)),
    )
    usual = KKT().runs[0]
    assert attack(biased, 0.01).runs == (usual,)
    assert attack(biased, 30.0).runs[0].lr < usual.lr
    assert attack(homogeneous, 10.0).preprocessing.norm is not None
    assert attack(homogeneous, 0.01).preprocessing.norm is None


def test_rows_of_a_table_are_not_stretched() -> None:
    model = mlp((6,), 2, hidden=(12,), activation=nn.ReLU)
    shown = WeightsOnly(model=model, final=torch_params(model, seed=0), shape=(6,), num_classes=2)
    images = KKT().images(shown, torch.tensor([[0.2, 0.3, 0.4, 0.5, 0.6, 1.7]]))
    assert images.tolist() == [pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 1.0])]


def test_stein_keeps_a_limit_of_time_inside_its_equations(digits: Data) -> None:
    batch = digits.take(slice(0, 16))
    model = mlp(batch.shape, 10, hidden=(60,), activation=nn.ReLU)
    at = initial_params(model, seed=0)
    sent = Gradient(
        model=model,
        at=at,
        gradient=loss_gradient(model, at, batch.x, batch.y, loss=CrossEntropy()),
        labels=None,
        batch_size=16,
        shape=batch.shape,
        loss=CrossEntropy(),
    )
    start = process_time()
    with time_limit(0.3):
        found = Stein().run(sent, seed=0)
    assert found.x.shape == batch.x.shape
    assert process_time() - start < 3


def test_a_head_that_was_tuned_alone_runs(images: Data) -> None:
    model = mlp(images.shape, 10, hidden=(20,), activation=nn.ReLU)
    initial = initial_params(model, seed=0)
    final = initial | {"3.weight": initial["3.weight"] + 0.1}
    shown = FineTuned(
        model=model,
        final=final,
        initial=initial,
        shape=images.shape,
        num_classes=10,
        training=Training(optimizer=SGD(lr=0.1), epochs=2),
    )
    assert [each.status for each in asked(shown, "SimuDy", "Linearised").values()] == ["runs", "runs"]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x.squeeze(1)).mean(1))  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_is_differentiated_twice(images: Data) -> None:
    model = seeded(Transformer).eval()
    release = WeightsOnly(model=model, final=model.state_dict(), shape=images.shape, num_classes=10)
    assert asked(release, "KKT")["KKT"].status == "runs"
