"""The shadow bank: pairs of weights and the one record that made the difference, made exactly as the victim was."""

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
from remanence.models import apply, initial_stack
from remanence.progress import track
from remanence.releases import KnowsAllButOne, KnowsFixed, require
from remanence.seeds import derive_seed
from remanence.shadow.rows import Rows, first_layer, stack_weights, unstack_weights
from remanence.shadow.store import Shards, Store
from remanence.training import Training
from remanence.types import Data, Params

Work: TypeAlias = tuple[int, Data]  # the place of a chunk's first shadow, and its targets


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowBank:
    """Row k of `weights` is the flat parameter vector of the model trained on the fixed set and `targets` k."""

    weights: Tensor
    targets: Data
    model: nn.Module | None = None
    initial: Params | None = None  # where all of them started; None: each has a start of its own

    def first_layer(self) -> Rows | None:
        return None if self.model is None else first_layer(self.model, self.targets.shape)

    def inputs_of(self, layer: Rows) -> Tensor:
        """(targets, features): what the layer sees of each target in the mean of the models."""
        assert self.model is not None
        mean = unstack_weights(self.model, self.weights.mean(dim=0))
        params = {name: mean[name] for name, _ in layer.encoder.named_parameters()}
        return torch.cat([apply(layer.encoder, params, x).flatten(1) for x in self.targets.x.split(1024)])


def build_bank(
    release: KnowsFixed, public: Data, *, seed: int, backend: Backend | None = None, store: Store | None = None
) -> ShadowBank:
    """Train one shadow for each public record, by the release's own recipe from its own initial weights.

    Where the release does not show these, each shadow starts from weights of its own, drawn by `initial_params`.

    Chunks of shadows that lie in `store` are not made again, and those made are put there one by one.
    """
    require(release, KnowsFixed, by="a shadow bank")
    if len(public) == 0:
        raise BadInput("`public` is empty: a shadow bank needs public records to train on")
    public = public.to(release.fixed.x.device, release.fixed.x.dtype)
    cut = chunks(release.model, release.fixed, public)
    work = list(zip(accumulate(map(len, cut[:-1]), initial=0), cut, strict=True))
    initial = release.initial if isinstance(release, KnowsAllButOne) else None
    train = TrainShadows(
        training=release.training,
        model=release.model,
        initial=initial,
        fixed=release.fixed,
        seed=seed,
    )
    shards = store.open(ingredients(release, public, seed=seed)) if store else None
    made = _train_all(train, work, backend or Local(), shards)
    weights = torch.cat([rows.to(public.x.device) for rows in made])
    return ShadowBank(weights=weights, targets=public, model=release.model, initial=initial)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainShadows:
    """From a chunk of targets to rows of weights; it holds no more than it needs, for it may travel."""

    training: Training
    model: nn.Module
    initial: Params | None  # None: each shadow has a start of its own
    fixed: Data
    seed: int

    def __call__(self, work: Work) -> Tensor:
        first, targets = work
        initial = self.initial
        if initial is None:
            drawn = initial_stack(self.model, len(targets), seed=derive_seed(self.seed, "starts of shadows", first))
            initial = {name: p.to(targets.x) for name, p in drawn.items()}
        seeds = {
            "seed": derive_seed(self.seed, "batches of shadows"),
            "noise_seed": derive_seed(self.seed, "shadows", first),
        }
        return stack_weights(train_chunk(self.training, self.model, initial, self.fixed, targets, **seeds))


def _train_all(train: TrainShadows, work: Sequence[Work], backend: Backend, shards: Shards | None) -> list[Tensor]:
    there = {start: shards.read(start) if shards else None for start, _ in work}
    kept = {start: rows for start, rows in there.items() if rows is not None}
    missing = [(start, targets) for start, targets in work if start not in kept]
    made = track(backend.map(train, missing), total=len(missing), label="shadow models")
    for (start, targets), rows in zip(missing, made, strict=True):
        if len(rows) != len(targets):
            raise BadInput(f"a worker trains {len(rows)} models at once, not {len(targets)}: use machines of one kind")
        if shards:
            shards.write(start, rows)
        kept[start] = rows
    return [kept[start] for start, _ in work]
