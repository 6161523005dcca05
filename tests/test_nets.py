import pytest
import torch
from torch import nn

from remanence.errors import BadInput
from remanence.nets import apply, cnn, initial_params, mlp


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_of_balle_table_iv() -> None:
    assert count(mlp((1, 28, 28), 10)) == 7_960
    assert count(cnn((3, 32, 32), 10)) == 55_208
    assert count(mlp((7960,), 784, hidden=(1000, 1000), activation=nn.ReLU)) == 9_746_784


def test_building_draws_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    initial_params(cnn((1, 12, 12), 3), seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_initial_weights_are_truncated_normals_of_the_fan_in() -> None:
    model = mlp((400,), 10, hidden=(300,))
    params = initial_params(model, seed=0)
    weight = params["1.weight"]
    assert list(params) == [name for name, _ in model.named_parameters()]
    assert weight.abs().max() <= 2 / 400**0.5
    # the standard deviation of a normal cut at two sigma is 0.8796 sigma
    assert weight.std() == pytest.approx(0.8796 / 400**0.5, rel=0.01)
    assert not params["1.bias"].any()
    assert torch.equal(weight, initial_params(model, seed=0)["1.weight"])
    assert not torch.equal(weight, initial_params(model, seed=1)["1.weight"])


def test_apply_is_the_plain_forward_pass() -> None:
    model, x = mlp((1, 2, 2), 3, hidden=(5,), activation=nn.Tanh), torch.rand(4, 1, 2, 2)
    p = initial_params(model, seed=0)
    by_hand = (x.flatten(1) @ p["1.weight"].T + p["1.bias"]).tanh() @ p["3.weight"].T + p["3.bias"]
    assert torch.allclose(apply(model, p, x), by_hand, atol=1e-6)


def test_unknown_layers_and_small_images_are_refused() -> None:
    with pytest.raises(BadInput, match="BatchNorm1d"):
        initial_params(nn.Sequential(nn.BatchNorm1d(3)), seed=0)
    with pytest.raises(BadInput, match="10x10"):
        cnn((1, 8, 8), 10)
