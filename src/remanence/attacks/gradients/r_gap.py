"""R-GAP: the record behind one gradient of a convolutional network, in closed form, from the last layer to the first.

Zhu, Blaschko, "R-GAP: Recursive Gradient Attack on Privacy" (ICLR 2021). The gradient of a fully connected layer is
delta x^T: its input x follows, and what the loss sends back to x. A convolution z = W * x + b whose output is known
says two things that are linear in its input x: W * x = z - b, and the gradient of its weights, which correlates x with
dL/dz. Together they often have more equations than x has numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import grad, vjp, vmap

from remanence.attacks.gradients.entry import check_gradient
from remanence.attacks.gradients.labels import infer_labels
from remanence.bounds import clamp
from remanence.errors import BadInput
from remanence.models import apply
from remanence.models.functional import apply_operations
from remanence.models.operations import Activation, Conv, Flatten, Linear, Norm, Normalisation, Operation, describe
from remanence.models.structure import Unsupported, first_linear
from remanence.progress import track
from remanence.releases import KnowsGradient, require, split_gradient
from remanence.types import Params, Reconstruction

_MARGIN = 1e-12  # from the bounds of a sigmoid and the like, at which their inverse is infinite
_OFF = 1e-5  # of the largest output of a ReLU: what is smaller is rounding
_SINGULAR = 1e-9  # of the largest entry on the diagonal of R
_MAX_NUMBERS = 12_288  # that enter a convolution, 3 x 64 x 64: a minute
_MAX_ENTRIES = 250_000_000  # of its matrix of equations: two gigabytes, some three times as many at once
_AT_ONCE = 512  # columns of a matrix of equations


@final
@dataclass(frozen=True, kw_only=True)
class RGAP:
    """One record, layer by layer; the objective is the distance of its gradient from the one that was sent, relative
    to the norm of that one."""

    def run(self, release: KnowsGradient, *, seed: int) -> Reconstruction:
        require(release, KnowsGradient, by=type(self).__name__)
        layer, before = _checked(release)
        labels = release.labels
        if labels is None:
            labels = infer_labels(release, torch.zeros(1, *release.shape))
        params, sent = _double(release.at), _double(release.gradient)
        known = _features(release, layer, params, sent, labels)
        inputs = _inputs(before, params, like=known.value.new_zeros(1, *release.shape))
        order = list(zip(before, inputs, strict=True))[::-1]
        for operation, like in track(order, total=len(order), label="layers", after=1.0):
            known = _input(operation, params, sent, known, like)
        x = clamp(known.value, release.bounds).to(release.gradient[layer.weight])
        return Reconstruction(x=x, y=labels, objective=_distance(release, x, labels))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Known:
    """The output of an operation for the record, (1, ...), and the gradient of the loss with respect to it. `weight` is
    how much of a rounding of the output an activation after it leaves: none, where a ReLU is off."""

    value: Tensor
    gradient: Tensor
    weight: Tensor


def _features(release: KnowsGradient, layer: Linear, params: Params, sent: Params, labels: Tensor) -> _Known:
    """What enters the first fully connected layer. A gradient that was clipped is shorter than that of these features
    and their label: all gradients before the layer are taken to be as much shorter."""
    error, head = sent[layer.bias], split_gradient(release).head
    x = (error @ sent[layer.weight] / error.square().sum())[None]
    params = {name: params[name] for name in head.at}

    def loss(x: Tensor, bias: Tensor) -> Tensor:
        return release.loss(apply(head.model, {**params, layer.bias: bias}, x), labels.to(x.device))

    gradient, of_bias = grad(loss, argnums=(0, 1))(x, params[layer.bias])
    scale = (of_bias @ error) / of_bias.square().sum()
    return _Known(value=x, gradient=scale * gradient, weight=torch.ones_like(x))


def _input(operation: Operation, params: Params, sent: Params, known: _Known, like: Tensor) -> _Known:
    """What is known of the input of an operation, of the shape of `like`, by what is known of its output."""
    match operation:
        case Conv():
            value = _solved(operation, params, sent, known, like)
        case Activation():
            value = _INVERSES[type(operation.module)](operation.module, known.value)
        case Norm() | Normalisation():  # a scale and a shift of each number
            shift = apply_operations((operation,), params, torch.zeros_like(like))
            value = (known.value - shift) / (apply_operations((operation,), params, torch.ones_like(like)) - shift)
        case _:
            value = known.value.reshape(like.shape)

    def output(x: Tensor) -> Tensor:
        return apply_operations((operation,), params, x)

    weight = torch.ones_like(value) if isinstance(operation, Conv) else _vjp(output, value, known.weight)
    return _Known(value=value, gradient=_vjp(output, value, known.gradient), weight=weight)


def _vjp(function: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the loss with respect to the input of a function, by that with respect to its output."""
    found: Tensor = vjp(function, at)[1](gradient)[0]
    return found


def _solved(layer: Conv, params: Params, sent: Params, known: _Known, like: Tensor) -> Tensor:
    """The input of a convolution, by least squares, each equation weighted by how exactly it holds."""
    basis = torch.eye(like.numel()).to(like).reshape(-1, *like.shape[1:])
    shift = apply_operations((layer,), params, torch.zeros_like(like))
    outputs = torch.cat([apply_operations((layer,), params, some) - shift for some in basis.split(_AT_ONCE)])
    of_outputs = (known.weight * outputs).flatten(1), (known.weight * (known.value - shift)).flatten()
    systems = [of_outputs]
    if layer.weight in sent:

        def of_weight(x: Tensor) -> Tensor:
            weight = params[layer.weight]
            return _vjp(
                lambda w: apply_operations((layer,), {**params, layer.weight: w}, x[None]), weight, known.gradient
            )

        correlations = vmap(of_weight, chunk_size=_AT_ONCE)(basis).flatten(1)
        # not in the paper: both systems have rounding in proportion to their size, and so the same weight
        balance = of_outputs[0].norm() / correlations.norm()
        systems.append((balance * correlations, balance * sent[layer.weight].flatten()))
    columns, right = (torch.cat(parts, dim=-1) for parts in zip(*systems, strict=True))
    solution = _lstsq(columns.T, right)
    if solution is None:
        equations = int((known.weight != 0).sum()), sent[layer.weight].numel() if layer.weight in sent else 0
        raise _not_identifiable(
            f"the {like.numel():,} numbers that enter `{layer.path}` do not follow from {equations[0]:,} known outputs "
            f"and {equations[1]:,} gradients of its weights"
        )
    return solution.reshape_as(like)


def _lstsq(matrix: Tensor, right: Tensor) -> Tensor | None:
    """The solution of least squares by QR; None where it is not unique."""
    n = matrix.shape[1]
    if len(matrix) < n:
        return None
    factor = torch.linalg.qr(torch.cat([matrix, right[:, None]], 1), mode="r").R
    diagonal = factor[:n, :n].diagonal().abs()
    if not bool(diagonal.min() > _SINGULAR * diagonal.max()):
        return None
    solution: Tensor = torch.linalg.solve_triangular(factor[:n, :n], factor[:n, n:], upper=True)
    return solution


def _inputs(operations: Sequence[Operation], params: Params, *, like: Tensor) -> list[Tensor]:
    """Tensors of the shapes of what enters each operation, where a record `like` this one enters the first."""
    inputs = [like]
    for operation in operations[:-1]:
        inputs.append(apply_operations((operation,), params, inputs[-1]))
    return inputs


def _distance(release: KnowsGradient, x: Tensor, labels: Tensor) -> float:
    ours, sent = release.simulate(x, labels.to(x.device)), release.gradient
    differences = torch.stack([(ours[name] - sent[name]).norm() for name in sent]).norm()
    return float(differences / torch.stack([g.norm() for g in sent.values()]).norm())


def _double(params: Params) -> Params:
    return {name: p.detach().double() for name, p in params.items()}


def _relu(_: nn.Module, value: Tensor) -> Tensor:
    """Any negative number where it is off."""
    return torch.where(value > _OFF * value.max(), value, -1.0)


def _leaky_relu(module: Any, value: Tensor) -> Tensor:
    if module.negative_slope == 0:
        return _relu(module, value)
    return torch.where(value > 0, value, value / module.negative_slope)


def _elu(module: Any, value: Tensor) -> Tensor:
    if module.alpha == 0:
        return _relu(module, value)
    return torch.where(value > 0, value, (value / module.alpha).clamp_min(_MARGIN - 1).log1p())


def _celu(module: Any, value: Tensor) -> Tensor:
    return torch.where(value > 0, value, module.alpha * (value / module.alpha).clamp_min(_MARGIN - 1).log1p())


def _selu(_: nn.Module, value: Tensor) -> Tensor:
    scaled = value / _SELU_SCALE
    return torch.where(value > 0, scaled, (scaled / _SELU_ALPHA).clamp_min(_MARGIN - 1).log1p())


def _softplus(module: Any, value: Tensor) -> Tensor:
    scaled: Tensor = (module.beta * value).clamp_min(_MARGIN)
    inverse: Tensor = (scaled + (-(-scaled).expm1()).log()) / module.beta
    return inverse


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # of torch
_INVERSES: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.Sigmoid: lambda _, value: value.logit(_MARGIN),
    nn.Tanh: lambda _, value: value.clamp(_MARGIN - 1, 1 - _MARGIN).atanh(),
    nn.ReLU: _relu,
    nn.LeakyReLU: _leaky_relu,
    nn.ELU: _elu,
    nn.CELU: _celu,
    nn.SELU: _selu,
    nn.Softplus: _softplus,
    nn.Identity: lambda _, value: value,
}


def _checked(release: KnowsGradient) -> tuple[Linear, tuple[Operation, ...]]:
    """The first fully connected layer, and the operations before it, all of which have an inverse."""
    first = first_linear(release.model, release.shape)
    if isinstance(first, Unsupported):
        raise _unsupported(f"a net whose layers can be read, and of this one they cannot: {first.reason}")
    if not any(isinstance(each, Conv) for each in first.before):
        raise _unsupported(
            "convolutions before the first fully connected layer, and this network has none", "FirstLayer"
        )
    for each in first.before:
        if isinstance(each, Activation) and type(each.module) in _INVERSES:
            if _increases(each.module):
                continue
            raise _unsupported(f"activations that increase, which {each.module} does not")
        if not isinstance(each, Conv | Norm | Normalisation | Flatten):
            raise _unsupported(f"layers that can be inverted, which {describe([each])} cannot")
    if release.batch_norm == "training" and any(isinstance(each, Norm) for each in first.before):
        raise _unsupported(
            "BatchNorm frozen: in training mode its statistics are those of the batch, which are unknown"
        )
    for each in first.before:
        if isinstance(each, Conv) and not _is_small(each, release.at):
            raise _unsupported(
                f"smaller convolutions: {prod(each.in_shape):,} numbers enter `{each.path}`, {prod(each.out_shape):,} "
                "leave it, and its equations are too many to be solved"
            )
    layer = first.layer
    if not layer.has_bias or not {layer.weight, layer.bias} <= release.gradient.keys():
        raise _unsupported(f"the gradients of the weight and the bias of `{layer.path}`, which were not sent")
    if release.batch_size != 1:
        message = f"RGAP reads a batch of one record, got `batch_size` {release.batch_size}: use GradientMatching"
        raise BadInput(message, code="not-identifiable", argument="batch_size")
    check_gradient(release, [layer.bias])
    return layer, first.before


def _increases(module: Any) -> bool:
    """Whether an activation does not fall below zero, where two inputs would have one output."""
    match module:
        case nn.LeakyReLU():
            return float(module.negative_slope) >= 0
        case nn.ELU():
            return float(module.alpha) >= 0
    return True


def _is_small(layer: Conv, params: Params) -> bool:
    """Whether the equations of a convolution can be solved in memory, and in a minute."""
    unknowns, equations = prod(layer.in_shape), prod(layer.out_shape) + params[layer.weight].numel()
    return unknowns <= _MAX_NUMBERS and unknowns * equations <= _MAX_ENTRIES


def _unsupported(needs: str, instead: str = "GradientMatching") -> BadInput:
    message = f"RGAP needs {needs}: use {instead}"
    return BadInput(message, code="unsupported-model", argument="release")


def _not_identifiable(why: str) -> BadInput:
    message = f"RGAP cannot invert the network: {why}; use GradientMatching"
    return BadInput(message, code="not-identifiable", argument="release")
