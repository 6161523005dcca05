"""The shadow bank: models trained exactly as the victim was, each with a public record in place of the unknown one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from remanence.caching import ingredients
from remanence.engine.ensembles.chunked import chunks, train_chunk
from remanence.errors import BadInput
from remanence.execution import Backend, Local
from remanence.models import apply_operations, initial_stack
from remanence.progress import track
from remanence.releases import KnowsAllButOne, KnowsFixed, require
from remanence.seeds import derive_seed
from remanence.shadow.rows import Rows, first_layer, stack_weights, unstack_weights
from remanence.shadow.store import Shards, Store
from remanence.training import Training
from remanence.types import Data, Params

Chunk: TypeAlias = tuple[int, Data]  # the index of its first shadow, and its targets


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowBank:
    """Shadow models and their targets: model k was trained on the fixed set and record k of `targets`."""

    weights: Tensor  # (models, parameters): flat parameter vectors
    targets: Data
    model: nn.Module | None = None
    initial: Params | None = None  # the initial weights of all models; None: each has others
    rows: Rows | None = None  # those of the first layer, where `weights` hold only a part of the parameters

    def first_layer(self) -> Rows | None:
        """The rows of the first fully connected layer in `weights`, if there is one."""
        if self.rows is not None or self.model is None:
            return self.rows
        return first_layer(self.model, self.targets.shape)

    def inputs_of(self, layer: Rows) -> Tensor:
        """(targets, features): the inputs of `layer` for each target, in the mean of the models."""
        assert self.model is not None
        mean = unstack_weights(self.model, self.weights.mean(dim=0))
        return torch.cat([apply_operations(layer.encoder, mean, x).flatten(1) for x in self.targets.x.split(1024)])


def build_bank(
    release: KnowsFixed, public: Data, *, seed: int, backend: Backend | None = None, store: Store | None = None
) -> ShadowBank:
    """Train one shadow for each public record, by the training algorithm and from the initial weights of the release.

    Where the release does not show these, each shadow has initial weights of its own, sampled by `initial_params`.

    Chunks of shadows that are in `store` are loaded, and those that are trained are written to it one by one.
    """
    require(release, KnowsFixed, by="a shadow bank")
    if len(public) == 0:
        raise BadInput("`public` is empty: a shadow bank needs public records", code="empty", argument="public")
    public = public.to(release.fixed.x.device, release.fixed.x.dtype)
    targets = chunks(release.model, release.fixed, public)
    work = list(zip(accumulate(map(len, targets[:-1]), initial=0), targets, strict=True))
    initial = release.initial if isinstance(release, KnowsAllButOne) else None
    train = TrainShadows(
        training=release.training, model=release.model, initial=initial, fixed=release.fixed, seed=seed
    )
    shards = store.open(ingredients(release, public, seed=seed)) if store else None
    trained = _train_all(train, work, backend or Local(), shards)
    weights = torch.cat([rows.to(public.x.device) for rows in trained])
    return ShadowBank(weights=weights, targets=public, model=release.model, initial=initial)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainShadows:
    """Trains the shadows of a chunk, (index of the first, targets) -> (models, parameters). It is sent to workers, so
    it holds no more than it needs."""

    training: Training
    model: nn.Module
    initial: Params | None  # None: each shadow has initial weights of its own
    fixed: Data
    seed: int

    def __call__(self, chunk: Chunk) -> Tensor:
        first, targets = chunk
        initial = self.initial
        if initial is None:
            sampled = initial_stack(self.model, len(targets), seed=derive_seed(self.seed, "starts of shadows", first))
            initial = {name: p.to(targets.x) for name, p in sampled.items()}
        seeds = {
            "seed": derive_seed(self.seed, "batches of shadows"),
            "noise_seed": derive_seed(self.seed, "shadows", first),
        }
        return stack_weights(train_chunk(self.training, self.model, initial, self.fixed, targets, **seeds))


def _train_all(train: TrainShadows, work: Sequence[Chunk], backend: Backend, shards: Shards | None) -> list[Tensor]:
    stored = {first: shards.read(first) if shards else None for first, _ in work}
    done = {first: rows for first, rows in stored.items() if rows is not None}
    missing = [(first, targets) for first, targets in work if first not in done]
    trained = track(backend.map(train, missing), total=len(missing), label="shadow models")
    for (first, targets), rows in zip(missing, trained, strict=True):
        if len(rows) != len(targets):
            message = f"a worker of `backend` trains {len(rows)} models at once, not {len(targets)}: use equal machines"
            raise BadInput(message, code="conflict", argument="backend")
        if shards:
            shards.write(first, rows)
        done[first] = rows
    return [done[first] for first, _ in work]
