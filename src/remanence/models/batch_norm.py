"""BatchNorm in training mode, as a client trains: a batch is normalised by its own statistics.

Ioffe, Szegedy, "Batch Normalization" (ICML 2015). A layer with momentum m makes of its running statistics r and those s
of a batch  (1 - m) r + m s.  torch does so in place and without a derivative; here both can be differentiated, again
and under `torch.func`.
"""

from copy import deepcopy
from itertools import chain
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from remanence.errors import BadInput
from remanence.models.functional import in_rows, tied_names, untied
from remanence.types import Params


def apply_to_batch(model: nn.Module, params: Params, x: Tensor) -> tuple[Tensor, Params]:
    """The logits of `model` for a batch `x` with every BatchNorm in training mode, whatever the mode of `model`, and
    the buffers of these layers after it: running statistics, and the number of batches."""
    everywhere = model.named_modules(remove_duplicate=False)  # a layer may be used at several places
    norms = {path: layer for path, layer in everywhere if isinstance(layer, _BatchNorm)}
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    copy, by_batch = deepcopy(model, shared), {id(layer): _ByBatch(layer) for layer in norms.values()}
    for path, layer in norms.items():
        parent, _, name = path.rpartition(".")
        setattr(copy.get_submodule(parent), name, by_batch[id(layer)])
    state = dict(untied(copy, params))  # of which `functional_call` exchanges what the forward pass assigned
    given = x.clone()  # a user's forward pass may normalise its input in place
    logits = in_rows(functional_call(copy, state, (given,), tie_weights=False), len(x))
    buffers = {f"{path}.{name}" for path, layer in norms.items() for name, _ in layer.named_buffers()}
    tied = tied_names(copy)
    return logits, {name: state[tied.get(name, name)] for name in params if name in buffers}


def running_statistics(model: nn.Module) -> list[str]:
    """The names of the running means and variances of all BatchNorms of `model`."""
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    return [
        f"{path}.{name}"
        for path, layer in layers
        for name in ("running_mean", "running_var")
        if getattr(layer, name) is not None
    ]


@final
class _ByBatch(nn.Module):
    """A BatchNorm in training mode, which replaces its buffers in place of writing to them."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(norm, name))
        self.eps, self.momentum = norm.eps, norm.momentum

    def forward(self, x: Tensor) -> Tensor:
        over = [dim for dim in range(x.ndim) if dim != 1]
        count = x.numel() // x.shape[1]
        if count < 2:
            message = "BatchNorm in training mode needs more than one value of each channel: a batch of two records"
            raise BadInput(message, code="out-of-range", argument="x")
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
        self._update(mean.flatten(), variance.flatten() * count / (count - 1))
        normalised = (x - mean) * (variance + self.eps).rsqrt()
        if self.weight is not None:
            channels = [-1 if dim == 1 else 1 for dim in range(x.ndim)]
            normalised = normalised * self.weight.view(channels) + self.bias.view(channels)
        return normalised

    def _update(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum or 0.0
        if self.num_batches_tracked is not None:
            self.num_batches_tracked = self.num_batches_tracked + 1
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else momentum
        self.running_mean = (1 - momentum) * self.running_mean + momentum * mean
        self.running_var = (1 - momentum) * self.running_var + momentum * variance
