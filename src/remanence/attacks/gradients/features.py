"""What enters the fully connected layers of a convolutional client, from their gradient, and its distance from that of
candidates: a closed-form step before gradient matching, which tells the records of a batch apart (ours)."""

from dataclasses import dataclass, replace
from typing import Any, Literal, final

from torch import Tensor

from remanence.attacks.base import Attack
from remanence.errors import BadInput
from remanence.models import Backbone, apply_to_batch
from remanence.releases import KnowsUpdate, split_gradient
from remanence.types import Reconstruction


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Features:
    """Features of some records of a batch, with their labels, and the layers that compute them from images."""

    backbone: Backbone
    batch_norm: Literal["frozen", "training"]
    estimate: Reconstruction

    def distance(self, x: Tensor) -> Tensor:
        """The mean squared distance of the features of the first candidates from these, relative to their norms."""
        target = self.estimate.x
        if self.batch_norm == "training":  # a record's features depend on the whole batch
            ours = apply_to_batch(self.backbone.model, self.backbone.params, x)[0].flatten(1)
        else:
            ours = self.backbone(x[: len(target)])
        return ((ours[: len(target)] - target).square().sum(1) / target.square().sum(1)).mean()


def reconstruct_features(release: KnowsUpdate, attack: Attack[Any], labels: Tensor, *, seed: int) -> Features | None:
    """The features of records by an `attack` on the gradient of the fully connected layers, whose classes are those of
    `labels`; None where there is no such gradient, or the attack finds none."""
    try:
        split = split_gradient(release)
        estimate = attack.run(replace(split.head, labels=labels), seed=seed)
    except BadInput:
        return None
    if estimate.y is None or not bool(estimate.x.any(1).all()):
        return None
    return Features(backbone=split.backbone, batch_norm=release.batch_norm, estimate=estimate)
