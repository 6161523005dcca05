"""Many models that differ in one training record, trained at once."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.training.shared_mlp import can_share, train_sharing
from remanence.training.train import Training
from remanence.types import Data, Params

# Of one size everywhere, so that shadows and victims come out of the same kernels: other kernels round otherwise, and a
# reconstructor would take their rounding for signal.
CHUNK = 128


def train_chunk(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target; the stack is the leading dimension.

    A chunk shorter than CHUNK is padded with its first target, so that every chunk has the same shape.
    """
    index = torch.arange(CHUNK).where(torch.arange(CHUNK) < len(targets), torch.tensor(0))
    padded = targets.take(index)
    if can_share(training, model, len(fixed) + 1):
        stacked = train_sharing(training, model, initial, fixed, padded)
    else:
        stacked = _train_by_vmap(training, model, initial, fixed, padded, seed=seed)
    return {name: p[: len(targets)] for name, p in stacked.items()}


def _train_by_vmap(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int
) -> Params:
    """Any model and any batch size, more slowly."""
    batches = list(training.batches(len(fixed) + 1, seed))  # drawn out here: the stack shares them

    def one(x: Tensor, y: Tensor) -> Params:
        return training.run(model, initial, torch.cat([fixed.x, x[None]]), torch.cat([fixed.y, y[None]]), batches)

    stacked: Params = vmap(one)(targets.x, targets.y)
    return stacked


def chunks(targets: Data) -> Iterator[Data]:
    for start in range(0, len(targets), CHUNK):
        yield targets.take(slice(start, start + CHUNK))
