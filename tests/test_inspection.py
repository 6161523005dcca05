"""The inspector of models that a server sent: planted traps are flagged, honest models are not."""

import json
from pathlib import Path

import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from remanence.auditing.inputs.weights import load_release_weights
from remanence.diagnostics import inspect_model
from remanence.diagnostics.inspection.layers import Layer
from remanence.diagnostics.inspection.statistics import parallel_rows
from remanence.models import initial_params, mlp, resnet


def weights(seed: int = 0) -> dict[str, Tensor]:
    return initial_params(mlp((1, 8, 8), 10, hidden=(64, 32), activation=nn.ReLU), seed=seed)


def first_and_second(params: dict[str, Tensor]) -> list[str]:
    return [name.removesuffix("weight") for name in params if name.endswith("weight")]


def codes(params: dict[str, Tensor], shape: tuple[int, ...] | None = None) -> set[str]:
    return {flag.code for flag in inspect_model(None, params, shape).flags}


@pytest.mark.parametrize("seed", range(5))
def test_honest_weights_are_not_flagged(seed: int) -> None:
    assert codes(weights(seed)) == set()
    net = resnet((1, 8, 8), 10, blocks=(1, 1), width=8)
    assert inspect_model(net, initial_params(net, seed=seed), (1, 8, 8)).flags == ()


def test_an_imprint_module_is_flagged_by_its_direction_and_biases() -> None:
    params = weights()
    first, *_ = first_and_second(params)
    params[f"{first}weight"] = torch.full((64, 64), 1 / 64)
    params[f"{first}bias"] = torch.linspace(-0.6, 0.0, 64)
    inspection = inspect_model(None, params)
    assert {"parallel-rows", "graded-biases"} <= {flag.code for flag in inspection.flags}
    assert {flag.layer for flag in inspection.flags} == {first.rstrip(".")}
    assert "parallel-rows" in str(inspection)
    shuffled = params | {f"{first}bias": params[f"{first}bias"][torch.randperm(64)]}
    assert "parallel-rows" in codes(shuffled)


def imprinted(rows: int, where: Tensor, columns: int = 64) -> dict[str, Tensor]:
    """Random rows of a wide layer, and one direction `where` it is a trap."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(rows, columns, generator=generator)
    weight[where] = weight[0].clone()
    return {"0.weight": weight, "2.weight": torch.randn(10, rows, generator=generator) / rows**0.5}


@pytest.mark.parametrize("rows", [4096, 6144, 9000])
def test_no_order_of_rows_hides_that_they_are_parallel(rows: int) -> None:
    index = torch.arange(rows)
    for where in (index % 3 != 0, index % 3 != 1, index < 0.6 * rows, index >= 0.4 * rows, index % 5 < 3):
        assert "parallel-rows" in codes(imprinted(rows, where))
    assert "parallel-rows" not in codes(imprinted(rows, index < 0.4 * rows))
    pairs = imprinted(rows, index < 0)
    pairs["0.weight"][1::2] = -2 * pairs["0.weight"][0::2]
    assert "parallel-rows" in codes(pairs)
    pairs["0.weight"] = torch.cat([pairs["0.weight"][0::2], pairs["0.weight"][1::2]])
    assert "parallel-rows" in codes(pairs)


def test_the_fraction_of_parallel_rows_is_that_of_a_loop() -> None:
    where = torch.arange(60) % 4 == 0
    weight = imprinted(60, where, columns=16)["0.weight"]
    weight[3] = weight[5] + 1e-3 * weight[7]
    cosines = [[float(torch.cosine_similarity(a, b, dim=0)) for b in weight.double()] for a in weight.double()]
    expected = sum(any(abs(c) > 0.99 and i != j for j, c in enumerate(row)) for i, row in enumerate(cosines)) / 60
    layer = Layer(name="0", weight=weight.double(), bias=None, is_first=True, is_last=False)
    assert parallel_rows(layer) == pytest.approx(expected) == pytest.approx(17 / 60)


def test_trap_weights_are_flagged_where_the_records_enter() -> None:
    params = weights()
    first, *_ = first_and_second(params)
    size = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    signs = torch.where(torch.arange(64) % 2 == 0, -1.0, 0.5)
    params[f"{first}weight"] = size * signs
    assert "rare-activation" in codes(params, (1, 8, 8))
    assert "rare-activation" in codes(params)


def test_layers_that_are_off_or_loud_are_flagged() -> None:
    params = weights()
    _, second, head = first_and_second(params)
    assert "dead-neurons" in codes(params | {f"{second}bias": torch.full((32,), -100.0)})
    assert "large-scale" in codes(params | {f"{second}weight": 1e3 * params[f"{second}weight"]})
    assert "large-bias" in codes(params | {f"{head}bias": torch.full((10,), 1e4)})
    loud = params[f"{head}weight"].clone()
    loud[3] *= 100
    assert "outlier-row" in codes(params | {f"{head}weight": loud})
    assert "equal-columns" in codes(params | {f"{head}weight": torch.ones(10, 32)})


def test_kernels_that_pass_images_on_are_flagged() -> None:
    conv = nn.Conv2d(3, 6, 3)
    nn.init.dirac_(conv.weight, groups=2)
    assert "identity-kernels" in {flag.code for flag in inspect_model(conv, conv.state_dict()).flags}
    assert inspect_model(conv, nn.Conv2d(3, 6, 3).state_dict()).flags == ()


def test_embeddings_are_no_layers() -> None:
    net = nn.Sequential(nn.Embedding(50, 2000), nn.Linear(2000, 4))
    inspection = inspect_model(net, net.state_dict())
    assert (inspection.flags, inspection.layers) == ((), 1)


def test_the_inspection_is_json() -> None:
    params = weights() | {"norm.weight": torch.tensor([1.0, 500.0])}
    answer = json.loads(json.dumps(inspect_model(None, params).to_json()))
    assert [(flag["code"], flag["layer"], flag["statistic"]) for flag in answer["flags"]] == [
        ("large-scale", "norm", 500.0)
    ]


def test_what_cannot_be_inspected_is_refused() -> None:
    with refused("empty", "weights"):
        inspect_model(None, {})
    with refused("not-finite", "weights"):
        inspect_model(None, {"a.weight": torch.full((3, 3), torch.nan)})


def test_a_shape_that_no_layer_takes_is_refused() -> None:
    images, rows, steps = torch.randn(8, 3, 5, 5), torch.randn(16, 784), torch.randn(8, 12)
    for weight, shape in ((images, (3, 32, 32)), (images, (6, 32, 32)), (rows, (1, 28, 28)), (steps, (7, 12))):
        inspect_model(None, {"a.weight": weight, "b.weight": torch.randn(4, 16)}, shape)
    for weight, shape in ((images, (1, 32, 32)), (rows, (1, 32, 32)), (rows, (1, 1, 784, 2)), (steps, (12, 7))):
        with refused("shape-mismatch", "shape"):
            inspect_model(None, {"a.weight": weight, "b.weight": torch.randn(4, 16)}, shape)


def test_a_file_is_inspected_by_its_model(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    torch.save(net.state_dict(), tmp_path / "sent.pt")
    assert not inspect_model(net, load_release_weights(tmp_path / "sent.pt", net).params, (1, 8, 8)).flags
