"""Models that look values of the records up in an embedding, as those of tables with categories do."""

import numpy as np
import pytest
import torch
from auditing.nets import seeded
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence import WeightsOnly, audit
from remanence.auditing.checks.preflight import preflight
from remanence.auditing.inputs.sources import load_records
from remanence.auditing.inputs.updates import update_release
from remanence.data import Split, split
from remanence.releases import Gradient
from remanence.types import Data

ANY = (-float("inf"), float("inf"))


class Codes(nn.Module):
    """Column 0 is a code of eight categories, the others are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.head = nn.Embedding(8, 4), nn.Linear(7, 32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.cat([self.embedding(x[:, 0].long()), x[:, 1:]], dim=1)
        return self.head(torch.relu(self.hidden(features)))


class Positions(nn.Module):
    """An embedding of the position of each column, the same for every record."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x[..., None] * self.embedding(torch.arange(4).expand(len(x), 4))).mean(1))


@pytest.fixture(scope="module")
def rows() -> Split:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 8, (500, 1), generator=generator)
    x = torch.cat([codes.float(), torch.randn(500, 3, generator=generator)], dim=1)
    data = Data(x=x, y=(codes[:, 0] % 2), num_classes=2, bounds=ANY)
    return split(data, private=20, fixed=0, public=0, test=400, seed=0)


def sent(rows: Split) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A model, its weights, and those after a step on the private records."""
    model = seeded(Codes)
    before = {name: p.detach().clone() for name, p in model.state_dict().items()}
    cross_entropy(model(rows.private.x), rows.private.y).backward()
    after = {name: before[name] - 0.1 * p.grad for name, p in model.named_parameters() if p.grad is not None}
    return model, before, after


def test_an_update_of_a_model_of_categories_is_audited_and_nothing_found_is_inconclusive(rows: Split) -> None:
    model, before, after = sent(rows)
    made = update_release(model, before, after, None, batch_size=20, shape=(4,), bounds=ANY, num_classes=2)
    assert isinstance(made.release, Gradient)
    report = audit(made.release, truth=rows.private, held_out=rows.test, budget=3, attacks=["SPEAR"])
    assert report.severity in ("inconclusive", "membership")
    assert "`lookup`" in report.answer.verdict or "no attack" in report.answer.verdict.lower()
    assert [check.status for check in report.answer.preflight.checks if check.name == "lookup"] == ["warning"]


def test_embeddings_of_positions_are_no_lookup_of_records(rows: Split) -> None:
    model = seeded(Positions)
    release = WeightsOnly(model=model, final=model.state_dict(), shape=(4,), num_classes=2, bounds=ANY)
    assert "lookup" not in {check.name for check in preflight(release, rows.private, rows.test).checks}


def test_codes_of_a_table_that_was_scaled_stop_an_audit(rows: Split, tmp_path: object) -> None:
    for name, data in (("p", rows.private), ("o", rows.test)):
        np.savez(f"{tmp_path}/{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    private, others = load_records([f"{tmp_path}/p.npz", f"{tmp_path}/o.npz"], None)
    model = seeded(Codes)
    release = WeightsOnly(model=model, final=model.state_dict(), shape=(4,), num_classes=2)
    (check,) = [check for check in preflight(release, private, others).checks if check.name == "lookup"]
    assert check.status == "stop"
    assert "bounds" in check.text
