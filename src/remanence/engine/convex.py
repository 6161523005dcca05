"""Linear models trained to the minimum of their regularised loss: L-BFGS on a stack of models at once.

Liu, Nocedal, "On the limited memory BFGS method" (1989). The loss is convex, so that derivatives along a step are
enough to choose its length, to the last digit: values of the loss, whose differences round off, are never compared.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import TypeAlias, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from remanence.errors import BadInput
from remanence.models.operations import Linear
from remanence.models.structure import MLP, parse
from remanence.progress import SOON, track
from remanence.training import QuasiNewton, Training
from remanence.training.losses import CrossEntropy, KnownLoss, Logistic, SquaredError
from remanence.types import Data, Params

_HISTORY = 10  # pairs of updates, as scikit-learn takes
_OVERSHOOT = 0.25  # of the derivative at the start of a step: how far beyond the minimum along it a step may end
_HALVINGS = 12
Weights: TypeAlias = Tensor  # (models, outputs, features, and one for the intercept)


_SHARED: WeakKeyDictionary[Data, tuple[Training, Params, "_Blocks"]] = WeakKeyDictionary()


def minimised(training: Training, model: nn.Module, initial: Params, data: Data) -> Params:
    """The weights of one linear model at the minimum of its loss on `data`."""
    stacked = {name: p[None] for name, p in initial.items()}
    objective = _Objective.from_training(training, model, stacked, data, targets=None)
    end = _lbfgs(objective, objective.stacked(stacked), _preconditioner(training, objective, stacked), training)
    return initial | {name: p[0] for name, p in objective.unstacked(end).items()}


def minimised_ensemble(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights at the minimum on `fixed` and that target, stacked; nothing is random here.

    They start from the minimum on `fixed` alone, to whose curvature one more record adds little, unless the optimizer
    says otherwise.
    """
    objective = _Objective.from_training(training, model, initial, fixed, targets)
    start, precondition = initial, _preconditioner(training, objective, initial)
    if precondition is not None:
        if fixed not in _SHARED or _SHARED[fixed][0] != training:
            shared = minimised(training, model, {name: p[0] for name, p in initial.items()}, fixed)
            at = {name: p[None] for name, p in shared.items()}
            _SHARED[fixed] = training, shared, _Blocks.from_objective(objective, objective.stacked(at))
        _, shared, precondition = _SHARED[fixed]
        start = {name: p.expand_as(initial[name]) for name, p in shared.items()}
    return initial | objective.unstacked(_lbfgs(objective, objective.stacked(start), precondition, training))


def _preconditioner(training: Training, objective: "_Objective", at: Params) -> "_Blocks | None":
    assert isinstance(training.optimizer, QuasiNewton)
    return _Blocks.from_objective(objective, objective.stacked(at)) if training.optimizer.preconditioned else None


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Objective:
    """The mean loss of each model on the fixed records and its own target, and weight decay."""

    layer: Linear
    loss: KnownLoss
    fixed: Tensor  # (n, features + 1)
    labels: Tensor  # (n,)
    targets: Tensor | None  # (models, features + 1)
    target_labels: Tensor | None  # (models, 1)
    decay: Tensor  # (features + 1,)

    @classmethod
    def from_training(
        cls, training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data | None
    ) -> "_Objective":
        structure, loss = _linear(model, fixed), _loss(training)
        layer, params = structure.layers[0], {name: p[0] for name, p in initial.items()}

        def entering(data: Data) -> Tensor:
            inputs = structure.inputs(params, data.x)
            return torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1) if layer.has_bias else inputs

        x = entering(fixed)
        decay = x.new_full((x.shape[1],), training.weight_decay)
        if layer.has_bias and not training.decay_biases:
            decay[-1] = 0.0
        return cls(
            layer=layer,
            loss=loss,
            fixed=x,
            labels=fixed.y,
            targets=None if targets is None else entering(targets),
            target_labels=None if targets is None else targets.y[:, None],
            decay=decay,
        )

    def take(self, models: Tensor) -> "_Objective":
        if self.targets is None or self.target_labels is None:
            return self
        return replace(self, targets=self.targets[models], target_labels=self.target_labels[models])

    @property
    def records(self) -> int:
        return len(self.fixed) + (self.targets is not None)

    def gradient(self, theta: Weights) -> Weights:
        logits = (self.fixed @ theta.flatten(0, 1).T).unflatten(1, theta.shape[:2]).transpose(0, 1)
        errors = self.loss.grad_logits(logits, self.labels)
        total = (errors.transpose(1, 2).flatten(0, 1) @ self.fixed).view_as(theta)
        if self.targets is not None and self.target_labels is not None:
            target_logits = (theta @ self.targets[:, :, None]).mT
            total = total + self.loss.grad_logits(target_logits, self.target_labels).mT * self.targets[:, None]
        return total / self.records + self.decay * theta

    def stacked(self, params: Params) -> Weights:
        weight = params[self.layer.weight]
        return torch.cat([weight, params[self.layer.bias][..., None]], dim=-1) if self.layer.has_bias else weight

    def unstacked(self, theta: Weights) -> Params:
        if not self.layer.has_bias:
            return {self.layer.weight: theta}
        return {self.layer.weight: theta[..., :-1].contiguous(), self.layer.bias: theta[..., -1].contiguous()}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Blocks:
    """The inverse of the Hessian's blocks on the diagonal, one for each output: (outputs, features, features)."""

    inverse: Tensor

    @classmethod
    def from_objective(cls, objective: "_Objective", theta: Weights) -> "_Blocks":
        """The blocks at the weights of the first model, on the records that all share."""
        x, blocks = objective.fixed, list[Tensor]()
        logits, units = x @ theta[0].T, torch.eye(theta.shape[1]).to(theta)
        for unit in units:
            curvature = objective.loss.hvp_logits(logits, objective.labels, unit.expand_as(logits)) @ unit
            block = (x * curvature[:, None]).T @ x / objective.records
            decay = objective.decay.clamp_min(1e-6 * float(block.diagonal().mean()))
            blocks.append(torch.cholesky_inverse(torch.linalg.cholesky(block + torch.diag(decay))))
        return cls(inverse=torch.stack(blocks))

    def __call__(self, gradient: Weights) -> Weights:
        return (gradient.transpose(0, 1) @ self.inverse).transpose(0, 1)


def _lbfgs(objective: _Objective, theta: Weights, precondition: _Blocks | None, training: Training) -> Weights:
    """The weights after at most as many steps as epochs, or where no entry of a model's gradient is above the
    tolerance; models that have come there are not stepped further."""
    assert isinstance(training.optimizer, QuasiNewton)
    end, models = theta.clone(), torch.arange(len(theta), device=theta.device)
    g, pairs = objective.gradient(theta), deque[tuple[Tensor, Tensor]](maxlen=_HISTORY)
    for _ in track(range(training.epochs), total=training.epochs, label="training", after=SOON):
        active = (g.abs().amax((1, 2)) > training.optimizer.tolerance).nonzero().flatten()
        if len(active) < len(theta):
            end[models] = theta
            models, theta, g, objective = models[active], theta[active], g[active], objective.take(active)
            pairs = deque(((update[active], change[active]) for update, change in pairs), maxlen=_HISTORY)
        if not len(active):
            break
        update, after = _step(objective, theta, g, -_two_loop(g, pairs, precondition))
        pairs.append((update, after - g))
        theta, g = theta + update, after
    end[models] = theta
    return end


def _step(objective: _Objective, theta: Weights, g: Weights, direction: Weights) -> tuple[Weights, Weights]:
    """The update along `direction`, and the gradient after it. The length is halved, or more, as long as the derivative
    along the direction says that the minimum was passed by far."""
    downhill, length = _dot(direction, g), theta.new_ones(len(theta))
    for _ in range(_HALVINGS):
        update = length[:, None, None] * direction
        after = objective.gradient(theta + update)
        beyond = _dot(direction, after)
        far = beyond > -_OVERSHOOT * downhill
        if not bool(far.any()):
            break
        length = torch.where(far, length * (downhill / (downhill - beyond)).clamp_max(0.5), length)
    return update, after


def _two_loop(g: Tensor, pairs: deque[tuple[Tensor, Tensor]], precondition: _Blocks | None) -> Tensor:
    """The product of each model's inverse Hessian, as L-BFGS estimates it, with its gradient."""
    q, used = g, list[tuple[Tensor, Tensor, Tensor, Tensor]]()
    for update, change in reversed(pairs):
        rho = (1 / _dot(update, change)).nan_to_num(posinf=0.0)
        alpha = rho * _dot(update, q)
        q = q - alpha[:, None, None] * change
        used.append((update, change, rho, alpha))
    if precondition is not None:
        r = precondition(q)
    elif pairs:
        update, change = pairs[-1]
        r = q * (_dot(update, change) / _dot(change, change))[:, None, None]
    else:
        r = q / q.flatten(1).norm(dim=1).clamp_min(1.0)[:, None, None]
    for update, change, rho, alpha in reversed(used):
        r = r + (alpha - rho * _dot(change, r))[:, None, None] * update
    return r


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((1, 2))


def _linear(model: nn.Module, data: Data) -> MLP:
    structure = parse(model, data.shape)
    if isinstance(structure, MLP) and len(structure.layers) == 1:
        return structure
    message = f"`optimizer` QuasiNewton is for linear models, whose loss is convex, got {structure}: use SGD or Adam"
    raise BadInput(message, code="unsupported-training", argument="optimizer")


def _loss(training: Training) -> KnownLoss:
    plain = training.batch_size is None and training.privacy is None and training.clip is None
    if plain and not training.lr_schedule and isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        return training.loss
    message = (
        "`optimizer` QuasiNewton is for full batches of CrossEntropy(), Logistic() or SquaredError() without DP-GD, "
        f"`clip` and `lr_schedule`, got {training}: use SGD or Adam"
    )
    raise BadInput(message, code="unsupported-training", argument="optimizer")
