"""The kernel against autograd: compiled on a CUDA device, run by Triton's interpreter elsewhere."""

import os
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is defined, so before it is imported
pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds and with the dev extra on Linux")

from remanence.engine.ensembles import fused  # noqa: E402
from remanence.engine.ensembles.mlp import Centre, Records, layers_of, plain_middle  # noqa: E402
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


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gives_what_autograd_gives(activation: str, clip: float | None, centred: bool) -> None:
    model = mlp((30,), 10, hidden=(7,), activation=ACTIVATIONS[activation])
    layers = layers_of(model, (30,))
    assert layers is not None
    generator = torch.Generator().manual_seed(0)
    x, y = 3 * torch.rand(75, 30, generator=generator), torch.randint(10, (75,), generator=generator)
    params = {
        n: p + 0.1 * torch.randn(p.shape, generator=generator) for n, p in initial_stack(model, 3, seed=0).items()
    }
    device = "cuda" if CUDA else "cpu"
    x, y, params = x.to(device), y.to(device), {name: p.to(device) for name, p in params.items()}
    records = Records(x=x, labels=y[None], squares=x.square().sum(1)[None])
    products = params["1.weight"] @ x.T
    assert fused.can_fuse(layers.activations, products, params["3.weight"])
    by_plain, plain = plain_middle(layers, params, products.clone(), records, clip, 0.5)
    centre = None
    if centred:
        centre = Centre(products=products[0] + 1, deltas=by_plain[1] - 1, gradient=torch.zeros(7, 30, device=device))
        products, by_plain = products - centre.products, by_plain - centre.deltas
    by_fused, found = fused.middle(layers.names, layers.activations[0], params, products, records, clip, 0.5, centre)
    assert torch.allclose(by_fused, by_plain, atol=1e-5)
    assert plain.keys() == found.keys()
    assert all(torch.allclose(found[name], value, atol=1e-3) for name, value in plain.items())


def test_nets_that_it_does_not_know_are_left_to_autograd() -> None:
    products, last = torch.zeros(2, 5, 9), torch.zeros(2, 10, 5)
    assert not fused.can_fuse((nn.ELU(), nn.ELU()), products, last)
    assert not fused.can_fuse((nn.GELU(),), products, last)  # the error function, not its approximation
    assert not fused.can_fuse((nn.Softplus(beta=2),), products, last)
    assert not fused.can_fuse((nn.Threshold(0.1, 20),), products, last)
    assert not fused.can_fuse((nn.ELU(),), products, torch.zeros(2, 100, 5))
