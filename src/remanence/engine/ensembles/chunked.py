"""Many models that differ in one training record, trained at once."""

import warnings
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.engine.cuda import precision
from remanence.engine.ensembles import cnn as shared_cnn
from remanence.engine.ensembles import mlp as shared_mlp
from remanence.engine.generic import GenericEngine
from remanence.models import activations
from remanence.seeds import derive_seed
from remanence.training.training import Training
from remanence.types import Data, Params

CPU_CHUNK, CPU_CONV_CHUNK, DEVICE_CHUNK = 128, 16, 2048  # models at once: beyond them there is no more to gain
CPU_MEMORY = 256 << 20


def chunk_size(model: nn.Module, fixed: Data) -> int:
    """How many models are trained at once, the same for shadows and victims of one recipe on one device.

    Other shapes run through other kernels, which round otherwise, and a reconstructor would take that for signal. So
    the size follows from the device's whole memory, not from what happens to be free.
    """
    most, memory = CPU_CHUNK if shared_mlp.layers_of(model, fixed.shape) else CPU_CONV_CHUNK, CPU_MEMORY
    if fixed.x.device.type == "cuda":
        most, memory = DEVICE_CHUNK, torch.cuda.get_device_properties(fixed.x.device).total_memory // 4
    values = activations(model, fixed.shape) * (len(fixed) + 1)
    weights = sum(p.numel() for p in model.parameters())
    # bytes per model: values, inputs and their slopes; weights, gradients and what the optimiser keeps
    held = 16 * values + 24 * weights
    return int(max(1, min(most, memory // held)))


def chunks(model: nn.Module, fixed: Data, targets: Data) -> list[Data]:
    """The targets cut for `train_chunk`."""
    size = chunk_size(model, fixed)
    return [targets.take(slice(start, start + size)) for start in range(0, len(targets), size)]


def train_chunk(
    training: Training,
    model: nn.Module,
    initial: Params,
    fixed: Data,
    targets: Data,
    *,
    seed: int,
    noise_seed: int,
) -> Params:
    """For each target the weights after training on `fixed` and that target; the stack is the leading dimension.

    `seed` shuffles mini-batches, the same for all models; `noise_seed` draws the noise of DP-GD, each model's own.

    `initial` is one start for all or a stack of them, one for each target. A short chunk is padded with its first
    target, so that every chunk has the same shape.
    """
    places = torch.arange(chunk_size(model, fixed), device=targets.x.device)
    places = places.where(places < len(targets), 0)
    starts = stack(model, initial, places)
    with precision(tf32=training.tf32):
        stacked = _train(training, model, starts, fixed, targets.take(places), seed=seed, noise_seed=noise_seed)
    return {name: p[: len(targets)] for name, p in stacked.items()}


def _train(
    training: Training, model: nn.Module, starts: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """Halved as often as the device's memory asks for."""
    engines, given = (shared_mlp, shared_cnn), (training, model, fixed.shape, len(fixed) + 1)
    shared = next((engine for engine in engines if engine.can_share(*given)), None)
    train = shared.train_sharing if shared else train_by_vmap
    try:
        return train(training, model, starts, fixed, targets, seed=seed, noise_seed=noise_seed)
    except torch.OutOfMemoryError:
        if len(targets) == 1:
            raise
    warnings.warn(
        f"{len(targets)} models at once do not fit into the device's memory: they are trained in halves, which round "
        "otherwise than models trained at once",
        stacklevel=2,
    )
    torch.cuda.empty_cache()
    middle, halves = len(targets) // 2, []
    for i, half in enumerate((slice(0, middle), slice(middle, None))):
        part = {name: p[half] for name, p in starts.items()}
        own_noise = derive_seed(noise_seed, i)
        halves.append(_train(training, model, part, fixed, targets.take(half), seed=seed, noise_seed=own_noise))
    return {name: torch.cat([part[name] for part in halves]) for name in starts}


def train_by_vmap(
    training: Training, model: nn.Module, starts: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """Any model and any batch size, more slowly."""

    engine = GenericEngine(model=model, loss=training.loss, privacy=training.privacy)

    def one(params: Params, x: Tensor, y: Tensor, batch: Tensor | None) -> Params:
        records = torch.cat([fixed.x, x[None]]), torch.cat([fixed.y, y[None]])
        return engine.gradient(params, *(records if batch is None else (part[batch] for part in records)))

    def gradient(params: Params, batch: Tensor | None) -> Params:
        stacked: Params = vmap(one, in_dims=(0, 0, 0, None))(params, targets.x, targets.y, batch)
        return stacked

    count = len(fixed) + 1
    batches = training.batches(count, seed)
    return training.descend(gradient, starts, batches, records=count, noise_seed=noise_seed, stacked=True)


def stack(model: nn.Module, initial: Params, places: Tensor) -> Params:
    """The start of each place: the common one, or its row."""
    single = {name: p.ndim for name, p in chain(model.named_parameters(), model.named_buffers())}
    return {
        name: (p[places] if p.ndim > single[name] else p.expand(len(places), *p.shape)).contiguous()
        for name, p in initial.items()
    }
