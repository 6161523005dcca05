"""What is done to released weights before an attack on them alone, and to its candidates after it."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights.residual import layers_of, subtracted_mean
from remanence.errors import BadInput, check_above
from remanence.releases import KnowsFinal
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The mean that candidates lack, and the norm that layers are scaled to."""

    mean: float | None = None  # added to every candidate; None: what the model subtracts from its records
    norm: float | None = None  # geometric mean of the layers' norms; without weight decay their length says nothing

    def __post_init__(self) -> None:
        check_above(self, norm=0)

    def scale(self, release: KnowsFinal) -> Params:
        """The final weights times one factor, so that the norms of the layers have the geometric mean `norm`.

        Without weight decay only the direction of the weights converges, and any length of them meets the same
        conditions; learning rates suit weights of one length.
        """
        model, final = release.model, release.final
        if self.norm is None:
            return final
        layers = layers_of(model, final, release.shape)
        if layers is None or any(layer.bias is not None for layer in layers[1:]):
            message = "`norm` scales MLPs with ReLU and no bias but the first layer's, got another net: leave it None"
            raise BadInput(message, code="unsupported-model", argument="norm")
        factor = self.norm / torch.stack([layer.weight.norm() for layer in layers]).log().mean().exp()
        trained = {name for name, _ in model.named_parameters()}
        return {name: factor * p if name in trained else p for name, p in final.items()}

    def records(self, release: KnowsFinal, x: Tensor) -> Tensor:
        """Records (n, *shape) of which the first layer takes `x` (n, pixels): with the mean added."""
        known = subtracted_mean(release.model, release.final, release.shape) if self.mean is None else None
        mean = known if self.mean is None else x.new_full((), self.mean)
        return (x if mean is None else x + mean.to(x)).view(len(x), *release.shape)
