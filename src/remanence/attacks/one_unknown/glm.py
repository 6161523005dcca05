"""The closed form for linear models: the one record that makes the trained weights stationary.

Balle, Cherubin, Hayes, "Reconstructing Training Data with Informed Adversaries" (IEEE S&P 2022) show that convex models
have one; the derivation here is our own. Training to convergence ends where the gradients of all N records and of the
weight decay cancel,

    sum over the fixed records of their gradients + g + N * weight_decay * theta = 0,

so the gradient g of the unknown record is the residual of the others; where biases are not decayed, theta stands
without them. A linear layer's row k has the gradient c_k x and its intercept c_k, with c the derivative of the loss by
the outputs (softmax - one-hot label for cross-entropy): their quotient is x. Squared error gives the target too.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.bounds import Bounds, clamp
from remanence.errors import BadInput
from remanence.models.structure import MLP, parse
from remanence.releases import KnowsFixed, require
from remanence.training import CrossEntropy, Logistic, SquaredError
from remanence.training.losses import KnownLoss
from remanence.types import Params, Reconstruction


@final
@dataclass(frozen=True, kw_only=True)
class GLM:
    """The closed form, without parameters; its objective is |g - gradient of the reconstruction| / |g|."""

    def run(self, release: KnowsFixed, *, seed: int) -> Reconstruction:
        require(release, KnowsFixed, by=type(self).__name__)
        residual = Residual.from_release(release)
        g, c, row = residual.gradient, residual.gradient[:, -1], residual.row
        record = residual.records((g[row, :-1] / c[row]).nan_to_num()[None])
        found = residual.inputs(record)
        label = _label(residual.loss, c, found @ residual.theta[:, :-1].T + residual.theta[:, -1])
        objective = (g - _gradient(residual.loss, residual.theta, found, label)).norm() / g.norm()
        return Reconstruction(x=record.to(release.fixed.x), y=label, objective=float(objective))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """The gradient g (outputs, features + 1) of the unknown record, in double precision, as it is a small difference
    of large sums, with the weights `theta` of the same shape."""

    structure: MLP
    params: Params
    loss: KnownLoss
    theta: Tensor
    gradient: Tensor
    bounds: Bounds  # of the records

    @classmethod
    def from_release(cls, release: KnowsFixed) -> "Residual":
        """The residual of a linear model; other models and trainings are refused."""
        structure, loss, training = _linear(release), _loss(release), release.training
        params = {name: p.double() for name, p in release.final.items()}
        layer = structure.layers[0]
        theta = torch.cat([params[layer.weight], params[layer.bias][:, None]], dim=1)
        inputs, y = structure.inputs(params, release.fixed.x.double()), release.fixed.y
        decayed = theta if training.decay_biases else torch.cat([theta[:, :-1], torch.zeros_like(theta[:, -1:])], 1)
        g = -_gradient(loss, theta, inputs, y) - (len(y) + 1) * training.weight_decay * decayed
        return cls(structure=structure, params=params, loss=loss, theta=theta, gradient=g, bounds=release.bounds)

    @property
    def row(self) -> int:
        """The row with the smallest rounding error."""
        return int(self.gradient[:, -1].abs().argmax())

    def inputs(self, x: Tensor) -> Tensor:
        """What the layer takes in for records."""
        return self.structure.inputs(self.params, x.double())

    def records(self, inputs: Tensor) -> Tensor:
        """The records, in their box, for which the layer takes in these inputs."""
        return clamp(self.structure.records(self.params, inputs), self.bounds)

    def complete(self, x: Tensor, features: slice) -> Tensor:
        """Records `x` (n, features) with these features inferred from all the others: each is taken for the unknown
        record, whose c the others give by least squares."""
        known = torch.ones(self.gradient.shape[1], dtype=torch.bool, device=x.device)
        known[features] = False
        g, entering = self.gradient[self.row], self.inputs(x)
        entering = torch.cat([entering, entering.new_ones(len(x), 1)], dim=1)
        c = (entering[:, known] @ g[known]) / entering[:, known].square().sum(1)
        entering[:, features] = (g[features] / c[:, None]).nan_to_num()
        return self.records(entering[:, :-1])


def _gradient(loss: KnownLoss, theta: Tensor, inputs: Tensor, y: Tensor) -> Tensor:
    """(outputs, features + 1): the gradient of the summed loss."""
    inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    return loss.grad_logits(inputs @ theta.T, y).T @ inputs


def _label(loss: KnownLoss, c: Tensor, logits: Tensor) -> Tensor:
    """The label, shape (1,), for which the loss has the derivative `c` (outputs,) at these logits (1, outputs)."""
    match loss:
        case CrossEntropy():
            return c.argmin()[None]  # the only class whose c is negative
        case Logistic():
            return (c < 0).long()
        case SquaredError():
            target = logits[0] - c / 2
            return (target - target.new_tensor(loss.values)).abs().argmin()[None]


def _linear(release: KnowsFixed) -> MLP:
    """The structure of a model of one linear layer."""
    structure = parse(release.model, release.shape)
    if isinstance(structure, MLP) and len(structure.layers) == 1 and structure.layers[0].has_bias:
        return structure
    message = (
        "`model` must be one linear layer with an intercept for GLM, of records as they are or normalised, such as "
        f"`mlp(shape, num_classes, hidden=())`, got {structure}: use RecoNN"
    )
    raise BadInput(message, code="unsupported-model", argument="release")


def _loss(release: KnowsFixed) -> KnownLoss:
    """The loss of a training that has a closed form; others are refused."""
    training = release.training
    if not isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        raise _unsupported(
            f"`loss` must be CrossEntropy(), Logistic() or SquaredError() for GLM, got {training.loss}: use RecoNN"
        )
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
    return training.loss


def _unsupported(message: str) -> BadInput:
    return BadInput(message, code="unsupported-training", argument="release")
