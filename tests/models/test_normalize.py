"""Normalisation of records as part of the model, recognised by the parser."""

import pytest
import torch
from refusals import refused
from torch import nn

from remanence.models import (
    CNN,
    MLP,
    Normalize,
    apply,
    cnn,
    initial_params,
    input_normalisation,
    mlp,
    normalized,
    normalized_params,
    parse,
)

IMAGES = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))
MEAN, STD = (0.1, 0.4, 0.5), (0.2, 0.3, 0.1)


@pytest.mark.parametrize(
    ("x", "mean", "std"),
    [
        (IMAGES, MEAN, STD),
        (IMAGES, 0.5, 0.2),
        (IMAGES, torch.full((3, 12, 12), 0.3), torch.full((3, 12, 12), 0.2)),
        (IMAGES.flatten(1), torch.linspace(0, 1, 432), torch.linspace(1, 2, 432)),
    ],
    ids=["channels", "one number", "pixels", "features"],
)
def test_records_enter_normalised_and_come_back(x: torch.Tensor, mean: object, std: object) -> None:
    by_channel = [
        torch.as_tensor(each).view(-1, 1, 1) if isinstance(each, tuple) else torch.as_tensor(each)
        for each in (mean, std)
    ]
    expected = (x - by_channel[0]) / by_channel[1]
    torch.testing.assert_close(Normalize(mean, std)(x), expected)
    shape = tuple(x.shape[1:])
    for inner in (mlp(shape, 4, hidden=(6,), activation=nn.ReLU), *([cnn(shape, 4)] if x.ndim == 4 else [])):
        net = normalized(inner, mean, std)
        params = normalized_params(net, initial_params(inner, seed=0))
        assert set(params) == set(net.state_dict())
        torch.testing.assert_close(apply(net, params, x), apply(inner, initial_params(inner, seed=0), expected))
        assert isinstance(parse(net, shape), MLP | CNN)
        entering = input_normalisation(net, shape)
        inputs = entering.inputs(params, x)
        torch.testing.assert_close(inputs.flatten(1), expected.flatten(1))
        torch.testing.assert_close(entering.records(params, inputs), x)
        torch.testing.assert_close(entering.records(params, inputs.flatten(1)), x)


def test_two_normalisations_are_one() -> None:
    inner, x = (
        mlp((5,), 3, hidden=(4,), activation=nn.ReLU),
        torch.rand(6, 5, generator=torch.Generator().manual_seed(0)),
    )
    low, high = torch.linspace(-3, 1, 5), torch.linspace(2, 9, 5)
    params = initial_params(inner, seed=0)
    raw = normalized(normalized(inner, 0.5, 2.0), -low / (high - low), 1 / (high - low))
    found = apply(raw, normalized_params(raw, params), x)
    torch.testing.assert_close(found, apply(inner, params, (x * (high - low) + low - 0.5) / 2.0))
    assert isinstance(parse(raw, (5,)), MLP)
    assert raw[-1] is inner


def test_a_model_keeps_its_mode() -> None:
    inner = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(432, 3))
    assert normalized(inner, 0.0, 1.0).training
    assert not normalized(inner.eval(), 0.0, 1.0).training


def test_numbers_that_do_not_fit_are_refused() -> None:
    for mean, std, code, argument in (
        ((0.1, 0.2), (0.1, 0.2, 0.3), "shape-mismatch", "std"),
        (0.1, (0.1, 0.0), "out-of-range", "std"),
        ("0.1", 0.3, "wrong-type", "mean"),
        (float("nan"), 0.3, "not-finite", "mean"),
        ((), 0.3, "empty", "mean"),
    ):
        with refused(code, argument):
            Normalize(mean, std)
    with refused("shape-mismatch", "mean"):
        Normalize((0.1, 0.2), (0.1, 0.2))(IMAGES)
