"""Adapters that were tuned on a base: half of each begins at zero, and they may be published alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from auditing.nets import as_images, seeded, weights
from refusals import refused
from torch import Tensor, nn
from torch.nn import functional as F

from remanence.auditing.answer.report import Report
from remanence.auditing.request import Request, run_request
from remanence.data import Split, split
from remanence.types import Data, Params


class Adapted(nn.Module):
    """A linear layer with an adapter, as users write them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.A = nn.Parameter(0.01 * torch.randn(16, inputs))
        self.B = nn.Parameter(torch.zeros(outputs, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = Adapted(64, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.layer(x.flatten(1))))


@pytest.fixture(scope="module")
def images(digits: Data) -> Split:
    return split(as_images(digits), private=40, fixed=0, public=300, test=300, seed=0)


@pytest.fixture(scope="module")
def endpoints(images: Split) -> tuple[Params, Params]:
    """The base and the weights after its adapters were tuned."""
    model = seeded(Net)
    _descend([*model.layer.base.parameters(), *model.head.parameters()], model, images.public)
    initial = weights(model)
    _descend([model.layer.A, model.layer.B], model, images.private)
    return initial, weights(model)


def _descend(trained: list[nn.Parameter], model: nn.Module, data: Data) -> None:
    optimizer = torch.optim.SGD(trained, lr=0.2)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(data.x), data.y).backward()
        optimizer.step()


def audited(folder: Path, images: Split, base: Params, published: Params) -> Report:
    torch.save(base, folder / "base.pt")
    torch.save(published, folder / "tuned.pt")
    for name, data in (("private", images.private), ("others", images.test)):
        np.savez(folder / f"{name}.npz", x=data.x.numpy(), y=data.y.numpy())
    files = {"weights": "tuned.pt", "base": "base.pt", "data": "private.npz", "held_out": "others.npz"}
    paths = {name: str(folder / file) for name, file in files.items()}
    spec = "auditing.test_lora_base:Net"
    return run_request(Request(kind="model", model=spec, attacks=("SimuDy",), budget=5.0, **paths), command="")


def test_half_of_an_adapter_begins_at_zero_and_was_not_re_initialised(
    images: Split, endpoints: tuple[Params, Params], tmp_path: Path
) -> None:
    ready = audited(tmp_path, images, *endpoints).answer.preflight
    assert [check.status for check in ready.checks if check.name == "base"] == ["ok"]
    assert ready.updated_layers == ("layer",)


def test_adapters_alone_are_published_with_their_base(
    images: Split, endpoints: tuple[Params, Params], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, tuned = endpoints
    whole = audited(tmp_path, images, base, tuned).answer
    adapters = {name: p for name, p in tuned.items() if name in ("layer.A", "layer.B")}
    capsys.readouterr()
    alone = audited(tmp_path, images, base, adapters).answer
    assert "lacks 4 tensors" in capsys.readouterr().err
    assert alone.preflight.numbers == pytest.approx(whole.preflight.numbers)
    assert alone.evidence == whole.evidence


def test_published_weights_lack_nothing_that_the_base_lacks(
    images: Split, endpoints: tuple[Params, Params], tmp_path: Path
) -> None:
    headless = [{name: p for name, p in params.items() if "head" not in name} for params in endpoints]
    with refused("preflight", "weights"):
        audited(tmp_path, images, *headless)
