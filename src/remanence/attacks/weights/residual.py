"""The residual of weights that are explained as a sum of gradients at candidates, and its gradient in closed form.

For an MLP  a_k = h_(k-1) W_k' + b_k,  h_k = relu(a_k)  with logits a_L, records i and multipliers `top` (i, class), the
weights that candidates explain are  W_k = D_k' h_(k-1)  with  D_L = top,  D_(k-1) = (D_k W_k) * s_(k-1). The derivative
s of the activation is sigmoid(alpha a) for the surrogate and 1[a > 0] for plain ReLU, and its own for a smooth
activation (`activations`). The objective is the sum of the squared residuals, each layer over a scale of its own
(Buzaglo et al. 2023). A leading dimension stacks restarts: the weights are shared, and products with them are one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from remanence.attacks.weights import activations as functions
from remanence.engine import elementwise, mlp
from remanence.errors import BadInput
from remanence.models.structure import MLP, Structure, parse
from remanence.types import Params

_MIN_FACTOR = 1e-6  # of the multipliers: at zero every gradient would be zero


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A layer, and the targets that candidates should explain: its weight and bias, or these in other coordinates."""

    weight: Tensor
    bias: Tensor | None
    target: Tensor
    bias_target: Tensor | None
    scale: float = 1.0  # by which the squared residual of the weight is divided
    bias_scale: float = 1.0
    whitening: tuple[Tensor, Tensor] | None = None  # L and R: the residual of the weight, and its target, are  L . R
    activation: nn.Module = nn.ReLU()  # after the layer, unless it is the last

    def whiten_inputs(self, inputs: Tensor) -> Tensor:
        return inputs if self.whitening is None else inputs @ self.whitening[1]

    def whiten_deltas(self, deltas: Tensor) -> Tensor:
        return deltas if self.whitening is None else deltas @ self.whitening[0].T


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Activations:
    """What a forward pass leaves: the `inputs` of each layer, and the derivative of each activation. That of ReLU is a
    sigmoid of `alpha` times the pre-activation or, with None, the step of plain ReLU."""

    inputs: list[Tensor]
    derivatives: list[Tensor]
    seconds: list[Tensor | None]  # second derivatives; None for ReLU, whose follow from the first
    alpha: Tensor | None
    logits: Tensor


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Residual:
    """The backpropagated `deltas` D_k, and what of each target and bias they do not explain."""

    deltas: list[Tensor]
    weights: list[Tensor]
    biases: list[Tensor | None]
    objective: Tensor  # (restarts,)


def layers_of(
    model: nn.Module, final: Params, shape: Sequence[int], *, relu_only: bool = True
) -> tuple[Layer, ...] | None:
    """The layers of an MLP with ReLU, or with any activation of `activations`; None for another network."""
    structure = parse(model, shape)
    if _refusal(structure, relu_only) or not isinstance(structure, MLP):
        return None
    after = (*structure.activations, nn.Identity())
    weights = [final[layer.weight] for layer in structure.layers]
    biases = [final[layer.bias] if layer.has_bias else None for layer in structure.layers]
    return tuple(
        Layer(weight=w, bias=b, target=w, bias_target=b, activation=activation)
        for w, b, activation in zip(weights, biases, after, strict=True)
    )


def why_no_layers(model: nn.Module, shape: Sequence[int], *, relu_only: bool = True) -> str:
    """Why `layers_of` finds none; empty where it does."""
    return _refusal(parse(model, shape), relu_only) or ""


def _refusal(structure: Structure, relu_only: bool) -> str | None:
    if relu_only or not isinstance(structure, MLP):
        return mlp.refusal(structure)
    for layer, activation in zip(structure.layers, structure.activations, strict=False):
        if (got := functions.refusal(activation)) is not None:
            return f"the activation after `{layer.path}` of the net is {got}"
    return mlp.refusal(replace(structure, activations=tuple(nn.ReLU() for _ in structure.activations)))


def check_layers(layers: Sequence[Layer]) -> None:
    """Refuse weights that tell nothing of records: half precision, not finite, or a layer of zeros."""
    for number, layer in enumerate(layers, start=1):
        if layer.weight.dtype not in (torch.float32, torch.float64):
            problem, code = f"are {layer.weight.dtype}: convert them to float32", "wrong-type"
        elif not bool(layer.weight.isfinite().all()):
            problem, code = "are not finite", "not-finite"
        elif not bool(layer.weight.any()):
            problem, code = "are all zero", "out-of-range"
        else:
            continue
        raise BadInput(f"the weights of linear layer {number} {problem}", code=code, argument="release")


def margin_signs(logits: Tensor, labels: Tensor, *, signed: bool) -> Tensor:
    """Coefficients (i, class) of each record's margin in its logits: 1 at the label and -1 at the closest competitor;
    with one output the label's sign, or 1 where multipliers are `signed`."""
    if logits.shape[-1] == 1:
        return torch.ones_like(logits) if signed else (2 * labels.to(logits) - 1)[:, None].expand_as(logits)
    index = labels[:, None].expand(*logits.shape[:-1], 1)
    rival = logits.scatter(-1, index, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(logits).scatter_(-1, index, 1.0).scatter_(-1, rival, -1.0)


def forward(
    layers: Sequence[Layer], x: Tensor, alpha: Tensor | None, shifts: Sequence[Tensor] | None = None
) -> Activations:
    """`shifts` are added to alpha a inside the surrogate: at a = 0 any derivative from 0 to 1 is as good as another."""
    inputs, derivatives, seconds = [x], list[Tensor](), list[Tensor | None]()
    for index, layer in enumerate(layers):
        out = linear(inputs[-1], layer.weight, layer.bias)
        if index == len(layers) - 1:
            break
        leak = functions.derivative_below_zero(layer.activation)
        second: Tensor | None = None
        if leak is None:
            value, first, second = functions.smooth(layer.activation, out)
        elif alpha is None:
            value, first = leaky_relu(out, leak), (out > 0).to(out).mul_(1 - leak).add_(leak)
        elif not leak and shifts is None and elementwise.applies(out, numbers=alpha):
            first, value = elementwise.relu_and_sigmoid(out, alpha), out
        else:
            scaled = alpha * out if shifts is None else torch.addcmul(shifts[index], alpha, out)
            first = scaled.sigmoid_()
            if leak:
                second = alpha * (1 - leak) * first * (1 - first)
                first = leak + (1 - leak) * first
            value = leaky_relu(out, leak) if leak else out.relu_()
        inputs.append(value)
        derivatives.append(first)
        seconds.append(second)
    return Activations(inputs=inputs, derivatives=derivatives, seconds=seconds, alpha=alpha, logits=out)


def backward(layers: Sequence[Layer], activations: Activations, top: Tensor) -> list[Tensor]:
    """D_k of every layer."""
    deltas = [top]
    for layer, derivative in zip(reversed(layers[1:]), reversed(activations.derivatives), strict=True):
        deltas.append((deltas[-1] @ layer.weight).mul_(derivative))
    return deltas[::-1]


def gram(layers: Sequence[Layer], activations: Activations, deltas: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Inner products of the records' gradients, none of which is ever formed: with each other (i, i), and with the
    targets (i)."""
    count, zeros = deltas[0].shape[-2], torch.zeros_like(deltas[0][..., 0])
    products, with_target = zeros[..., None].expand(*zeros.shape, count), zeros
    for layer, delta, inputs in zip(layers, deltas, activations.inputs, strict=True):
        overlap = inputs @ inputs.mT
        of_layer = ((delta @ layer.target) * inputs).sum(-1)
        if layer.bias_target is not None:
            ratio = layer.scale / layer.bias_scale
            overlap, of_layer = overlap + ratio, of_layer + ratio * (delta @ layer.bias_target)
        products = products + (delta @ delta.mT) * overlap / layer.scale
        with_target = with_target + of_layer / layer.scale
    return products, with_target


def unexplained(layers: Sequence[Layer], activations: Activations, top: Tensor) -> Residual:
    """The targets less what candidates with multipliers `top` explain."""
    deltas, objective = backward(layers, activations, top), top.new_zeros(top.shape[:-2])
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, delta, inputs in zip(layers, deltas, activations.inputs, strict=True):
        factors = layer.whiten_deltas(delta).mT, layer.whiten_inputs(inputs)
        weights.append((torch.addmm if delta.ndim == 2 else torch.baddbmm)(layer.target, *factors, alpha=-1))
        biases.append(None if layer.bias_target is None else layer.bias_target - delta.sum(-2))
        add_squares(objective, weights[-1], 1 / layer.scale)
        if (bias := biases[-1]) is not None:
            add_squares(objective, bias[..., None], 1 / layer.bias_scale)
    return Residual(deltas=deltas, weights=weights, biases=biases, objective=objective)


def add_squares(total: Tensor, matrices: Tensor, factor: float = 1.0) -> Tensor:
    """Add in place `factor` times the sum of squares of each matrix of a stack, without storing the squares."""
    norm = torch.linalg.vector_norm(matrices, dim=(-2, -1))
    return total.addcmul_(norm, norm, value=factor)


def fit_scale(layers: Sequence[Layer], residual: Residual) -> tuple[Residual, Tensor]:
    """The residual when all multipliers are scaled by the one factor that minimises it, and that factor (restarts,)."""
    product, square = torch.zeros_like(residual.objective), torch.zeros_like(residual.objective)
    total = torch.zeros_like(residual.objective)
    for layer, weight, bias in zip(layers, residual.weights, residual.biases, strict=True):
        explained = layer.target - weight
        product = product + (layer.target * explained).sum((-2, -1)) / layer.scale
        square = square + explained.square().sum((-2, -1)) / layer.scale
        total = total + layer.target.square().sum() / layer.scale
        if layer.bias_target is not None and bias is not None:
            explained = layer.bias_target - bias
            product = product + (layer.bias_target * explained).sum(-1) / layer.bias_scale
            square = square + explained.square().sum(-1) / layer.bias_scale
            total = total + layer.bias_target.square().sum() / layer.bias_scale
    factor = (product / square.clamp_min(torch.finfo(square.dtype).tiny)).clamp_min(_MIN_FACTOR)
    matrix, row = factor[..., None, None], factor[..., None]
    fitted = Residual(
        deltas=[matrix * delta for delta in residual.deltas],
        weights=[torch.lerp(layer.target, w, matrix) for layer, w in zip(layers, residual.weights, strict=True)],
        biases=[
            None if layer.bias_target is None or b is None else torch.lerp(layer.bias_target, b, row)
            for layer, b in zip(layers, residual.biases, strict=True)
        ],
        objective=total - 2 * factor * product + factor.square() * square,
    )
    return fitted, factor


def grad_deltas(layers: Sequence[Layer], activations: Activations, residual: Residual) -> list[Tensor]:
    """The gradient of the objective by each D_k; the last is that by `top`."""
    grads: list[Tensor] = []
    for index, layer in enumerate(layers):
        factor, grad = -2 / layer.scale, None
        if index:
            grad = _add_product(None, grads[-1] * activations.derivatives[index - 1], layer.weight.T)
        weight, last = residual.weights[index].mT, layer.whitening and layer.whitening[0]
        grad = _add_product(grad, layer.whiten_inputs(activations.inputs[index]), weight, factor, last=last)
        if (bias := residual.biases[index]) is not None:
            grad.add_(bias[..., None, :], alpha=-2 / layer.bias_scale)
        grads.append(grad)
    return grads


def grad_inputs(
    layers: Sequence[Layer],
    activations: Activations,
    residual: Residual,
    grad_deltas: Sequence[Tensor],
    *,
    grad_logits: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient by the candidates, added in place to `out` where it is given; `grad_logits` is what comes through a
    `top` that depends on them."""
    grad_out = grad_logits
    for index in reversed(range(len(layers))):
        layer, total = layers[index], None if index else out
        if grad_out is not None:
            total = _add_product(total, grad_out, layer.weight)
        deltas, last = layer.whiten_deltas(residual.deltas[index]), layer.whitening and layer.whitening[1].T
        total = _add_product(total, deltas, residual.weights[index], -2 / layer.scale, last=last)
        if index == 0:
            return total
        derivative, second_derivative = activations.derivatives[index - 1], activations.seconds[index - 1]
        if second_derivative is not None:
            errors = _add_product(None, residual.deltas[index], layer.weight)
            grad_out = total.mul_(derivative).add_(grad_deltas[index - 1] * errors * second_derivative)
        elif activations.alpha is None:
            grad_out = total.mul_(derivative)
        elif elementwise.applies(
            *(stacks := (total, grad_deltas[index - 1], residual.deltas[index - 1], derivative)),
            numbers=activations.alpha,
        ):
            grad_out = elementwise.through_surrogate(*stacks, activations.alpha)
        else:  # D is a multiple of the derivative s, whose own derivative is alpha s (1 - s)
            second = (grad_deltas[index - 1] * residual.deltas[index - 1]).mul_(activations.alpha)
            grad_out = second.lerp_(total, derivative)
    raise AssertionError


def grad_shifts(
    layers: Sequence[Layer], activations: Activations, residual: Residual, grad_deltas: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradient by the shifts of each surrogate; None for a smooth activation, which has none."""
    grads = list[Tensor | None]()
    parts = zip(layers[1:], grad_deltas, residual.deltas, activations.derivatives, activations.seconds, strict=False)
    for index, (layer, grad, delta, derivative, second) in enumerate(parts):
        if functions.derivative_below_zero(layers[index].activation) is None or activations.alpha is None:
            grads.append(None)
        elif second is None:
            grads.append(grad * delta * (1 - derivative))
        else:
            grads.append(grad * (residual.deltas[index + 1] @ layer.weight) * second / activations.alpha)
    return grads


def _add_product(
    total: Tensor | None, one: Tensor, other: Tensor, factor: float = 1.0, *, last: Tensor | None = None
) -> Tensor:
    """total + factor one @ other (@ last), in place, added by the product itself; `other` and `last` may be shared by
    the matrices of a stack."""
    beta = 1.0
    if last is not None:
        one, other = one @ other, last
    if total is None:
        total, beta = one.new_empty(*one.shape[:-1], other.shape[-1]), 0.0
    if other.ndim == 3:
        return total.baddbmm_(one, other, beta=beta, alpha=factor)
    total.view(-1, total.shape[-1]).addmm_(one.reshape(-1, one.shape[-1]), other, beta=beta, alpha=factor)
    return total
