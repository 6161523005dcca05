"""The shadow bank: pairs of weights and the one record that made the difference, made exactly as the victim was."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.errors import BadInput
from remanence.execution import Backend, Local
from remanence.progress import track
from remanence.release import KnowsRest, require
from remanence.training.stacked import chunks, train_chunk
from remanence.types import Data, Params


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ShadowBank:
    """Row k of `weights` is the flat parameter vector of the model trained on the fixed set and `targets` k."""

    weights: Tensor
    targets: Data


def build_bank(release: KnowsRest, public: Data, *, seed: int, backend: Backend | None = None) -> ShadowBank:
    """Train one shadow for each public record, by the release's own recipe from its own initial weights."""
    require(release, KnowsRest, by="a shadow bank")
    if len(public) == 0:
        raise BadInput("`public` is empty: a shadow bank needs public records to train on")
    public = public.to(release.fixed.x.device, release.fixed.x.dtype)

    def shadows(targets: Data) -> Tensor:
        return stack_weights(
            train_chunk(release.training, release.model, release.initial, release.fixed, targets, seed=seed)
        )

    cut = chunks(release.model, release.fixed, public)
    made = track((backend or Local()).map(shadows, cut), total=len(cut), label="shadow models")
    return ShadowBank(weights=torch.cat(list(made)), targets=public)


def stack_weights(stacked: Params) -> Tensor:
    """A stack of K models as K flat rows, in the order of the names: dicts of one model may be ordered differently."""
    return torch.cat([stacked[name].flatten(1) for name in sorted(stacked)], dim=1)
