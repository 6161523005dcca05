"""RecoNN on planted records and on digits; how it is trained is tested part by part in test_reconstructor.py."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import interpolate

import remanence
from remanence import SGD, AdamW, Data, RMSProp, Training, train_victim
from remanence.attacks import FittedRecoNN, RecoNN
from remanence.data import Split
from remanence.errors import BadInput
from remanence.models import cnn, initial_params, mlp
from remanence.releases import AllButOne, all_but_one, train_victims
from remanence.shadow import ShadowBank, build_bank
from remanence.types import concat


def planted_bank(count: int, seed: int, *, side: int = 3, moved: float = 0.0) -> ShadowBank:
    """Weights that are a fixed linear image of the target, a hundred coordinates of rounding noise, and a constant.

    `moved` makes them those of another fixed set: elsewhere, and mixed a little differently.
    """
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(count, 1, side, side, generator=generator)
    mixing, other = torch.randn(2, side**2, 40, generator=torch.Generator().manual_seed(99)) * 1e-3
    dead = 1e-9 * torch.randn(count, 100, generator=generator)
    alive = 1 + moved + targets.flatten(1) @ (mixing + moved * other)
    weights = torch.cat([alive, dead, torch.full((count, 1), 7.0)], dim=1)
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


def error(fitted: FittedRecoNN, bank: ShadowBank) -> float:
    """Mean squared error in units of the records' variance, 1 for the mean record."""
    releases = [as_release(weights, bank.targets) for weights in bank.weights]
    read = torch.cat([fitted.run(release, seed=0).x for release in releases])
    return float((read - bank.targets.x).square().mean() / bank.targets.x.var())


def test_reads_a_planted_record() -> None:
    fitted = RecoNN(hidden=(64,), epochs=40, batch_size=32).fit(planted_bank(800, seed=0), seed=0)
    assert error(fitted, planted_bank(50, seed=1)) < 0.1


@pytest.mark.parametrize(
    "attack",
    [
        RecoNN(hidden=(64,), cosine=False, clip=None, held_out=0.0),
        RecoNN(hidden=(64,), dropout=0.1, input_noise=0.1),
        RecoNN(hidden=(64,), pca=9),
        RecoNN(hidden=(), transposed=True, optimizer=AdamW(lr=3e-3)),
        RecoNN(hidden=(32,), transposed=True, mse=1.0, mae=0.0),
    ],
    ids=repr,
)
def test_every_setting_reads_a_planted_record(attack: RecoNN) -> None:
    side = 4 if attack.transposed else 3
    fitted = dataclasses.replace(attack, epochs=20, batch_size=32).fit(planted_bank(600, seed=0, side=side), seed=0)
    assert error(fitted, planted_bank(50, seed=1, side=side)) < 0.35


def test_the_repr_of_every_setting_is_the_call_that_makes_it() -> None:
    attack = RecoNN(transposed=True, clip=None, pca=64, lpips=1.0, adversarial=0.01, optimizer=RMSProp(lr=3e-4))
    assert eval(repr(attack), vars(remanence) | vars(remanence.attacks)) == attack


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


def test_refining_on_a_few_shadows_of_another_fixed_set_beats_all_else() -> None:
    """Figure 11: better than the old reconstructor as it is, and than a new one from those few shadows alone."""
    attack = RecoNN(hidden=(64,), epochs=30, batch_size=32)
    old = attack.fit(planted_bank(600, seed=0), seed=0)
    few, unseen = planted_bank(60, seed=2, moved=0.5), planted_bank(50, seed=3, moved=0.5)
    before = [p.clone() for p in old.net.parameters()]
    recentred, refined = (dataclasses.replace(attack, epochs=epochs).refine(old, few, seed=0) for epochs in (0, 30))
    assert error(refined, unseen) < error(recentred, unseen) < error(old, unseen)
    assert error(refined, unseen) < 0.7 * min(error(old, unseen), error(attack.fit(few, seed=0), unseen))
    assert all(torch.equal(p, q) for p, q in zip(before, old.net.parameters(), strict=True))


def test_only_the_network_that_was_fitted_is_refined() -> None:
    bank = planted_bank(20, seed=0)
    fitted = RecoNN(hidden=(8,), epochs=1).fit(bank, seed=0)
    with pytest.raises(BadInput, match=r"`hidden` must be that of the reconstructor to refine, \(8,\), got \(9,\)"):
        RecoNN(hidden=(9,), epochs=1).refine(fitted, bank, seed=0)


def test_a_model_of_another_size_is_refused() -> None:
    bank = planted_bank(20, seed=0)
    fitted = RecoNN(hidden=(8,), epochs=1).fit(bank, seed=0)
    with pytest.raises(BadInput, match="reads models of 141 parameters, got 7"):
        fitted.run(as_release(torch.zeros(7), bank.targets), seed=0)


def test_a_bank_that_is_too_small_is_refused() -> None:
    with pytest.raises(BadInput, match="2 shadow models, RecoNN needs at least 3"):
        RecoNN().fit(planted_bank(2, seed=0), seed=0)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match=r"`dropout` is a share and must lie in \[0, 1\), got 1.0"):
        RecoNN(dropout=1.0)
    with pytest.raises(BadInput, match="`held_out` is a share"):
        RecoNN(held_out=-0.1)
    with pytest.raises(BadInput, match="`floor` is a share"):
        RecoNN(floor=1.0)
    with pytest.raises(BadInput, match=r"`pca` must lie in 1\.\.19, the rank of the bank, got 20"):
        RecoNN(pca=20).fit(planted_bank(20, seed=0), seed=0)
    with pytest.raises(BadInput, match="24x24"):
        RecoNN(adversarial=0.01).fit(planted_bank(20, seed=0), seed=0)


def test_a_rate_that_is_too_high_is_named() -> None:
    for held_out in (0.0, 0.1):
        attack = RecoNN(hidden=(8,), epochs=3, optimizer=remanence.SGD(lr=3e38, momentum=3e38), held_out=held_out)
        with pytest.raises(BadInput, match="diverged with SGD"):
            attack.fit(planted_bank(20, seed=0), seed=0)


def test_the_rows_of_the_first_layer_are_read_directly(parts: Split) -> None:
    """Planted: every row has moved along the record alone, by a factor that the rest of the weights tell."""
    generator = torch.Generator().manual_seed(0)
    targets = parts.public.take(slice(0, 150))
    x, factors = targets.x.flatten(1), torch.rand(150, 3, generator=generator) + 0.5
    weights = torch.cat([factors, (factors[:, :, None] * x[:, None, :]).flatten(1)], dim=1)
    model = mlp(targets.shape, 3, hidden=())  # its flat parameters: three biases, then three rows
    bank = ShadowBank(weights=weights[:120], targets=targets.take(slice(0, 120)), model=model)
    errors = {}
    for gated in (False, True):
        fitted = RecoNN(hidden=(32,), gated=gated, epochs=60, batch_size=16).fit(bank, seed=0)
        found = fitted.net(fitted.scaler(weights[120:]))
        errors[gated] = float((found - targets.x[120:]).square().mean())
    assert errors[True] < errors[False] / 3


def planted_rows(records: Data, seed: int, *, effort: float, at: float = 0.0) -> ShadowBank:
    """Every row has moved along the record alone; how far all of them have differs by powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(len(records), 3, generator=generator)
    factors *= 10 ** (effort * torch.rand(len(records), 1, generator=generator))
    rows = factors[:, :, None] * records.x.flatten(1)[:, None]
    model = mlp(records.shape, 3, hidden=())  # its flat parameters: three biases, then three rows
    return ShadowBank(weights=at + torch.cat([factors, rows.flatten(1)], dim=1), targets=records, model=model)


def test_a_digest_reads_records_that_moved_the_rows_little_and_much(parts: Split) -> None:
    bank = planted_rows(parts.public.take(slice(0, 120)), 0, effort=2.0)
    unseen = planted_rows(parts.private, 1, effort=2.0)
    errors = {}
    for digest in (False, True):
        attack = RecoNN(hidden=(32,), gated=True, digest=digest, optimizer=AdamW(lr=2e-3), epochs=60, batch_size=16)
        fitted = attack.fit(bank, seed=0)
        errors[digest] = float((fitted.net(fitted.scaler(unseen.weights)) - unseen.targets.x).square().mean())
    assert errors[True] < errors[False] / 2


def test_a_digest_takes_its_centre_from_another_fixed_set(parts: Split) -> None:
    public = parts.public.take(slice(0, 60))
    here, there = (planted_rows(public, 0, effort=0.5, at=at) for at in (0.0, 3.0))
    attack = RecoNN(hidden=(8,), gated=True, digest=True, epochs=2)
    fitted = attack.fit(here, seed=0)
    moved = replace(attack, epochs=0).refine(fitted, there, seed=0)
    found = (f.net(f.scaler(bank.weights)) for f, bank in ((fitted, here), (moved, there)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wrong", [{"epochs": -1}, {"batch_size": 0}])
def test_a_training_that_would_be_none_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=f"`{next(iter(wrong))}` of RecoNN must be"):
        RecoNN(**wrong)


def test_gates_need_a_first_layer_that_sees_the_records(parts: Split) -> None:
    bank = ShadowBank(weights=torch.rand(20, 7), targets=parts.public.take(slice(0, 20)))
    with pytest.raises(BadInput, match="fully connected layers"):
        RecoNN(gated=True).fit(bank, seed=0)
    with pytest.raises(BadInput, match="choose one"):
        RecoNN(gated=True, transposed=True)
    for settings in ({"gated": False}, {"gated": True, "pca": 3}):
        with pytest.raises(BadInput, match="`digest` is what `gated` reads its factors off"):
            RecoNN(digest=True, **settings)


@pytest.mark.parametrize(("net", "place", "shape"), [(mlp, 1, (1, 12, 12)), (cnn, 5, (32, 2, 2))])
def test_a_bank_knows_where_the_first_fully_connected_layer_lies(
    parts: Split, net: Callable[..., nn.Sequential], place: int, shape: tuple[int, ...]
) -> None:
    fixed, private, public = (
        replace(d, x=interpolate(d.x, size=(12, 12)))
        for d in (parts.fixed, parts.private.take(slice(0, 1)), parts.public.take(slice(0, 3)))
    )
    model = net(fixed.shape, 10)
    made = train_victim(model, Training(epochs=1), initial_params(model, seed=0), fixed, private, seed=0)
    bank = build_bank(all_but_one(made).release, public, seed=0)
    layer = bank.first_layer()
    assert layer is not None
    target = public.take(slice(1, 2))
    shadow = made.training(model, made.initial, concat([fixed, target]))
    assert torch.allclose(layer.of(bank.weights)[1], shadow[f"{place}.weight"], atol=1e-6)
    assert layer.shape == shape
    beside = [p.flatten() for name, p in sorted(shadow.items()) if p.ndim == 1 or int(name.split(".")[0]) > place]
    assert torch.allclose(bank.weights[1, layer.beside], torch.cat(beside), atol=1e-6)
    real = nn.Sequential(*list(net(fixed.shape, 10))[:place]).to_empty(device="cpu")
    real.load_state_dict({name: p for name, p in shadow.items() if int(name.split(".")[0]) < place})
    # one record of 61 moves the mean of three models a little
    assert torch.allclose(bank.inputs_of(layer)[1], real(target.x).flatten(), atol=0.03)


def test_behind_convolutions_rows_are_read_through_a_decoder(parts: Split) -> None:
    """Real shadows of a convolutional net: with gates the records come out nearer than without."""
    fixed, private, public = (
        replace(d, x=interpolate(d.x, size=(12, 12)))
        for d in (parts.fixed, parts.private.take(slice(0, 16)), parts.public.take(slice(0, 80)))
    )
    model, training = cnn(fixed.shape, 10), Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=4)
    victims = train_victims(model, training, initial_params(model, seed=0), fixed, private, seed=0)
    releases = [all_but_one(victim).release for victim in victims]
    bank = build_bank(releases[0], public, seed=0)
    errors = []
    for gated, digest in ((False, False), (True, False), (True, True)):
        attack = RecoNN(hidden=(32,), gated=gated, digest=digest, optimizer=AdamW(lr=2e-3), epochs=40, batch_size=8)
        fitted = attack.fit(bank, seed=0)
        found = torch.cat([fitted.run(release, seed=0).x for release in releases])
        assert found.shape == private.x.shape
        errors.append(float((found - private.x).square().mean()))
    assert max(errors[1:]) < 0.8 * errors[0]
