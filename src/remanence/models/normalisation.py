"""The affine map from records to what the first layer of a network takes in, and its inverse."""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from remanence.models.operations import Flatten, Normalisation
from remanence.types import Params


@final
@dataclass(frozen=True, kw_only=True)
class InputNormalisation:
    """What is done to records before the first layer: normalised by buffers, and flattened where that layer is fully
    connected. Without `steps` the layer takes them as they are."""

    shape: tuple[int, ...]  # of a record
    steps: tuple[Flatten | Normalisation, ...]

    def inputs(self, params: Params, x: Tensor) -> Tensor:
        """What the first layer takes in for records `x` (n, *shape)."""
        for step in self.steps:
            x = step(params, x) if isinstance(step, Normalisation) else x.flatten(1)
        return x

    def records(self, params: Params, inputs: Tensor) -> Tensor:
        """The records (n, *shape) for which the first layer takes in `inputs`, which may be flat."""
        x = self._as_entering(inputs)
        for step in reversed(self.steps):
            x = step.inverse(params, x) if isinstance(step, Normalisation) else x.view(-1, *self.shape)
        return x

    def to_records(self, params: Params, directions: Tensor) -> Tensor:
        """Directions in the space of `inputs` as directions in the space of records (n, *shape).

        The map is diagonal: it also takes gradients by records, as they enter, to gradients by inputs.
        """
        x = self._as_entering(directions)
        for step in reversed(self.steps):
            x = step.scaled(params, x) if isinstance(step, Normalisation) else x.view(-1, *self.shape)
        return x

    def _as_entering(self, x: Tensor) -> Tensor:
        flat = any(isinstance(step, Flatten) for step in self.steps)
        return x if flat else x.view(-1, *self.shape)
