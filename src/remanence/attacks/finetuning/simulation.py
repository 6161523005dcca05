"""Which training SimuDy simulates, and on which engine: an MLP in the span of its records, a CNN in closed form, or
autograd for any other network."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias, final

import torch
from torch import Tensor

from remanence.engine import cnn_structure, mlp
from remanence.engine.surrogate import Surrogate, SurrogateState
from remanence.engine.unroll import Dynamics, GenericDynamics, Unrolled, segment_length, updated_names
from remanence.engine.unroll_cnn import CNNDynamics
from remanence.engine.unroll_mlp import SpanDynamics
from remanence.errors import BadInput, check_above, check_min
from remanence.models.structure import CNN, MLP, parse
from remanence.releases import KnowsFixed, KnowsTraining
from remanence.releases.checks import check_training
from remanence.search import ByProducts, Distance
from remanence.training import (
    SGD,
    Adam,
    AdamW,
    CrossEntropy,
    Logistic,
    RMSProp,
    SquaredError,
    Training,
    remaining_fraction,
)
from remanence.types import Params, float_like

Auto: TypeAlias = Literal["auto"]
_CLIP = 10.0  # of convolutional nets


@final
@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The training that is simulated, and how much of it forms a graph."""

    training: Training | None = None  # None: the victim's. The code of Tian et al. takes 8 of its 20 epochs
    clip: float | Auto | None = "auto"  # gradients, in units of `mean_gradient_norm`; auto: 10 for CNNs trained by SGD
    segment: int | None = None  # steps to a graph; None: by free memory

    def __post_init__(self) -> None:
        check_min(self, segment=1)
        if self.clip != "auto":
            check_above(self, clip=0)
        if self.training is not None:
            check_training(self.training)

    def training_of(self, release: KnowsTraining, records: int) -> Training:
        """The training of `records` without the noise and the samples of DP-GD, which are the victim's own, and
        clipped; where it clips its own gradients, as it does."""
        training, clip = (self.training or release.training).expected, self.clip
        if clip == "auto":
            simple = isinstance(training.optimizer, SGD) and training.optimizer.lr > 0 and not training.privacy
            clip = _CLIP if simple and isinstance(parse(release.model, release.shape), CNN) else None
        if clip is None or training.clip is not None:
            return training
        return replace(training, clip=clip * mean_gradient_norm(release, training, records=records))

    def unrolled(
        self,
        release: KnowsTraining,
        x: Tensor,
        labels: Tensor,
        *,
        distance: Distance | None,
        in_basis: bool | Auto,
        surrogate: Surrogate | Auto | None,
        seed: int,
    ) -> Unrolled:
        """The unrolled training of candidates that are initially `x`. `in_basis` expresses an MLP's first layer in the
        basis of its records, which whitening needs; "auto" takes it, and a surrogate, where they can be used."""
        if isinstance(release, KnowsFixed):
            x, labels = torch.cat([release.fixed.x, x]), torch.cat([release.fixed.y, labels])
        records, like = len(labels), float_like(release.final)
        training = self.training_of(release, records)
        batches = tuple(b if b is None else b.to(like.device) for b in training.batches(records, seed))
        sizes = {
            "steps": len(batches),
            "batch": min(training.batch_size or records, records),
            "copies": 1 + len(training.optimizer.init({})),
        }
        closed_form = distance is None or isinstance(distance, ByProducts)  # others may depend on the weights' order
        closed_form = closed_form and not _frozen(release)  # where all layers are trained
        used = Surrogate() if surrogate == "auto" else surrogate
        endpoints = release.model, training, release.initial, release.final
        if closed_form and in_basis is not True:
            cnn = CNNDynamics.from_release(*endpoints, records=records, shape=release.shape)
            if cnn is not None:
                cnn = cnn.with_surrogate(used, x) if used else cnn
                cnn, segment = cnn.fit_memory(release.shape, segment=self.segment, **sizes)
                return Unrolled(training=training, dynamics=cnn, batches=batches, segment=segment)
        span = _span(release, training, records, in_basis, seed) if closed_form else None
        if span is None and (in_basis is True or isinstance(surrogate, Surrogate)):
            field = "whitening" if in_basis is True else "surrogate"
            why = _refusal(release, training, distance, records, whitened=in_basis is True)
            problem = f"`{field}` cannot be used here, leave it out: {why}"
            raise BadInput(problem, code="unsupported-model", argument=field)
        if span is not None and used is not None:
            span = replace(span, surrogate=SurrogateState.initial(used, like.new_ones(())))
        dynamics: Dynamics = span or GenericDynamics.from_release(*endpoints)
        segment = self.segment or segment_length(release.model, release.shape, like=like, **sizes)
        return Unrolled(training=training, dynamics=dynamics, batches=batches, segment=segment)


def _span(
    release: KnowsTraining, simulated: Training, records: int, in_basis: bool | Auto, seed: int
) -> SpanDynamics | None:
    """An MLP in the span of its records, and in their basis where that is asked for and possible."""
    endpoints, victim = (release.model, simulated, release.initial, release.final), release.training
    span = SpanDynamics.from_release(*endpoints, records=records, shape=release.shape)
    if span is None or not in_basis or (in_basis == "auto" and not isinstance(victim.optimizer, SGD)):
        return span
    steps = len(list(victim.batches(records, seed))) if victim.weight_decay else 0
    basis = span.in_basis(records, decay=remaining_fraction(victim, steps, records=records))
    return basis or (span if in_basis == "auto" else None)


def _refusal(
    release: KnowsTraining, training: Training, distance: Distance | None, records: int, *, whitened: bool
) -> str:
    """The first reason why a surrogate cannot replace ReLU's derivative, or why layers cannot be whitened."""
    structure = parse(release.model, release.shape)
    convolved = not whitened and isinstance(structure, CNN)
    refusal = cnn_structure.refusal(structure) if convolved else mlp.refusal(structure)
    of_net = iter([refusal] if refusal else [])
    if frozen := _frozen(release):
        return f"the training kept `{frozen[0]}` frozen"
    if isinstance(structure, MLP):
        of_net = chain(of_net, _refusals_by_size(structure, records, whitened=whitened))
    return next(chain(_refusals_of_training(training, distance, convolved=convolved), of_net))


def _frozen(release: KnowsTraining) -> list[str]:
    """The parameters that the victim's training left as they were."""
    trained = updated_names(release.model, release.initial, release.final)
    return [name for name, _ in release.model.named_parameters() if name not in trained]


def _refusals_of_training(training: Training, distance: Distance | None, *, convolved: bool) -> Iterator[str]:
    if training.privacy:
        yield "DP-GD clips the gradient of each record by itself"
    if training.clip is not None and not convolved:
        yield "gradients are clipped (`clip`)"
    if training.weight_decay and not training.decay_biases:
        yield "weights are decayed, but not biases (`decay_biases`)"
    if not isinstance(training.optimizer, (SGD, Adam, AdamW, RMSProp) if convolved else SGD):
        yield f"the optimizer is {type(training.optimizer).__name__}"
    if not isinstance(training.loss, CrossEntropy | Logistic | SquaredError):
        yield "the loss is none of CrossEntropy, Logistic and SquaredError"
    if distance is not None and not isinstance(distance, ByProducts):
        yield "the distance is neither `L2()` nor `Cosine()`"


def _refusals_by_size(structure: MLP, records: int, *, whitened: bool) -> Iterator[str]:
    first = structure.layers[0]
    if records >= first.in_features:
        yield f"there are {records} records, and a record has only {first.in_features} values"
    if whitened and records >= first.out_features:
        yield f"there are {records} records, and the first layer has only {first.out_features} neurons"
    yield "the net has no hidden layer"


def mean_gradient_norm(release: KnowsTraining, training: Training, *, records: int) -> float:
    """The norm of the mean gradient with which the steps of `training` would go as far as the victim's weights went."""
    if not isinstance(training.optimizer, SGD):
        message = f"`clip` is for trainings by SGD, got {training.optimizer}: leave it out"
        raise BadInput(message, code="unsupported-training", argument="clip")

    def one(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.ones_like(p) for name, p in params.items()}

    plain, steps = replace(training, privacy=None, weight_decay=0.0), list(training.batches(records, 0))
    unit = plain.descend(one, {"": torch.zeros((), dtype=torch.float64)}, steps, records=records, noise_seed=0)[""]
    trained = [name for name, _ in release.model.named_parameters()]
    update = torch.cat([(release.final[name] - release.initial[name]).flatten() for name in trained])
    if not unit:
        message = "`clip` is for trainings that change the weights, got one with a learning rate of 0"
        raise BadInput(message, code="unsupported-training", argument="clip")
    return float(update.norm()) / float(-unit)
