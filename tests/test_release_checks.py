"""Weights before and after training that do not fit are refused in a sentence."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from simulating import EASY, NETS, shown, some, victim
from torch import Tensor, nn

from remanence import SGD, Logistic, SquaredError
from remanence.attacks import SimuDy, Simulation, with_search
from remanence.models import mlp
from remanence.releases import fine_tuned
from remanence.training import KnownLoss

ATTACK = with_search(SimuDy(candidates=3, whitening=None, surrogate=None), steps=2)


def test_what_is_wrongly_described_is_refused() -> None:
    release, attack = shown(), ATTACK
    for classes in (3, 12):
        with refused("shape-mismatch", "num_classes"):
            attack.run(replace(release, num_classes=classes), seed=0)
    with refused("shape-mismatch", "shape"):
        attack.run(replace(release, shape=(1, 9, 9)), seed=0)
    with refused("wrong-type", "initial"):
        attack.run(replace(release, initial={name: p.float() for name, p in release.initial.items()}), seed=0)
    short = {name: p for name, p in release.final.items() if name != "3.bias"}
    for wrong in (
        replace(release, final=release.final | {"3.bias": torch.zeros(4)}),
        replace(release, initial=short, final=short),
    ):
        with refused("shape-mismatch", "initial"):
            attack.run(wrong, seed=0)
    with refused("conflict", "final"):
        attack.run(replace(release, final=release.initial), seed=0)
    with refused("not-finite", "final"):
        attack.run(replace(release, final={n: p / 0 for n, p in release.final.items()}), seed=0)
    with refused("wrong-type", "training"):
        attack.run(replace(release, training=SGD(lr=0.1)), seed=0)
    with refused("wrong-type", "training"):
        Simulation(training=SGD(lr=0.1))


@pytest.mark.parametrize(
    ("loss", "classes"), [(Logistic(), 2), (SquaredError(), 2), (SquaredError(values=(0.0, 0.5, 1.0)), 3)], ids=repr
)
def test_one_output_stands_for_two_classes_or_for_numbers(loss: KnownLoss, classes: int) -> None:
    data = some(classes)
    made = victim(lambda data: mlp(data.shape, 1, hidden=(24,)), data, replace(EASY, loss=loss))
    release, attack = fine_tuned(made).release, replace(ATTACK, candidates=classes)
    assert attack.run(replace(release, num_classes=classes), seed=0).x.isfinite().all()
    with refused("shape-mismatch", "num_classes"):
        attack.run(release, seed=0)
    with refused("conflict", "loss"):
        attack.run(replace(release, training=EASY), seed=0)


class Numbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze()


class Apart:
    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square().mean()


def test_an_output_without_a_dimension_of_its_own_is_one() -> None:
    made = victim(
        lambda data: nn.Sequential(*mlp(data.shape, 1, hidden=(24,)), Numbers()),
        some(3),
        replace(EASY, optimizer=SGD(lr=1e-4), loss=Apart()),
    )
    assert ATTACK.run(fine_tuned(made).release, seed=0).x.isfinite().all()


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(24), nn.BatchNorm1d(24, track_running_stats=False)], ids=repr)
def test_statistics_of_a_batch_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), layer, nn.ReLU(), nn.Linear(24, 10))
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}
    end = {name: p + 0.1 if p.is_floating_point() and "running" not in name else p for name, p in start.items()}
    release = replace(shown(), model=model, initial=start, final=end)
    with refused("unsupported-model", "model"):
        ATTACK.run(release, seed=0)


def test_statistics_that_moved_are_refused_until_both_ends_have_the_same() -> None:
    release, attack = shown(NETS["resnet"]), ATTACK
    name = next(name for name in release.final if name.endswith("running_mean"))
    moved = replace(release, final=release.final | {name: release.final[name] + 0.1})
    with refused("unsupported-training", "initial"):
        attack.run(moved, seed=0)
    assert attack.run(replace(moved, initial=moved.initial | {name: moved.final[name]}), seed=0).x.isfinite().all()


def test_layers_that_hide_what_they_did_are_refused() -> None:
    attack = ATTACK
    dropping = shown()
    dropping.model.append(nn.Dropout(0.5))
    with refused("unsupported-model", "model"):
        attack.run(dropping, seed=0)
    dropping.model.eval()
    assert attack.run(dropping, seed=0).x.isfinite().all()
    release = shown(NETS["resnet"])
    release.model.train()
    with refused("unsupported-model", "model"):
        attack.run(release, seed=0)
