"""Models that were tuned from a base with another head: the base is used as far as it is theirs.

The private records are planted: a first layer that was tuned by SGD without weight decay differs from that of the base
by combinations of just these records, whatever the head is.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from auditing.nets import seeded, weights
from refusals import refused
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.auditing.attempts.applicability import applicable
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.inputs.weights import load_release_weights
from remanence.auditing.request import Request, run_request
from remanence.errors import BadInput
from remanence.releases import FineTuned
from remanence.training import SGD, Training
from remanence.types import Data, Params

HEAD = ("head.0.weight", "head.0.bias")


class Own(nn.Module):
    """A network of a user's own, whose head ends in a linear layer."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(30, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)))


def few_classes(digits: Data) -> tuple[Data, Data]:
    """The private and the held-out records, of the first three classes."""
    chosen = (digits.y < 3).nonzero()[:, 0]
    data = Data(x=digits.x[chosen].view(-1, 1, 8, 8), y=digits.y[chosen], num_classes=3)
    return data.take(slice(0, 20)), data.take(slice(20, 320))


def by_sgd(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def base(digits: Data) -> Params:
    return weights(by_sgd(seeded(lambda: Own(10)), digits.x, digits.y, 100))


@pytest.fixture(scope="module")
def tuned(digits: Data, base: Params) -> FineTuned:
    """A release whose initial head is not known."""
    private, _ = few_classes(digits)
    known = {name: p for name, p in base.items() if name not in HEAD}
    model = seeded(Own, seed=1)
    model.load_state_dict(known, strict=False)
    final = weights(by_sgd(model, private.x, private.y, 50))
    recipe = Training(optimizer=SGD(lr=0.1), epochs=50)
    return FineTuned(model=model, final=final, shape=(1, 8, 8), num_classes=3, initial=known, training=recipe)


BASES: dict[str, Callable[[Params], Params]] = {
    "of other classes": lambda base: base,
    "without a head": lambda base: {name: p for name, p in base.items() if name not in HEAD},
    "with a head of another name": lambda base: {name.replace("head.0", "fc"): p for name, p in base.items()},
    "wrapped": lambda base: {f"module.{name}": p for name, p in base.items()},
}


@pytest.mark.parametrize("case", BASES)
def test_a_base_with_another_head_gives_its_other_layers(case: str, base: Params, tmp_path: Path) -> None:
    torch.save(BASES[case](base), tmp_path / "base.pt")
    found = load_release_weights(tmp_path / "base.pt", Own(), base=True)
    assert found.params.keys() == base.keys() - set(HEAD)
    assert all(torch.equal(p, base[name]) for name, p in found.params.items())
    assert any("`head.0`" in note and "re-initialised" in note for note in found.notes)
    with refused("shape-mismatch", "path"):
        load_release_weights(tmp_path / "base.pt", Own())


OTHERS: dict[str, Callable[[Params], Params]] = {
    "another first layer": lambda base: base | {"body.0.weight": base["body.0.weight"][:, :49]},
    "a layer in the middle": lambda base: base | {"body.2.weight": torch.ones(30, 41)} | {
        name: base[name][:3] for name in HEAD
    },
    "a layer more": lambda base: {name: base[name][:3] if name in HEAD else p for name, p in base.items()}
    | {"body.4.weight": torch.ones(30, 30)},
    "nothing of it": lambda base: {f"{name}.other": p for name, p in base.items()},
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_a_base_of_another_network_is_refused(case: str, base: Params, tmp_path: Path) -> None:
    torch.save(OTHERS[case](base), tmp_path / "base.pt")
    with refused("shape-mismatch", "path"):
        load_release_weights(tmp_path / "base.pt", Own(), base=True)


def test_the_preflight_notes_a_head_without_initial_weights(tuned: FineTuned, digits: Data) -> None:
    found = preflight(tuned, *few_classes(digits))
    of_base = {check.status: check.text for check in found.checks if check.name == "base"}
    assert of_base.keys() == {"ok", "note"}
    assert "`head.0`" in of_base["note"]
    assert found.updated_layers == ("body.0", "body.2", "head.0")
    frozen = {name: p for name, p in tuned.initial.items() if name.startswith("body")}
    probe = preflight(replace(tuned, final=tuned.final | frozen), *few_classes(digits))
    assert probe.updated_layers == ("head.0",)
    assert not [check for check in probe.checks if check.name == "base" and check.status in ("warning", "stop")]


def test_a_base_of_the_same_shapes_that_the_model_was_not_tuned_from_stops(tuned: FineTuned, digits: Data) -> None:
    other = {name: p for name, p in weights(seeded(Own, seed=5)).items() if name in tuned.initial}
    for initial in (other, {name: p for name, p in tuned.initial.items() if name != "body.0.bias"}, {}):
        found = preflight(replace(tuned, initial=initial), *few_classes(digits))
        assert [check.name for check in found.checks if check.status == "stop"] == ["base"]


def test_attacks_that_simulate_the_training_are_refused_and_name_the_head(tuned: FineTuned) -> None:
    for one in applicable(tuned, records=20, attacks=("SimuDy", "Linearised")):
        assert one.status == "refused"
        assert "`head.0`" in (one.reason or "")
    from remanence.attacks import SimuDy

    with pytest.raises(BadInput, match="re-initialised") as caught:
        SimuDy(candidates=20).run(tuned, seed=0)
    assert caught.value.code == "shape-mismatch"


@pytest.mark.parametrize("recipe", [None, "sgd lr=0.1 epochs=50 batch=full"])
def test_the_span_of_a_tuned_first_layer_shows_its_records_without_the_initial_head(
    recipe: str | None, tuned: FineTuned, base: Params, digits: Data, tmp_path: Path
) -> None:
    private, others = few_classes(digits)
    for name, data in (("private", private), ("others", others)):
        np.savez(tmp_path / f"{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    torch.save(tuned.final, tmp_path / "tuned.pt")
    torch.save(base, tmp_path / "base.pt")
    request = Request(
        kind="model",
        model="auditing.test_replaced_head:Own",
        weights=str(tmp_path / "tuned.pt"),
        base=str(tmp_path / "base.pt"),
        data=str(tmp_path / "private.npz"),
        held_out=str(tmp_path / "others.npz"),
        recipe=recipe,
        attacks=("SimuDy",),
        budget=20.0,
    )
    report = run_request(request, command="")
    identified = next(row for row in report.answer.evidence if row.name == "span: tpr@1%")
    assert identified.value == 1.0
