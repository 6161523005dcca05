"""Many models that differ in one training record, trained at once."""

from math import prod

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.training.shared_mlp import can_share, layers_of, train_sharing
from remanence.training.train import Training
from remanence.types import Data, Params

CPU_CHUNK, DEVICE_CHUNK = 128, 2048  # models at once: what the caches hold, and where a device has no more to gain


def chunk_size(model: nn.Module, fixed: Data) -> int:
    """How many models are trained at once, the same for shadows and victims of one recipe on one device.

    Other shapes run through other kernels, which round otherwise, and a reconstructor would take that for signal. So
    the size follows from the device's whole memory, not from what happens to be free.
    """
    if fixed.x.device.type == "cpu":
        return CPU_CHUNK
    memory = torch.cuda.get_device_properties(fixed.x.device).total_memory
    layers = layers_of(model)
    per_record = sum(p.shape[0] for p in model.parameters()) if layers else prod(fixed.shape)
    held = 32 * (len(fixed) + 1) * per_record  # bytes per model: about eight floats for each number of each record
    return int(max(1, min(DEVICE_CHUNK, memory // 4 // held)))


def train_chunk(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target; the stack is the leading dimension.

    A short chunk is padded with its first target, so that every chunk has the same shape.
    """
    places = torch.arange(chunk_size(model, fixed))
    padded = targets.take(places.where(places < len(targets), 0))
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


def chunks(model: nn.Module, fixed: Data, targets: Data) -> list[Data]:
    """The targets cut for `train_chunk`."""
    size = chunk_size(model, fixed)
    return [targets.take(slice(start, start + size)) for start in range(0, len(targets), size)]
