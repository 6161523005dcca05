"""What a net makes of records with given weights."""

from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.errors import BadInput
from remanence.types import Params


def apply(model: nn.Module, params: Params, x: Tensor) -> Tensor:
    """The logits of `model` with the weights `params`."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise BadInput(
                "a BatchNorm in training mode makes what a record gives depend on the others of its batch: freeze it "
                "with `model.eval()`, its statistics among the weights"
            )
    logits: Tensor = functional_call(model, params, (x,))
    return logits


def activations(model: nn.Module, shape: Sequence[int]) -> int:
    """How many numbers the layers of `model` put out for one record."""
    return outputs(model, shape).total()


def outputs(model: nn.Module, shape: Sequence[int]) -> Counter[str]:
    """How many each of them does."""
    counted = Counter[str]()

    def counts(path: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _layer, _inputs, output: counted.update({path: output.numel()})

    with torch.device("meta"):
        copy = deepcopy(model).to("meta")
    for path, layer in copy.named_modules():
        if not list(layer.children()) and not isinstance(layer, nn.Flatten):  # a view holds nothing
            layer.register_forward_hook(counts(path))
    copy(torch.empty(1, *shape, device="meta"))
    return counted
