"""The closed form of CNNs on one vector of weights: layout, folded norms, size of a tape, memory formats, streams."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from test_engines import CNNS, SHAPE, random_params, records
from torch import Tensor, nn

from remanence import CrossEntropy
from remanence.engine import cnn
from remanence.engine.cnn import CNNEngine, cnn_engine
from remanence.types import Params


def closed_form(
    net: str, *, count: int = 5, memory_format: torch.memory_format | None = None
) -> tuple[nn.Module, Params, CNNEngine]:
    model = CNNS[net](10)
    params = random_params(model)
    engine = cnn_engine(model, CrossEntropy(), params, shape=SHAPE, records=count, memory_format=memory_format)
    assert engine is not None
    return model, params, engine


def test_the_size_of_a_tape_is_known_before() -> None:
    _, params, engine = closed_form("vgg")
    x, y = records(10)
    for count in (5, 2):
        tape = engine.record(engine.layout.pack(params), x[:count], y[:count], records=5, weight_grads=False)
        folded = [name for name in engine.norms.channels if name in engine.layout.layers]
        kernels = sum(tape.weights.kernels[name].numel() for name in folded)
        assert engine.tape_values(SHAPE, count) == tape.num_values() + kernels
    assert engine.tape_values(SHAPE, 5) > 2 * 5 * 4 * 12 * 10  # the output of the first convolution, and its gradient


def test_a_norm_is_folded_where_the_kernel_is_smaller_than_its_output() -> None:
    # kernels of 108, 288 and 576 values; 480, 240 and 240 to a record
    for count, folded in ((0, set()), (1, {"0"}), (2, {"0", "4"}), (3, {"0", "4", "7"})):
        _, _, engine = closed_form("vgg", count=count)
        assert set(engine.norms.channels) & set(engine.layout.layers) == folded


@pytest.mark.parametrize("net", ["resnet", "overlapping"])
@pytest.mark.parametrize("count", [0, 10**6])
def test_channels_stay_last(net: str, count: int) -> None:
    _, params, engine = closed_form(net, count=count, memory_format=torch.channels_last)
    x, y = records(10)
    tape = engine.record(engine.layout.pack(params), x, y, records=5, weight_grads=False)
    recorded = [t for part in (tape.inputs, tape.gates, tape.grad_outputs) for t in part.values() if t.ndim == 4]
    assert recorded
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in recorded)


T = TypeVar("T")


class LateStreams:
    """Side streams at their latest: work is done in `join`, until when its results are nan. What runs ahead is at its
    earliest; without a CUDA device, `SideStreams` does both the other way round."""

    def __init__(self, device: torch.device) -> None:
        self.late: list[tuple[list[Tensor], Callable[[], object]]] = []

    def run(self, work: Callable[[], T]) -> T:
        found = work()
        tensors = _tensors(found)
        for tensor in tensors:
            tensor.fill_(torch.nan)
        self.late.append((tensors, work))
        return found

    def run_ahead(self, work: Callable[[], T]) -> Callable[[], T]:
        found = work()
        return lambda: found

    def join(self) -> None:
        for tensors, work in self.late:
            for tensor, value in zip(tensors, _tensors(work()), strict=True):
                tensor.copy_(value)


def _tensors(found: object) -> list[Tensor]:
    return [each for each in (found if isinstance(found, tuple) else (found,)) if isinstance(each, Tensor)]


@pytest.mark.parametrize("count", [0, 10**6])
@pytest.mark.parametrize("net", CNNS)
def test_passes_do_not_depend_on_when_side_streams_run(net: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _, params, engine = closed_form(net, count=count)
    weights, (x, y) = engine.layout.pack(params), records(10)
    direction = torch.randn(weights.shape, generator=torch.Generator().manual_seed(1), dtype=weights.dtype)

    def passes() -> tuple[Tensor, ...]:
        tape = engine.record(weights, x, y, records=5, weight_grads=True)
        products = engine.vector_hvp(weights, direction, tape, y, records=5)
        return engine.vector_gradient(weights, tape), *products

    expected = passes()
    monkeypatch.setattr(cnn, "SideStreams", LateStreams)
    for found, value in zip(passes(), expected, strict=True):
        assert value.any()
        assert torch.equal(found, value)
