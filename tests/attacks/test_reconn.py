import dataclasses

import pytest
import torch

from remanence import Data, RecoNN, ShadowBank, Training, all_but_one, build_bank, initial_params, mlp, train_victims
from remanence.attacks.reconn import Scaler
from remanence.data import Split
from remanence.errors import BadInput
from remanence.release import AllButOne


def planted_bank(count: int, seed: int) -> ShadowBank:
    """Weights that are a fixed linear image of the target, a hundred coordinates of rounding noise, and a constant."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(count, 1, 3, 3, generator=generator)
    mixing = torch.randn(9, 40, generator=torch.Generator().manual_seed(99)) * 1e-3
    dead = 1e-9 * torch.randn(count, 100, generator=generator)
    weights = torch.cat([1 + targets.flatten(1) @ mixing, dead, torch.full((count, 1), 7.0)], dim=1)
    return ShadowBank(weights=weights, targets=Data(x=targets, y=torch.zeros(count).long(), num_classes=1))


def as_release(weights: torch.Tensor, like: Data) -> AllButOne:
    model = mlp(like.shape, 1)
    return AllButOne(
        model=model,
        final={"all": weights},
        shape=like.shape,
        num_classes=1,
        initial={},
        training=Training(),
        fixed=like,
    )


def test_reads_a_planted_record() -> None:
    fitted = RecoNN(hidden=(64,), epochs=60, batch_size=32).fit(planted_bank(800, seed=0), seed=0)
    unseen = planted_bank(50, seed=1)
    releases = [as_release(weights, unseen.targets) for weights in unseen.weights]
    read = torch.cat([fitted.run(release, seed=0).x for release in releases])
    assert (read - unseen.targets.x).square().mean() < 0.1 * unseen.targets.x.var()


def test_beats_the_nearest_neighbour_on_digits(digits: Data, parts: Split) -> None:
    """Balle et al.'s level: better than the best guess from all the records the attacker owns."""
    model, training = mlp(digits.shape, 10), Training()
    initial = initial_params(model, seed=0)
    targets = parts.private.take(slice(0, 20))
    releases = [
        all_but_one(victim).release for victim in train_victims(model, training, initial, parts.fixed, targets, seed=0)
    ]
    fitted = RecoNN(hidden=(300, 300), epochs=60).fit(build_bank(releases[0], parts.public, seed=0), seed=0)
    read = torch.cat([fitted.run(release, seed=0).x for release in releases])
    error = (read - targets.x).square().mean()
    owned = torch.cat([parts.public.x, parts.fixed.x]).flatten(1)
    neighbour = (torch.cdist(targets.x.flatten(1), owned) ** 2 / 64).min(dim=1).values.mean()
    assert error < neighbour


def test_the_order_of_the_names_does_not_matter(parts: Split) -> None:
    model, training = mlp(parts.fixed.shape, 10), Training(epochs=3)
    target = parts.private.take(slice(0, 1))
    victim = train_victims(model, training, initial_params(model, seed=0), parts.fixed, target, seed=0)[0]
    release = all_but_one(victim).release
    turned = dataclasses.replace(release, final=dict(reversed(release.final.items())))
    fitted = RecoNN(hidden=(8,), epochs=2).fit(build_bank(release, parts.public, seed=0), seed=0)
    assert torch.equal(fitted.run(release, seed=0).x, fitted.run(turned, seed=0).x)


def test_coordinates_that_only_hold_rounding_noise_are_silenced() -> None:
    bank = planted_bank(200, seed=0)
    scaled = Scaler.fit(bank.weights, clip=5.0)(bank.weights)
    assert not scaled[:, 40:].any()
    assert torch.allclose(scaled[:, :40].std(dim=0), torch.ones(40), atol=0.05)
    far = Scaler.fit(bank.weights, clip=2.0)(bank.weights + 1)
    assert far[:, :40].max() == 2.0


def test_a_bank_of_equal_models_says_nothing_and_is_no_nan() -> None:
    scaler = Scaler.fit(torch.ones(10, 3), clip=5.0)
    assert not scaler(torch.rand(4, 3)).any()


def test_a_bank_that_is_too_small_is_refused() -> None:
    with pytest.raises(BadInput, match="1 shadow models, RecoNN needs at least 2"):
        RecoNN().fit(planted_bank(1, seed=0), seed=0)
