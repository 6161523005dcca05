"""The closed form for linear models: the one record that makes the trained weights stationary.

Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022) show that convex models
have one; the derivation here is our own. Training to convergence ends where the gradients of all N records and of the
weight decay cancel,

    sum over the fixed records of their gradients + g + N * weight_decay * theta = 0,

so the gradient g of the unknown record is the residual of the others. Under cross-entropy a linear layer's row k has
the gradient c_k x and its intercept c_k, with c = softmax - one-hot label: their quotient is x.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.models.operations import Linear
from remanence.models.structure import MLP, parse
from remanence.releases import KnowsAllButOne, require
from remanence.training import CrossEntropy
from remanence.types import Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class GLM:
    """The closed form, without parameters; its objective is |g - gradient of the reconstruction| / |g|."""

    def run(self, release: KnowsAllButOne, *, seed: int) -> Reconstruction:
        require(release, KnowsAllButOne, by=type(self).__name__)
        layer = _layer(release)
        _check(release)
        weight, bias = release.final[layer.weight], release.final[layer.bias]
        theta = torch.cat([weight, bias[:, None]], dim=1).double()  # as g is a small difference of large sums
        x, y = release.fixed.x.flatten(1), release.fixed.y
        g = -_gradient(theta, x, y) - (len(y) + 1) * release.training.weight_decay * theta
        c = g[:, -1]
        row = c.abs().argmax()  # the row with the smallest rounding error
        record = (g[row, :-1] / c[row]).nan_to_num().clamp(0, 1)[None]
        label = c.argmin()[None]  # the only class whose c is negative
        objective = (g - _gradient(theta, record, label)).norm() / g.norm()
        return Reconstruction(x=record.to(x).unflatten(1, release.shape), y=label, objective=float(objective))


def _gradient(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(classes, features + 1): the gradient of the summed cross-entropy."""
    x = torch.cat([x.double(), x.new_ones(len(x), 1).double()], dim=1)
    c = (x @ theta.T).softmax(dim=1)
    c[torch.arange(len(y), device=y.device), y] -= 1
    return c.T @ x


def _layer(release: KnowsAllButOne) -> Linear:
    """The one layer of a linear model."""
    structure = parse(release.model, release.shape)
    layers = structure.layers if isinstance(structure, MLP) and not structure.normalised else ()
    if len(layers) == 1 and layers[0].has_bias:
        return layers[0]
    message = (
        "`model` must be one linear layer with an intercept for GLM, on records as they are, such as "
        f"`mlp(shape, num_classes, hidden=())`, got {structure}: use RecoNN"
    )
    raise BadInput(message, code="unsupported-model", argument="release")


def _check(release: KnowsAllButOne) -> None:
    """Refuse trainings that have no closed form."""
    training = release.training
    if not isinstance(training.loss, CrossEntropy):
        raise _unsupported(f"`loss` must be CrossEntropy() for GLM, got {training.loss}: use RecoNN")
    if training.privacy is not None:
        raise _unsupported(f"`privacy` must be None for GLM, got {training.privacy}: the residual is noise; use RecoNN")
    if training.batch_size is not None and training.batch_size <= len(release.fixed):
        raise _unsupported(
            f"`batch_size` must be None (full batch) for GLM, got {training.batch_size}: "
            "mini-batches do not reach a stationary point; use RecoNN"
        )
    if getattr(training.optimizer, "weight_decay", 0):
        raise _unsupported(
            f"`optimizer` must not decay the weights itself for GLM, got {training.optimizer}: "
            "use the `weight_decay` of Training, whose stationary point is known"
        )


def _unsupported(message: str) -> BadInput:
    return BadInput(message, code="unsupported-training", argument="release")
