"""What records explain of each layer of a trained network, and images that explain its convolutions alone.

Where training with weight decay has converged  n wd theta = -sum_i grad l_i  holds of every layer. A kernel of a
convolution sums over records and positions, and there are fewer numbers in all kernels than in the records: that the
true records explain them does not mean that others do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.models import apply
from remanence.models.operations import Conv, Linear, walk
from remanence.models.structure import Unsupported, parse
from remanence.releases import KnowsFinal
from remanence.search import Variable, Variables
from remanence.training import Loss
from remanence.types import Params

_FLOOR = 1e-30  # of a squared norm


def layer_names(model: nn.Module, shape: Sequence[int]) -> dict[str, list[str]]:
    """The parameters of each convolution and each fully connected layer of a CNN, by its path."""
    structure = parse(model, shape)
    assert not isinstance(structure, Unsupported)
    operations = walk(getattr(structure, "operations", getattr(structure, "layers", ())))
    layers = [each for each in operations if isinstance(each, Conv | Linear)]
    return {layer.path: [layer.weight, layer.bias][: 1 + layer.has_bias] for layer in layers}


def unexplained_by_layer(
    model: nn.Module, final_params: Params, layers: dict[str, list[str]], loss: Loss, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """The fraction of each layer's squared weights that the gradient of the loss at `x` leaves, times the best factor;
    more than one where it points away from them. ReLU's derivative at its boundary is as it is. Autograd goes
    through."""
    names = [name for each in layers.values() for name in each]
    params = {name: final_params[name].detach().requires_grad_() for name in names}
    value = loss(apply(model, final_params | params, x), y)
    grads = dict(zip(names, torch.autograd.grad(value, list(params.values()), create_graph=True), strict=True))

    def left(of_layer: list[str]) -> Tensor:
        weights = torch.cat([final_params[name].flatten() for name in of_layer])
        explained = torch.cat([-grads[name].flatten() for name in of_layer])
        squares = weights.square().sum() * explained.square().sum()
        cosine = (weights * explained).sum() / squares.clamp_min(_FLOOR).sqrt()
        return 1 - cosine * cosine.abs()

    return {path: left(of_layer) for path, of_layer in layers.items()}


def outside_span(weight: Tensor, features: Tensor) -> float:
    """The fraction of a layer's squared weights outside the span of `features` (n, width), which enter it."""
    basis = torch.linalg.qr(features.T)[0]
    inside = (weight @ basis).square().sum()
    return 1 - float(inside / weight.square().sum())


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExplainedKernels:
    """What images (restarts, n, *shape) leave unexplained of these layers of a network: the mean over the layers."""

    release: KnowsFinal
    layers: dict[str, list[str]]
    loss: Loss
    labels: Tensor
    initial: Tensor
    capturable: bool = False

    def init(self) -> dict[str, Variable]:
        return {"x": Variable(init=self.initial, bounds=self.release.bounds)}

    def set_progress(self, progress: float) -> None:
        """Nothing depends on it."""

    def select(self, restarts: Tensor) -> "ExplainedKernels":
        return replace(self, initial=self.initial[restarts])

    def value_and_grad(self, v: Variables) -> tuple[Tensor, Variables]:
        with torch.enable_grad():
            x = v["x"].detach().requires_grad_()
            value = torch.stack([self.value(each) for each in x])
            (grad,) = torch.autograd.grad(value.sum(), x)
        return value.detach(), {"x": grad}

    def value(self, x: Tensor) -> Tensor:
        """The objective of one set of images, through which autograd goes."""
        release = self.release
        left = unexplained_by_layer(release.model, release.final, self.layers, self.loss, x, self.labels)
        return torch.stack(list(left.values())).mean()
