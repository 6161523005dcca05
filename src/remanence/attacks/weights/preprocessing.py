"""What is done to released weights before an attack on them alone, and to its candidates after it."""

from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor

from remanence.attacks.weights.residual import layers_of
from remanence.bounds import centre
from remanence.errors import BadInput, check_above
from remanence.models import input_normalisation
from remanence.releases import KnowsFinal
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The mean that candidates lack, and the norm that layers are scaled to."""

    mean: float | None = None  # added to every candidate; None: the model's own normalisation is undone
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
        """Records (n, *shape) of which the first layer takes `x` (n, pixels): with the mean added, or with the model's
        own normalisation undone."""
        if self.mean is not None:
            return (x + self.mean).view(len(x), *release.shape)
        return input_normalisation(release.model, release.shape).records(_buffers(release, x), x)

    def stds(self, release: KnowsFinal, like: Tensor) -> Tensor | None:
        """(pixels,): what the model divides each pixel by before its first layer; None where it divides by nothing."""
        if self.mean is not None:
            return None
        one = like.new_ones(1, prod(release.shape))
        stds = input_normalisation(release.model, release.shape).to_records(_buffers(release, one), one).flatten()
        return None if bool((stds == 1).all()) else stds

    def grey(self, release: KnowsFinal, like: Tensor) -> Tensor:
        """(pixels,): what the first layer takes of a record whose pixels are all in the middle of their box."""
        half = like.new_full((1, *release.shape), centre(release.bounds))
        if self.mean is not None:
            return (half - self.mean).flatten()
        return input_normalisation(release.model, release.shape).inputs(_buffers(release, like), half).flatten()

    def unit(self, release: KnowsFinal, like: Tensor) -> float:
        """How much the first layer's inputs differ, in the root mean square, where pixels differ by one."""
        stds = self.stds(release, like)
        return 1.0 if stds is None else float(stds.reciprocal().square().mean().sqrt())


def _buffers(release: KnowsFinal, like: Tensor) -> Params:
    """What a model normalises its records by, in the dtype and device of `like`."""
    names = {name for name, _ in release.model.named_buffers()}
    return {name: p.to(like) for name, p in release.final.items() if name in names}
