"""Which training SimuDy simulates, and on which engine: an MLP in the span of its records, a CNN in closed form, or
autograd for any other network."""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.attacks._reasons import why_not_smooth
from remanence.engine.surrogate import Surrogate, SurrogateState
from remanence.engine.unroll import Dynamics, GenericDynamics, Unrolled, segment_length
from remanence.engine.unroll_cnn import CNNDynamics
from remanence.engine.unroll_mlp import SpanDynamics
from remanence.errors import BadInput, check_above, check_min
from remanence.releases import KnowsFixed, KnowsTraining
from remanence.releases.checks import check_training
from remanence.search import ByProducts, Distance
from remanence.training import SGD, Training, remaining_fraction
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The training that is simulated, and how much of it forms a graph."""

    training: Training | None = None  # None: the victim's. The code of Tian et al. takes 8 of its 20 epochs
    clip: float | None = None  # gradients are clipped to so many of `mean_gradient_norm`; at first they explode
    segment: int | None = None  # steps to a graph; None: by free memory

    def __post_init__(self) -> None:
        check_min(self, segment=1)
        check_above(self, clip=0)
        if self.training is not None:
            check_training(self.training)

    def of_release(self, release: KnowsTraining, records: int) -> Training:
        """The training of `records` without the noise of DP-GD, which is the victim's own, and clipped; where it clips
        its own gradients, as it does."""
        training = self.training or release.training
        if training.privacy:
            training = replace(training, privacy=replace(training.privacy, noise=0.0))
        if self.clip is None or training.clip is not None:
            return training
        return replace(training, clip=self.clip * mean_gradient_norm(release, training, records=records))

    def unrolled(
        self,
        release: KnowsTraining,
        x: Tensor,
        labels: Tensor,
        *,
        distance: Distance,
        in_basis: bool,
        surrogate: Surrogate | None,
        seed: int,
    ) -> Unrolled:
        """The unrolled training of candidates that are initially `x`. `in_basis` expresses an MLP's first layer in the
        basis of its records, which whitening needs."""
        if isinstance(release, KnowsFixed):
            x, labels = torch.cat([release.fixed.x, x]), torch.cat([release.fixed.y, labels])
        records, like = len(labels), next(iter(release.final.values()))
        training = self.of_release(release, records)
        batches = tuple(b if b is None else b.to(like.device) for b in training.batches(records, seed))
        sizes = {
            "steps": len(batches),
            "batch": min(training.batch_size or records, records),
            "copies": 1 + len(training.optimizer.init({})),
        }
        endpoints = release.model, training, release.initial, release.final
        by_products = isinstance(distance, ByProducts)  # others may depend on the order of the weights
        cnn = None
        if by_products and not in_basis:
            cnn = CNNDynamics.from_release(*endpoints, records=records, shape=release.shape)
        if cnn is not None:
            cnn = cnn.with_surrogate(surrogate, x) if surrogate else cnn
            cnn, segment = cnn.fit_memory(release.shape, segment=self.segment, **sizes)
            return Unrolled(training=training, dynamics=cnn, batches=batches, segment=segment)
        segment = self.segment or segment_length(release.model, release.shape, like=like, **sizes)
        span = SpanDynamics.from_release(*endpoints, records=records, shape=release.shape) if by_products else None
        dynamics: Dynamics
        if in_basis or surrogate:
            dynamics = _smooth(release, training, records, span, distance, in_basis, surrogate, seed)
        else:
            generic = GenericDynamics(
                model=release.model, training=training, initial=release.initial, final=release.final
            )
            dynamics = span or generic
        return Unrolled(training=training, dynamics=dynamics, batches=batches, segment=segment)


def _smooth(
    release: KnowsTraining,
    simulated: Training,
    records: int,
    span: SpanDynamics | None,
    distance: Distance,
    in_basis: bool,
    surrogate: Surrogate | None,
    seed: int,
) -> SpanDynamics:
    """An MLP's dynamics in its basis, with a surrogate, or a reason why not."""
    victim = release.training
    if span is not None and in_basis:
        steps = len(list(victim.batches(records, seed))) if victim.weight_decay else 0
        span = span.in_basis(records, decay=remaining_fraction(victim, steps, records=records))
    if span is None:
        field = "whitening" if in_basis else "surrogate"
        why = why_not_smooth(release, simulated, distance, records, whitened=in_basis)
        raise BadInput(f"`{field}` cannot be used here, leave it out: {why}", code="unsupported-model", argument=field)
    if surrogate is None:
        return span
    scale = next(iter(release.final.values())).new_ones(())
    return replace(span, surrogate=SurrogateState.initial(surrogate, scale))


def mean_gradient_norm(release: KnowsTraining, training: Training, *, records: int) -> float:
    """The norm of the mean gradient with which the steps of `training` would go as far as the victim's weights went."""
    if not isinstance(training.optimizer, SGD):
        raise BadInput(
            f"`clip` is for trainings by SGD, got {training.optimizer}: leave it out",
            code="unsupported-training",
            argument="clip",
        )

    def one(params: Params, _batch: Tensor | None) -> Params:
        return {name: torch.ones_like(p) for name, p in params.items()}

    plain, steps = replace(training, privacy=None, weight_decay=0.0), list(training.batches(records, 0))
    unit = plain.descend(one, {"": torch.zeros((), dtype=torch.float64)}, steps, records=records, noise_seed=0)[""]
    trained = [name for name, _ in release.model.named_parameters()]
    update = torch.cat([(release.final[name] - release.initial[name]).flatten() for name in trained])
    if not unit:
        raise BadInput(
            "`clip` is for trainings that change the weights, got one with a learning rate of 0",
            code="unsupported-training",
            argument="clip",
        )
    return float(update.norm()) / float(-unit)
