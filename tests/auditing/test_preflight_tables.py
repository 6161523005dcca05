"""What the preflight says of tables, of sets with too few held-out records, and of unbalanced classes."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from auditing.nets import fitted, published, seeded, status
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from remanence.auditing.answer.report import PreflightSummary
from remanence.auditing.checks.fit import check_fit
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.checks.records import check_power
from remanence.auditing.inputs.sources import load_records, raw_units
from remanence.models import normalized
from remanence.releases import WeightsOnly
from remanence.types import Data


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_scaler_of_a_table_is_named_in_the_units_of_its_columns(batch_norm: bool, tmp_path: Path) -> None:
    """A network that was trained on standardised columns; with the option of the advice nothing is warned of."""
    x, y = load_breast_cancer(return_X_y=True)
    table = np.column_stack([x[:, :8], y])[np.random.default_rng(0).permutation(len(y))]
    for name, rows in (("private", table[:200]), ("others", table[200:])):
        lines = [",".join([*(f"{value:.8g}" for value in row[:-1]), f"{row[-1]:.0f}"]) for row in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join([*"abcdefgh", "label"]), *lines]) + "\n")
    private, others = load_records([str(tmp_path / f"{name}.csv") for name in ("private", "others")], "label")
    units = raw_units(private)
    assert units is not None
    raw = replace(private, x=(private.x - units[0]) / units[1], bounds=(-math.inf, math.inf))
    mean, std = raw.x.mean(0), raw.x.std(0)
    first = [nn.BatchNorm1d(8)] if batch_norm else []
    net = seeded(lambda: CustomSequential(*first, nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2)))
    fitted(net, replace(raw, x=(raw.x - mean) / std), epochs=40)

    def audited(model: nn.Module) -> PreflightSummary:
        return preflight(published(normalized(model, *units), private), private, others)

    [advice] = [check.text for check in audited(net).checks if check.name == "normalize" and check.status == "warning"]
    option = re.search(r"`--normalize ([-\d.e+,]+)`", advice)
    assert option is not None
    numbers = torch.tensor([float(value) for value in option[1].split(",")])
    assert torch.allclose(numbers, torch.cat([raw.x.mean(0), raw.x.std(0)]), rtol=0.2)
    assert status(audited(normalized(net, numbers[:8], numbers[8:])), "normalize") == "ok"
    assert status(audited(normalized(net, mean, std)), "normalize") == "ok"


class CustomSequential(nn.Module):
    """Layers in a class of the user's own."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    ("private", "held_out", "status", "said"),
    [
        (4, 40, "warning", "40 held-out records are too few for any list of the 4 private records beyond chance"),
        (4, 400, "note", "2 of the 4 private records must leak before any can be listed, as 400 are held out"),
        (4, 1600, "", ""),
        (1, 500, "warning", "hold out 266 or more with label 0."),
    ],
)
def test_so_few_held_out_records_that_none_can_be_listed(private: int, held_out: int, status: str, said: str) -> None:
    """Records of ten classes; of one record alone 50 of its class allow a list, and no p-value of the level."""
    x, y = torch.rand(private + held_out, 1, 2, 2), torch.arange(private + held_out) % 10
    y[private:] = torch.arange(held_out) % 10
    data = Data(x=x, y=y, num_classes=10)
    checks = check_power(data.take(slice(0, private)), data.take(slice(private, None)))
    assert [check.status for check in checks] == ([status] if status else [])
    assert all(check.name == "held-out" and said in check.text for check in checks)


@pytest.mark.parametrize(("right", "expected"), [(300, "ok"), (294, "ok"), (285, "warning"), (282, "warning")])
def test_a_model_no_better_than_the_commonest_of_unbalanced_classes_is_warned_of(right: int, expected: str) -> None:
    """Of 300 records 285 are of class 0; a model that is right on all of them fits, though it is 5 points better."""
    x, y = torch.zeros(300, 2), torch.tensor([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).repeat(15)
    predicted = y.clone()
    wrong = 300 - right
    predicted[(y == 1).nonzero()[: min(wrong, 15), 0]] = 0
    predicted[(y == 0).nonzero()[: max(wrong - 15, 0), 0]] = 1
    x[torch.arange(300), predicted] = 1.0
    x -= x * 1e-3 * torch.arange(300)[:, None] / 300  # copies would count once
    release = WeightsOnly(
        model=nn.Linear(2, 2, bias=False), final={"weight": 5 * torch.eye(2)}, shape=(2,), num_classes=2
    )
    data = Data(x=x, y=y, num_classes=2)
    found = check_fit(release, None, release.final, data.take(slice(0, 100)), data.take(slice(100, None)), {})
    assert [check.status for check in found] == [expected]
