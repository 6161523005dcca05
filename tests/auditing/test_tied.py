"""Models that hold a tensor under several names: an audit takes it once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from auditing.nets import as_images, fitted, published, seeded, weights
from refusals import refused
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.auditing.attempts.applicability import applicable
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.inputs.weights import load_release_weights
from remanence.auditing.pipeline import audit
from remanence.data import Split, split
from remanence.engine import loss_gradient
from remanence.models import apply, apply_to_batch
from remanence.training import CrossEntropy
from remanence.types import Data, Params


class Tied(nn.Module):
    """Two layers with one matrix of weights and biases of their own, and a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        self.two.weight = self.one.weight
        self.unused = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.first(x.flatten(1)))
        return self.last(F.silu(self.two(F.silu(self.one(x)))))


class Shared(Tied):
    """One layer with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.two = self.one


@pytest.fixture(scope="module")
def images(digits: Data) -> Split:
    return split(as_images(digits), private=40, fixed=0, public=0, test=300, seed=0)


@pytest.mark.parametrize("make", [Tied, Shared])
def test_outputs_and_gradients_with_every_name_are_those_of_torch(make: Callable[[], nn.Module]) -> None:
    model, generator = seeded(make), torch.Generator().manual_seed(0)
    x, y = torch.rand(5, 1, 8, 8, generator=generator), torch.arange(5)
    params = weights(model)
    assert torch.equal(apply(model, params, x), model(x))
    assert torch.equal(apply_to_batch(model, params, x)[0], model(x))
    F.cross_entropy(model(x), y).backward()
    found = loss_gradient(seeded(make), params, x, y, loss=CrossEntropy())
    expected = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    assert found.keys() == expected.keys()
    assert all(torch.allclose(g, expected[name], atol=1e-6) for name, g in found.items())


def test_an_audit_of_tied_weights_runs_and_says_so(images: Split) -> None:
    release = published(fitted(seeded(Tied), images.private), images.private)
    report = audit(release, truth=images.private, held_out=images.test, budget=5.0, attacks=("KKT",))
    notes = [check.text for check in report.answer.preflight.checks if check.name == "tied"]
    assert len(notes) == 1
    assert "`two.weight` to `one.weight`" in notes[0]
    assert [row.status for row in report.answer.attacks] == ["ran"]


def test_no_attack_on_weights_fails_at_tied_ones(images: Split) -> None:
    release = published(seeded(Tied), images.private)
    asked = applicable(release, records=4, attacks=("Stationarity", "ConvStationarity", "KKT"))
    assert {each.name: each.status for each in asked} == {
        "KKT": "runs",
        "Stationarity": "refused",
        "ConvStationarity": "refused",
    }
    assert not [each for each in asked if "failed" in (each.reason or "")]


def test_names_of_one_tensor_with_different_values_stop(images: Split) -> None:
    release = published(seeded(Tied), images.private)
    release.final["two.weight"] = release.final["two.weight"] + 1
    with refused("preflight", "weights"):
        audit(release, truth=images.private, held_out=images.test, budget=5.0)


FILES: dict[str, Callable[[Params], Params]] = {
    "with every name": lambda state: state,
    "with first names": lambda state: {name: p for name, p in state.items() if name != "two.weight"},
}


@pytest.mark.parametrize("case", FILES)
def test_files_hold_tied_weights_under_every_name_or_one(case: str, images: Split, tmp_path: Path) -> None:
    state = weights(seeded(Tied))
    torch.save(FILES[case](state), tmp_path / "tied.pt")
    found = load_release_weights(tmp_path / "tied.pt", Tied()).params
    assert found.keys() == state.keys()
    assert torch.equal(found["two.weight"], state["one.weight"])
    checks = preflight(published(seeded(Tied), images.private), images.private, images.test).checks
    assert not [check for check in checks if check.status == "stop"]
