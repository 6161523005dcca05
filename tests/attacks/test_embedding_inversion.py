"""Images from embeddings: planted ones are recovered, digits come closer than any public one, objectives are right."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from remanence.attacks import DecoderFitting, EmbeddingInversion, FittedInversion, Search, TotalVariation
from remanence.attacks.embeddings.inversion import MatchedEmbeddings, mismatch
from remanence.data import Split, load, split
from remanence.models import Backbone, initial_params
from remanence.training import Adam
from remanence.types import Data

QUICK = EmbeddingInversion(
    decoder=DecoderFitting(width=8, epochs=15, batch_size=64, optimizer=Adam(lr=3e-3)),
    search=Search(optimizer=Adam(lr=0.02), steps=60),
    prior=TotalVariation(weight=0.02),
    anchor=1.0,
)


def convolutions() -> Backbone:
    """Two random convolutions."""
    with torch.device("meta"):
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return Backbone(name="random", model=model, params=initial_params(model, seed=1), shape=(1, 8, 8))


@cache
def digits() -> Split:
    return split(load("digits"), private=60, fixed=0, public=800, test=1, seed=0)


@cache
def fitted() -> FittedInversion:
    return QUICK.fit(convolutions(), digits().public, seed=0)


def errors(found: Tensor) -> Tensor:
    return (found - digits().private.x).square().flatten(1).mean(1)


@pytest.mark.slow
def test_the_decoder_beats_the_mean_and_the_public_image_with_the_nearest_embedding() -> None:
    inversion, public, backbone = fitted(), digits().public.x, convolutions()
    embeddings = backbone.embed(digits().private.x)
    nearest = public[torch.cdist(embeddings, backbone.embed(public)).argmin(1)]
    decoded = errors(inversion.decode(embeddings)).mean()
    assert decoded < 0.4 * errors(public.mean(0).expand(60, -1, -1, -1)).mean()
    assert decoded < 0.8 * errors(nearest).mean()


@pytest.mark.slow
def test_the_search_brings_embeddings_and_images_closer_than_the_decoder() -> None:
    inversion, backbone = fitted(), convolutions()
    embeddings = backbone.embed(digits().private.x)
    decoded, found = inversion.decode(embeddings), inversion.images(embeddings)
    before, after = (mismatch(backbone.embed(x), embeddings) for x in (decoded, found))
    assert float(after.mean()) < 0.6 * float(before.mean())
    assert float(errors(found).mean()) < float(errors(decoded).mean())
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


@pytest.mark.slow
def test_the_images_of_an_embedding_that_holds_all_pixels_are_exact() -> None:
    backbone = Backbone(name="pixels", model=nn.Sequential(nn.Conv2d(1, 1, 1)), params=PIXELS, shape=(1, 8, 8))
    free = replace(
        QUICK,
        prior=TotalVariation(weight=0.0),
        anchor=0.0,
        search=Search(optimizer=Adam(lr=0.02), steps=400),
        decoder=replace(QUICK.decoder, epochs=1),
    )
    some = digits().private.x[:10]
    inversion = free.fit(backbone, digits().public.take(slice(0, 100)), seed=0)
    found = inversion.images(backbone.embed(some))
    assert float((inversion.decode(backbone.embed(some)) - some).abs().mean()) > 0.05
    assert float((found - some).abs().max()) < 5e-3


PIXELS = {"0.weight": torch.ones(1, 1, 1, 1), "0.bias": torch.zeros(1)}


def test_the_mismatch_is_one_minus_the_cosine_and_the_relative_squared_distance() -> None:
    a, b = (torch.rand(7, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (0, 1))
    for one, other, found in zip(a.numpy(), b.numpy(), mismatch(a, b).tolist(), strict=True):
        cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert found == pytest.approx(1 - cosine + np.sum((one - other) ** 2) / np.sum(other**2))
    assert float(mismatch(a, a).abs().max()) < 1e-12


def test_the_gradient_of_the_objective_is_that_of_differences() -> None:
    backbone = convolutions()
    exact = replace(backbone, params={name: p.double() for name, p in backbone.params.items()})
    x = digits().private.x[:2].double()
    attack = replace(QUICK, prior=TotalVariation(weight=0.3), anchor=0.7)
    inversion = replace(untrained(attack), backbone=exact)
    generator = torch.Generator().manual_seed(0)
    initial = torch.rand(1, 2, 1, 8, 8, generator=generator, dtype=torch.float64)
    objective = MatchedEmbeddings(inversion=inversion, target=exact.embed(x), initial=initial)
    at = torch.rand(initial.shape, generator=generator, dtype=torch.float64)
    direction = torch.randn(initial.shape, generator=generator, dtype=torch.float64)
    _, grads = objective.value_and_grad({"x": at})
    step = 1e-6
    values = [objective.value_and_grad({"x": at + sign * step * direction})[0] for sign in (1, -1)]
    difference = float(values[0] - values[1]) / (2 * step)
    assert float((grads["x"] * direction).sum()) == pytest.approx(difference, rel=1e-5)


@cache
def untrained(attack: EmbeddingInversion = QUICK) -> FittedInversion:
    quick = replace(attack, decoder=replace(attack.decoder, epochs=1), search=Search(steps=3))
    return quick.fit(convolutions(), few(), seed=0)


def few() -> Data:
    return digits().public.take(slice(0, 20))


def test_a_seed_gives_the_same_decoder_and_leaves_the_global_generator_alone() -> None:
    state, attack = torch.get_rng_state(), replace(QUICK, decoder=replace(QUICK.decoder, epochs=1))
    rows = convolutions().embed(few().x)
    one, again, other = (attack.fit(convolutions(), few(), seed=seed).decode(rows) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_follow_the_dtype_of_the_embeddings() -> None:
    rows = convolutions().embed(few().x).double()
    found = untrained().images(rows)
    assert found.dtype == torch.float64
    assert found.shape == (20, 1, 8, 8)
    assert not found.requires_grad


def test_what_does_not_fit_is_refused() -> None:
    with refused("conflict", "search"):
        EmbeddingInversion(search=Search(restarts=2))
    with refused("out-of-range", "epochs"):
        DecoderFitting(epochs=0)
    with refused("too-few", "public"):
        QUICK.fit(convolutions(), few().take(slice(0, 1)), seed=0)
    with refused("shape-mismatch", "public"):
        QUICK.fit(replace(convolutions(), shape=(1, 9, 9)), few(), seed=0)
    with refused("shape-mismatch", "embeddings"):
        untrained().images(torch.zeros(3, 5))
    with refused("shape-mismatch", "embeddings"):
        untrained().decode(torch.zeros(0, 64))
