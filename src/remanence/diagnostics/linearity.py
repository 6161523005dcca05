"""How linear a training is: whether a record's gradient keeps its direction from epoch to epoch.

Tian et al., "Simulating Training Dynamics to Reconstruct Training Data from Deep Neural Networks" (ICLR 2025), call the
mean cosine M_lin. It takes the records, so only the owner can compute it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from remanence.attacks.weights import residual
from remanence.engine import follow, loss_gradient
from remanence.errors import BadInput
from remanence.models import input_normalisation
from remanence.progress import SOON, track
from remanence.releases import Victim
from remanence.training import CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.types import Caveat, Params, concat

_LINEAR = 0.8  # MLPs of Tian et al. 2025 lie at 0.91 and above, their ResNet-18 at 0.60
_VALUES = 1 << 27  # of per-example gradients, or of what they are products of, at a time


def gradient_linearity(victim: Victim, *, seed: int = 0) -> Tensor:
    """(records,): the mean cosine of a private record's gradients at the beginnings of any two epochs (M_lin).

    At one, the gradients of all epochs agree, and an attack that linearises the training has a chance; well below, only
    one that simulates it. `seed` shuffles mini-batches, because the victim does not hold the order of its own.
    """
    data, training = victim.private, victim.training
    if training.epochs < 2:
        raise BadInput(
            f"gradient_linearity() compares epochs, and `victim` was trained for {training.epochs}: train for more",
            code="unsupported-training",
            argument="victim",
        )
    follow_epochs = partial(_follow_epochs, victim, seed=seed)
    layers = residual.layers_of(victim.model, victim.initial, data.shape, relu_only=False)
    if layers is not None and isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        return _of_mlp(victim, layers, training.loss, follow_epochs)
    beginnings = list[Params]()
    follow_epochs(beginnings.append)
    per_example = vmap(partial(loss_gradient, victim.model, loss=training.loss), in_dims=(None, 0, 0))
    size = max(1, _VALUES // sum(p.numel() for p in victim.model.parameters()))
    parts = list(zip(data.x.split(size), data.y.split(size), strict=True))
    found = []
    for x, y in track(parts, total=len(parts), label="how linear the training is", after=SOON):
        total, present = torch.zeros(()), torch.zeros(())
        for at in beginnings:
            gradients = per_example(at, x[:, None], y[:, None])
            flat = torch.cat([g.flatten(1) for g in gradients.values()], dim=1)
            # the squares of what a certain classification leaves of a gradient would underflow
            largest = flat.abs().amax(1, keepdim=True)
            scaled = flat / torch.where(largest > 0, largest, 1.0)
            unit = scaled / scaled.norm(dim=1, keepdim=True).clamp_min(1.0)
            total, present = total.to(unit) + unit, present.to(unit) + (largest[:, 0] > 0)
        found.append(_mean_cosine(total.square().sum(1), present))
    return torch.cat(found)


def _follow_epochs(victim: Victim, visit: Callable[[Params], None], *, seed: int) -> None:
    """Train again, and show `visit` the weights at the beginning of each epoch."""
    data, index = concat([victim.fixed, victim.private]), count()
    per_epoch = victim.training.steps_per_epoch(len(data))

    def at_beginnings(params: Params) -> None:
        if next(index) % per_epoch == 0:
            visit(params)

    follow(at_beginnings, victim.training, victim.model, victim.initial, data, seed=seed)


def _of_mlp(
    victim: Victim,
    layers: Sequence[residual.Layer],
    loss: KnownLoss,
    follow_epochs: Callable[[Callable[[Params], None]], None],
) -> Tensor:
    """The index of an MLP from the inputs of its layers and the errors that are backpropagated to them: the gradient of
    a layer is their outer product, whose inner products need neither gradients nor the weights of several epochs."""
    data, normalisation = victim.private, input_normalisation(victim.model, victim.private.shape)
    size = max(1, _VALUES // (victim.training.epochs * sum(sum(layer.weight.shape) for layer in layers)))
    found = []
    for x, y in zip(data.x.split(size), data.y.split(size), strict=True):
        epochs = list[list[tuple[Tensor, Tensor]]]()

        def visit(params: Params, x: Tensor = x, y: Tensor = y, epochs: list[Any] = epochs) -> None:
            at = residual.layers_of(victim.model, params, data.shape, relu_only=False)
            assert at is not None
            activations = residual.forward(at, normalisation.inputs(params, x).flatten(1), None)
            deltas = residual.backward(at, activations, loss.grad_logits(activations.logits, y))
            # the squares of what a certain classification leaves of a gradient would underflow
            largest = torch.stack([delta.abs().amax(1) for delta in deltas]).amax(0)[:, None]
            scale = torch.where(largest > 0, largest, 1.0)
            epochs.append([(h, delta / scale) for h, delta in zip(activations.inputs, deltas, strict=True)])

        follow_epochs(visit)
        for record in track(range(len(x)), total=len(x), label="how linear the training is", after=SOON):
            gram = x.new_zeros(())
            for index, layer in enumerate(layers):
                h, deltas = (torch.stack([epoch[index][part][record] for epoch in epochs]) for part in (0, 1))
                gram = gram + (deltas @ deltas.T) * (h @ h.T + float(layer.bias is not None))
            norms = gram.diagonal().sqrt()
            unit = gram / torch.where(norms > 0, norms, 1.0) / torch.where(norms > 0, norms, 1.0)[:, None]
            found.append(_mean_cosine(unit.sum(), (norms > 0).sum().to(unit)))
    return torch.stack(found)


def _mean_cosine(square: Tensor, count: Tensor) -> Tensor:
    """The mean cosine of n vectors from the squared norm of the sum of their units,  n + 2 * (sum over pairs); one that
    is zero has no direction."""
    return (square - count) / (count * (count - 1)).clamp_min(1.0)


def linearity_caveat(mean: float) -> Caveat | None:
    """A caveat where the mean of `gradient_linearity` says that Linearised is not expected to work."""
    if mean >= _LINEAR:
        return None
    text = (
        f"A record's gradients at two epochs have a mean cosine of {mean:.2f}: training is far from linear. Expect "
        "little of Linearised; SimuDy, which simulates it, has a chance."
    )
    return Caveat(code="gradients-turn", text=text)
