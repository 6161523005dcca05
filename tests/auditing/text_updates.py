"""Updates of transformers on sequences of random words."""

import torch

from remanence.data import Tokens
from remanence.models import Transformer, decoder, encoder, transformer_params
from remanence.releases import TransformerUpdate, transformer_update
from remanence.releases.defenses import Defense
from remanence.types import Params

LENGTH, WORDS = 6, tuple(f"w{i}" for i in range(300))
LR = 0.1


def sampled(n: int, *, seed: int, first: int = 3) -> Tokens:
    """Sequences of random words, some more frequent than others, a few of them shorter."""
    generator = torch.Generator().manual_seed(seed)
    ids = first + (297 * torch.rand(n, LENGTH, generator=generator) ** 2).long()
    ids[::5, 4:] = 0
    return Tokens(ids=ids, y=torch.arange(n) % 2, vocabulary=WORDS, num_classes=2)


TRUTH, HELD_OUT = sampled(5, seed=0), sampled(400, seed=1)


def weights(model: Transformer) -> Params:
    return transformer_params(model, seed=1)


def released(defenses: tuple[Defense, ...] = (), *, truth: Tokens = TRUTH, causal: bool = True) -> TransformerUpdate:
    make = decoder(300, length=LENGTH, width=64) if causal else encoder(300, 2, length=LENGTH, width=64)
    return transformer_update(make, weights(make), truth, seed=0, defenses=defenses).release
