"""The Triton kernel against autograd: compiled on a CUDA device, run by Triton's interpreter elsewhere."""

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is defined, so before it is imported
pytest.importorskip("triton", minversion="3.6", reason="Triton 3.6 comes with the test extra on Linux")

from remanence.engine.ensembles import fused  # noqa: E402
from remanence.engine.ensembles.mlp import Centre, Records, autograd_middle, layers_of  # noqa: E402
from remanence.models import initial_stack, mlp  # noqa: E402

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "max(-0.5, x)": partial(nn.Threshold, -0.5, -0.5),
    "ELU": partial(nn.ELU, alpha=0.7),
    "Sigmoid": nn.Sigmoid,
    "Softplus": nn.Softplus,
    "Swish": nn.SiLU,
    "LeakyReLU": partial(nn.LeakyReLU, 0.2),
    "Tanh": nn.Tanh,
    "CELU": partial(nn.CELU, alpha=1.7),
    "SELU": nn.SELU,
    "GELU": partial(nn.GELU, approximate="tanh"),
    "Identity": nn.Identity,
}


@pytest.mark.parametrize(
    ("activation", "clip", "centred"),
    [("ReLU", None, False), ("ReLU", 1.0, False), *((name, 1.0, True) for name in ACTIVATIONS)],
)
def test_the_kernel_agrees_with_autograd(activation: str, clip: float | None, centred: bool) -> None:
    model = mlp((30,), 4, hidden=(3,), activation=ACTIVATIONS[activation])
    layers = layers_of(model, (30,))
    generator = torch.Generator().manual_seed(0)
    x, y = 3 * torch.rand(40, 30, generator=generator), torch.randint(4, (40,), generator=generator)
    params = {
        n: p + 0.1 * torch.randn(p.shape, generator=generator) for n, p in initial_stack(model, 2, seed=0).items()
    }
    device = "cuda" if CUDA else "cpu"
    x, y, params = x.to(device), y.to(device), {name: p.to(device) for name, p in params.items()}
    records = Records(x=x, labels=y[None], squares=x.square().sum(1)[None])
    products = params["1.weight"] @ x.T
    assert fused.can_fuse(layers.activations, products, params["3.weight"])
    deltas, grads = autograd_middle(layers, params, products.clone(), records, clip, 0.5)
    centre = None
    if centred:
        centre = Centre(products=products[0] + 1, deltas=deltas[1] - 1, gradient=torch.zeros(3, 30, device=device))
        products, deltas = products - centre.products, deltas - centre.deltas
    found = fused.middle(layers.names, layers.activations[0], params, products, records, clip, 0.5, centre)
    assert torch.allclose(found[0], deltas, atol=1e-5)
    assert grads.keys() == found[1].keys()
    assert all(torch.allclose(found[1][name], value, atol=1e-3) for name, value in grads.items())


def test_other_networks_are_left_to_autograd() -> None:
    products, last = torch.zeros(2, 5, 9), torch.zeros(2, 10, 5)
    assert not fused.can_fuse((nn.ELU(), nn.ELU()), products, last)
    assert not fused.can_fuse((nn.GELU(),), products, last)  # the error function, not its approximation
    assert not fused.can_fuse((nn.Softplus(beta=2),), products, last)
    assert not fused.can_fuse((nn.Threshold(0.1, 20),), products, last)
    assert not fused.can_fuse((nn.ELU(),), products, torch.zeros(2, 100, 5))
