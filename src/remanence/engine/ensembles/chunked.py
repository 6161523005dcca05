"""Ensembles of models that differ in one training record, trained at once in chunks of a fixed size."""

import warnings
from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import vmap

from remanence.engine.base import GenericEngine, on_batches
from remanence.engine.convex import minimised_ensemble
from remanence.engine.cuda import precision
from remanence.engine.ensembles import cnn, mlp
from remanence.models import activations
from remanence.seeds import derive_seed
from remanence.training import CrossEntropy, QuasiNewton, Training
from remanence.types import Data, Params, concat

CPU_CHUNK, CPU_CONV_CHUNK, DEVICE_CHUNK = 128, 16, 2048  # models at once: larger chunks gain nothing
CPU_MEMORY = 256 << 20


def chunk_size(model: nn.Module, fixed: Data) -> int:
    """The number of models that are trained at once, the same for shadows and victims of one recipe on one device.

    Other shapes run through other kernels, which round differently, and a reconstructor would take that for signal. So
    the size follows from the device's total memory, not from what happens to be free.
    """
    maximum, memory = CPU_CHUNK if mlp.layers_of(model, fixed.shape) else CPU_CONV_CHUNK, CPU_MEMORY
    if fixed.x.device.type == "cuda":
        maximum, memory = DEVICE_CHUNK, torch.cuda.get_device_properties(fixed.x.device).total_memory // 4
    values = activations(model, fixed.shape) * (len(fixed) + 1)
    weights = sum(p.numel() for p in model.parameters())
    # bytes per model: activations, inputs and their gradients; weights, gradients and the optimizer's state
    size = 16 * values + 24 * weights
    return int(max(1, min(maximum, memory // size)))


def chunks(model: nn.Module, fixed: Data, targets: Data) -> list[Data]:
    """The targets, split for `train_chunk`."""
    size = chunk_size(model, fixed)
    return [targets.take(slice(start, start + size)) for start in range(0, len(targets), size)]


def train_chunk(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """For each target the weights after training on `fixed` and that target, stacked: each has the leading dimension
    (targets, ...).

    `seed` shuffles mini-batches, the same for all models; `noise_seed` samples the noise of DP-GD and the records of
    each step of DP-SGD, for each model by itself. `initial` holds the initial weights of all models, or a stack with
    one for each target. A short chunk is padded with its first target, so that every chunk has the same shape.
    """
    if training.sample_rate < 1:
        each = torch.arange(len(targets), device=targets.x.device)
        return train_one_by_one(training, model, stack(model, initial, each), fixed, targets, seed=noise_seed)
    indices = torch.arange(chunk_size(model, fixed), device=targets.x.device)
    indices = indices.where(indices < len(targets), 0)
    stacked = stack(model, initial, indices)
    with precision(tf32=training.tf32):
        final = _train(training, model, stacked, fixed, targets.take(indices), seed=seed, noise_seed=noise_seed)
    return {name: p[: len(targets)] for name, p in final.items()}


def _train(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """Train an ensemble, halved as often as the device's memory requires."""
    train = trainer(training, model, fixed)
    try:
        return train(training, model, initial, fixed, targets, seed=seed, noise_seed=noise_seed)
    except torch.OutOfMemoryError:
        if len(targets) == 1:
            raise
    warnings.warn(
        f"{len(targets)} models at once do not fit into the device's memory: they are trained in halves, which round "
        "differently from models trained at once",
        stacklevel=2,
    )
    torch.cuda.empty_cache()
    middle, halves = len(targets) // 2, []
    for i, half in enumerate((slice(0, middle), slice(middle, None))):
        part = {name: p[half] for name, p in initial.items()}
        seed_of_half = derive_seed(noise_seed, i)
        halves.append(_train(training, model, part, fixed, targets.take(half), seed=seed, noise_seed=seed_of_half))
    return {name: torch.cat([part[name] for part in halves]) for name in initial}


def trainer(training: Training, model: nn.Module, fixed: Data) -> Callable[..., Params]:
    """The function that trains an ensemble: MLPs and CNNs by full batches and cross-entropy have one of their own,
    and so have linear models that are trained to their minimum."""
    if isinstance(training.optimizer, QuasiNewton):
        return minimised_ensemble
    full_batch = training.batch_size is None or training.batch_size > len(fixed)
    if full_batch and isinstance(training.loss, CrossEntropy):
        if mlp.layers_of(model, fixed.shape) is not None:
            return mlp.train_ensemble
        if cnn.operations_of(model, fixed.shape) is not None:
            return cnn.train_ensemble
    return train_by_vmap


def train_by_vmap(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int, noise_seed: int
) -> Params:
    """Train an ensemble of any model with any batch size, more slowly than the specialised ones."""
    engine = GenericEngine(model=model, loss=training.loss, privacy=training.privacy)

    def one(params: Params, x: Tensor, y: Tensor, batch: Tensor | None) -> Params:
        records = torch.cat([fixed.x, x[None]]), torch.cat([fixed.y, y[None]])
        return engine.gradient(params, *(records if batch is None else (part[batch] for part in records)))

    def gradient(params: Params, batch: Tensor | None) -> Params:
        stacked: Params = vmap(one, in_dims=(0, 0, 0, None))(params, targets.x, targets.y, batch)
        return stacked

    count = len(fixed) + 1
    batches = training.batches(count, seed)
    return training.descend(gradient, initial, batches, records=count, noise_seed=noise_seed, stacked=True)


def train_one_by_one(
    training: Training, model: nn.Module, initial: Params, fixed: Data, targets: Data, *, seed: int
) -> Params:
    """Train an ensemble by DP-SGD. What it guarantees rests on Poisson samples that nobody knows: each model has its
    own, and its own noise."""
    engine, trained = GenericEngine(model=model, loss=training.loss, privacy=training.privacy), list[Params]()
    for k in range(len(targets)):
        data, params = concat([fixed, targets.take([k])]), {name: p[k] for name, p in initial.items()}
        gradient, seed_of_model = on_batches(engine.gradient, data.x, data.y), derive_seed(seed, "model", k)
        batches = training.batches(len(data), derive_seed(seed_of_model, "samples"))
        noise_seed = derive_seed(seed_of_model, "noise")
        trained.append(training.descend(gradient, params, batches, records=len(data), noise_seed=noise_seed))
    return {name: torch.stack([params[name] for params in trained]) for name in initial}


def stack(model: nn.Module, initial: Params, indices: Tensor) -> Params:
    """The initial weights of the models at `indices`: the common ones, or rows of a stack."""
    ndim = {name: p.ndim for name, p in chain(model.named_parameters(), model.named_buffers())}
    return {
        name: (p[indices] if p.ndim > ndim[name] else p.expand(len(indices), *p.shape)).contiguous()
        for name, p in initial.items()
    }
