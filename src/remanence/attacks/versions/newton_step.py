"""The Newton step between two versions: what the deletion of a record moved the weights by is the record's gradient.

Bertran, Tang, Kearns, Morgenstern, Roth, Wu, "Reconstruction Attacks on Machine Unlearning: Simple Models are
Vulnerable" (NeurIPS 2024). Let N records have been trained on to convergence with weight decay w, and k of them be
missing in the other version. Both versions are stationary, so that at the weights with the records

    sum of the k gradients  =  -N w theta_with + (N - k) w theta_without
                               + (N - k) (mean gradient at theta_without - mean gradient at theta_with),

the means being over the N - k records that stayed, which nobody shows. Other records of the same distribution take
their place: their mean changes by the same curvature, and labels drop out of it. The paper multiplies the change of the
weights by the Hessian of public records; the difference of gradients is that product along the straight line between
both versions, exactly. For one record a row of a linear layer is c x and its intercept c: their quotient is x.

Ours, without any public record: weight decay's part alone, whose rows are c x filtered by the curvature. Its intercepts
are filtered far more than its weights, so that x is the leading direction of the rows, as bright as images are.
"""

from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from remanence.attacks.base import Attack
from remanence.bounds import clamp
from remanence.engine import Engine, engine_for
from remanence.errors import BadInput, NotEnoughKnowledge, check_min, unknown_name
from remanence.models import apply
from remanence.models.normalisation import InputNormalisation
from remanence.models.operations import Linear, describe
from remanence.models.structure import Unsupported, first_linear
from remanence.releases import Gradient, KnowsVersions, require
from remanence.seeds import derive_seed
from remanence.training import CrossEntropy, SquaredError
from remanence.types import Data, Params, Reconstruction, float_like

_BRIGHT = 0.98  # quantile of a record's values that is taken for one, where nothing else gives its scale


@final
@dataclass(frozen=True, kw_only=True)
class NewtonStep:
    """One record in closed form, several by an attack on their gradient; the objective of one is
    |gradient - gradient of the reconstruction| / |gradient|."""

    # "decay": weight decay's alone, as if the release showed no public records
    curvature: Literal["public", "decay"] = "public"
    # not in the paper: weights have adapted to the records that they were trained on, whose curvature along the change
    # is smaller than that of other records
    shrinkage: float = 0.25  # by which fraction it is smaller
    several: Attack[Any] | None = None  # what reconstructs several records from their gradient, e.g. GradientMatching()

    def __post_init__(self) -> None:
        check_min(self, shrinkage=0)
        if self.curvature not in ("public", "decay"):
            raise unknown_name("curvature", self.curvature, ("public", "decay"))

    def run(self, release: KnowsVersions, *, seed: int) -> Reconstruction:
        require(release, KnowsVersions, by=type(self).__name__)
        _check_training(release)
        gradient = self.gradient(release)
        if release.count == 1:
            return _one_record(gradient, release, exact=self._public(release) is not None)
        if self.several is None:
            message = (
                f"NewtonStep reconstructs one record in closed form, and {release.count} were {release.change}: give "
                "an attack on their gradient, `NewtonStep(several=GradientMatching())`"
            )
            raise NotEnoughKnowledge(message, code="not-enough-knowledge", argument="several")
        return self.several.run(gradient, seed=derive_seed(seed, "several"))

    def gradient(self, release: KnowsVersions) -> Gradient:
        """The estimated mean gradient of the records that were deleted or added, at the version that has them."""
        deleted, like, training = release.change == "deleted", float_like(release.final), release.training
        present, missing = (release.before, release.final) if deleted else (release.final, release.before)
        at, other = _double(present), _double(missing)
        stayed = release.records - release.count if deleted else release.records
        public = self._public(release)
        change = None if public is None else _change(release, at, other, public)
        gradient = dict[str, Tensor]()
        for name, _ in release.model.named_parameters():
            decay = training.weight_decay if training.decays(name) else 0.0
            total = decay * (stayed * other[name] - (stayed + release.count) * at[name])
            if change is not None:
                total += (1 - self.shrinkage) * stayed * change[name]
            gradient[name] = (total / release.count).to(like)
        return Gradient(
            model=release.model,
            at=present,
            gradient=gradient,
            labels=None,
            batch_size=release.count,
            shape=release.shape,
            bounds=release.bounds,
            loss=training.loss,
        )

    def _public(self, release: KnowsVersions) -> Data | None:
        """The public records that are used; without any there must be weight decay."""
        if self.curvature == "public" and release.public is not None and len(release.public):
            return release.public
        if not release.training.weight_decay:
            message = "NewtonStep needs `public` records or a training with weight decay, and this release has neither"
            raise NotEnoughKnowledge(message, argument="public")
        return None


def _change(release: KnowsVersions, at: Params, other: Params, public: Data) -> Params:
    """By how much the mean gradient of public records changes between the versions.

    Under cross-entropy their labels are the probabilities of the model itself: training records have next to no loss,
    and neither have these. For a linear model labels do not matter.
    """
    like = float_like(at)
    x, labels = public.x.to(like), public.y.to(like.device)
    if isinstance(release.training.loss, CrossEntropy):
        with torch.no_grad():
            labels = apply(release.model, at, x).softmax(-1)
    engine = engine_for(release.model, release.training, release.shape)
    first, second = engine.gradient(at, x, labels), engine.gradient(other, x, labels)
    return {name: second[name] - g for name, g in first.items()}


def _one_record(sent: Gradient, release: KnowsVersions, *, exact: bool) -> Reconstruction:
    """The record whose rows of the first layer, weighted by their intercepts, explain the gradient best, and its class
    likewise. Where intercepts are not `exact`, the leading direction of the rows."""
    layer, normalisation = _first_layer(release)
    at, gradient = _double(sent.at), _double(sent.gradient)
    rows, bias = gradient[layer.weight], gradient[layer.bias]
    if exact:
        x = normalisation.records(at, ((bias @ rows) / bias.square().sum()).nan_to_num()[None])
        x = clamp(x, release.bounds)
    else:
        x = clamp(_leading_direction(normalisation.to_records(at, rows)), release.bounds)
    loss = release.training.loss
    classes = len(loss.values) if isinstance(loss, SquaredError) else release.num_classes
    engine = engine_for(release.model, release.training, release.shape)
    labels = torch.arange(classes, device=x.device)
    residuals = torch.stack([_residual(engine, at, gradient, x, label) for label in labels])
    best = residuals.argmin()
    size = torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()
    return Reconstruction(x=x.to(float_like(sent.gradient)), y=best[None], objective=float(residuals[best] / size))


def _leading_direction(rows: Tensor) -> Tensor:
    """The one record (1, *shape) of which these rows (neurons, *shape) are multiples: of either sign the one
    whose values are more uneven, as few are large in images and tables, and `_BRIGHT` of them are below one."""
    direction: Tensor = torch.linalg.svd(rows.flatten(1), full_matrices=False).Vh[0]
    direction = direction * direction.pow(3).sum().sign()
    scale = direction.quantile(_BRIGHT).clamp_min(torch.finfo(direction.dtype).tiny)
    return (direction / scale).view(1, *rows.shape[1:])


def _residual(engine: Engine, at: Params, gradient: Params, x: Tensor, label: Tensor) -> Tensor:
    ours = engine.gradient(at, x, label[None])
    return torch.stack([(g - ours[name]).square().sum() for name, g in gradient.items()]).sum().sqrt()


def _first_layer(release: KnowsVersions) -> tuple[Linear, InputNormalisation]:
    """The linear layer with an intercept that records enter, and how they enter it."""
    first = first_linear(release.model, release.shape)
    if isinstance(first, Unsupported):
        why = first.reason
    elif first.normalisation is None:
        why = f"this one begins with {describe(first.before)}"
    elif not first.layer.has_bias:
        why = f"`{first.layer.path}` has no intercept"
    else:
        return first.layer, first.normalisation
    message = f"`model` must begin with a linear layer with an intercept for NewtonStep on one record; {why}"
    raise BadInput(message, code="unsupported-model", argument="release")


def _check_training(release: KnowsVersions) -> None:
    training = release.training
    if training.privacy is not None:
        message = f"`privacy` must be None for NewtonStep, got {training.privacy}: the versions differ by noise"
    elif getattr(training.optimizer, "weight_decay", 0):
        message = (
            f"`optimizer` must not decay the weights itself for NewtonStep, got {training.optimizer}: use the "
            "`weight_decay` of Training, whose stationary point is known"
        )
    else:
        return
    raise BadInput(message, code="unsupported-training", argument="release")


def _double(params: Params) -> Params:
    return {name: p.detach().double() if p.is_floating_point() else p for name, p in params.items()}
