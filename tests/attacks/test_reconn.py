"""RecoNN on planted records and on digits; its training is compared with a plain loop in test_fitting.py."""

from dataclasses import replace

import pytest
import torch
from refusals import refused
from torch.nn.functional import interpolate

from remanence import SGD, AdamW, Data, RMSProp, Training
from remanence.attacks import FittedRecoNN, Fitting, ImageLoss, RecoNN, WeightFeatures
from remanence.data import Split
from remanence.models import cnn, initial_params, mlp
from remanence.releases import AllButOne, all_but_one, train_victims
from remanence.shadow import ShadowBank, build_bank

DENSE = RecoNN(hidden=(64,), head="dense", fitting=Fitting(optimizer=RMSProp(lr=1e-3), epochs=20, batch_size=32))
QUICK = RecoNN(hidden=(8,), head="dense", fitting=Fitting(epochs=1))


def planted_bank(count: int, seed: int, *, side: int = 3, shift: float = 0.0) -> ShadowBank:
    """Weights that are a fixed linear image of the target, a hundred coordinates of rounding noise, and a constant.

    `shift` makes them those of another fixed set: elsewhere, and mixed a little differently.
    """
    generator = torch.Generator().manual_seed(seed)
    targets = torch.rand(count, 1, side, side, generator=generator)
    mixing, other = torch.randn(2, side**2, 40, generator=torch.Generator().manual_seed(99)) * 1e-3
    dead = 1e-9 * torch.randn(count, 100, generator=generator)
    active = 1 + shift + targets.flatten(1) @ (mixing + shift * other)
    weights = torch.cat([active, dead, torch.full((count, 1), 7.0)], dim=1)
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
    found = torch.cat([fitted.run(release, seed=0).x for release in releases])
    return float((found - bank.targets.x).square().mean() / bank.targets.x.var())


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        DENSE,
        replace(DENSE, features=WeightFeatures(clip=None), fitting=replace(RecoNN.paper().fitting, batch_size=32)),
        replace(DENSE, fitting=replace(DENSE.fitting, dropout=0.1, input_noise=0.1)),
        replace(DENSE, features=WeightFeatures(pca=9)),
        replace(DENSE, hidden=(), head="deconv", fitting=replace(DENSE.fitting, optimizer=AdamW(lr=3e-3))),
        replace(DENSE, hidden=(32,), head="deconv", loss=ImageLoss(mae=0.0)),
    ],
    ids=repr,
)
def test_every_setting_reconstructs_a_planted_record(attack: RecoNN) -> None:
    side = 4 if attack.head == "deconv" else 3
    attack = replace(attack, fitting=replace(attack.fitting, epochs=20))
    fitted = attack.fit(planted_bank(600, seed=0, side=side), seed=0)
    assert error(fitted, planted_bank(50, seed=1, side=side)) < 0.35


def test_the_papers_settings_are_those_it_prints() -> None:
    """Tables IV, VI and VII of Balle et al. 2022."""
    mnist, cifar10 = RecoNN.paper(), RecoNN.paper_cifar10()
    assert (mnist.hidden, mnist.head, cifar10.hidden, cifar10.head) == ((1000, 1000), "dense", (), "deconv")
    assert (mnist.fitting.optimizer, mnist.fitting.epochs) == (RMSProp(lr=1e-3), 100)
    assert (cifar10.fitting.optimizer, cifar10.fitting.epochs) == (AdamW(lr=1e-4, weight_decay=1e-4), 1000)
    assert mnist.loss == ImageLoss(mse=1.0, mae=1.0, lpips=0.0, adversarial=0.0)
    for paper in (mnist, cifar10):
        assert paper.fitting.batch_size == 128
        assert not paper.fitting.cosine
        assert not paper.fitting.validation_fraction
        assert paper.features == WeightFeatures(clip=None)


@pytest.mark.slow
def test_beats_the_nearest_neighbour_on_digits(digits: Data, parts: Split) -> None:
    """Balle et al.'s level: better than the best guess from all the records the attacker owns."""
    model, training = mlp(digits.shape, 10), Training()
    initial = initial_params(model, seed=0)
    targets = parts.private.take(slice(0, 20))
    releases = [
        all_but_one(victim).release for victim in train_victims(model, training, initial, parts.fixed, targets, seed=0)
    ]
    fitted = RecoNN(hidden=(300, 300), fitting=Fitting(epochs=60)).fit(
        build_bank(releases[0], parts.public, seed=0), seed=0
    )
    found = torch.cat([fitted.run(release, seed=0).x for release in releases])
    error = (found - targets.x).square().mean()
    owned = torch.cat([parts.public.x, parts.fixed.x]).flatten(1)
    neighbour = (torch.cdist(targets.x.flatten(1), owned) ** 2 / 64).min(dim=1).values.mean()
    assert error < neighbour


def test_the_order_of_the_names_does_not_matter(parts: Split) -> None:
    model, training = mlp(parts.fixed.shape, 10), Training(epochs=3)
    target = parts.private.take(slice(0, 1))
    victim = train_victims(model, training, initial_params(model, seed=0), parts.fixed, target, seed=0)[0]
    release = all_but_one(victim).release
    turned = replace(release, final=dict(reversed(release.final.items())))
    fitted = RecoNN(hidden=(8,), fitting=Fitting(epochs=2)).fit(build_bank(release, parts.public, seed=0), seed=0)
    assert torch.equal(fitted.run(release, seed=0).x, fitted.run(turned, seed=0).x)


@pytest.mark.slow
def test_refining_on_a_few_shadows_of_another_fixed_set_beats_all_else() -> None:
    """Figure 11: better than the old reconstructor as it is, and than a new one from those few shadows alone."""
    attack = replace(DENSE, fitting=replace(DENSE.fitting, epochs=30))
    old = attack.fit(planted_bank(600, seed=0), seed=0)
    few, unseen = planted_bank(60, seed=2, shift=0.5), planted_bank(50, seed=3, shift=0.5)
    before = [p.clone() for p in old.net.parameters()]
    none = replace(attack, fitting=replace(attack.fitting, epochs=0))
    recentred, refined = (each.refine(old, few, seed=0) for each in (none, attack))
    assert error(refined, unseen) < error(recentred, unseen) < error(old, unseen)
    assert error(refined, unseen) < 0.7 * min(error(old, unseen), error(attack.fit(few, seed=0), unseen))
    assert all(torch.equal(p, q) for p, q in zip(before, old.net.parameters(), strict=True))


def test_what_cannot_be_fitted_or_run_is_refused() -> None:
    bank = planted_bank(20, seed=0)
    fitted = QUICK.fit(bank, seed=0)
    with refused("conflict", "hidden"):
        replace(QUICK, hidden=(9,)).refine(fitted, bank, seed=0)
    with refused("shape-mismatch", "release"):
        fitted.run(as_release(torch.zeros(7), bank.targets), seed=0)
    with refused("too-few", "bank"):
        QUICK.fit(planted_bank(2, seed=0), seed=0)
    with refused("out-of-range", "pca"):
        replace(QUICK, features=WeightFeatures(pca=20)).fit(bank, seed=0)
    with refused("out-of-range", "shape"):
        replace(QUICK, loss=ImageLoss(adversarial=0.01)).fit(bank, seed=0)
    with refused("unsupported-model", "head"):
        RecoNN().fit(bank, seed=0)  # nothing is known of the model


@pytest.mark.parametrize("validation_fraction", [0.0, 0.1])
def test_divergence_is_reported(validation_fraction: float) -> None:
    optimizer = SGD(lr=3e38, momentum=3e38)
    fitting = Fitting(optimizer=optimizer, epochs=3, validation_fraction=validation_fraction)
    with refused("diverged", "optimizer"):
        replace(QUICK, fitting=fitting).fit(planted_bank(20, seed=0), seed=0)


@pytest.mark.slow
def test_gates_add_up_the_rows_of_the_first_layer(parts: Split) -> None:
    """Planted: every row has moved along the record alone, by a factor that the biases hold."""
    generator = torch.Generator().manual_seed(0)
    targets = parts.public.take(slice(0, 150))
    x, factors = targets.x.flatten(1), torch.rand(150, 3, generator=generator) + 0.5
    weights = torch.cat([factors, (factors[:, :, None] * x[:, None, :]).flatten(1)], dim=1)
    model = mlp(targets.shape, 3, hidden=())  # its flat parameters: three biases, then three rows
    bank = ShadowBank(weights=weights[:120], targets=targets.take(slice(0, 120)), model=model)
    errors = {}
    for head in ("dense", "gated"):
        fitting = Fitting(optimizer=RMSProp(lr=1e-3), epochs=60, batch_size=16)
        fitted = RecoNN(hidden=(32,), head=head, fitting=fitting).fit(bank, seed=0)
        errors[head] = float((fitted.reconstruct(weights[120:]) - targets.x[120:]).square().mean())
    assert errors["gated"] < errors["dense"] / 3


def planted_rows(records: Data, seed: int, *, effort: float, at: float = 0.0) -> ShadowBank:
    """Every row has moved along the record alone; how far all of them have differs by powers of ten."""
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randn(len(records), 3, generator=generator)
    factors *= 10 ** (effort * torch.rand(len(records), 1, generator=generator))
    rows = factors[:, :, None] * records.x.flatten(1)[:, None]
    model = mlp(records.shape, 3, hidden=())  # its flat parameters: three biases, then three rows
    return ShadowBank(weights=at + torch.cat([factors, rows.flatten(1)], dim=1), targets=records, model=model)


@pytest.mark.slow
def test_a_digest_reconstructs_records_that_moved_the_rows_little_and_much(parts: Split) -> None:
    bank = planted_rows(parts.public.take(slice(0, 120)), 0, effort=2.0)
    unseen = planted_rows(parts.private, 1, effort=2.0)
    errors = {}
    for digest in (False, True):
        fitting = Fitting(optimizer=AdamW(lr=2e-3), epochs=60, batch_size=16)
        attack = RecoNN(hidden=(32,), features=WeightFeatures(digest=digest), fitting=fitting)
        found = attack.fit(bank, seed=0).reconstruct(unseen.weights)
        errors[digest] = float((found - unseen.targets.x).square().mean())
    assert errors[True] < errors[False] / 2


def test_a_digest_takes_its_centre_from_another_fixed_set(parts: Split) -> None:
    public = parts.public.take(slice(0, 60))
    here, there = (planted_rows(public, 0, effort=0.5, at=at) for at in (0.0, 3.0))
    attack = RecoNN(hidden=(8,), features=WeightFeatures(digest=True), fitting=Fitting(epochs=2))
    fitted = attack.fit(here, seed=0)
    recentred = replace(attack, fitting=Fitting(epochs=0)).refine(fitted, there, seed=0)
    found = (f.reconstruct(bank.weights) for f, bank in ((fitted, here), (recentred, there)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_after_convolutions_rows_are_decoded(parts: Split) -> None:
    """Real shadows of a convolutional net: with gates the records come out nearer than without."""
    fixed, private, public = (
        replace(d, x=interpolate(d.x, size=(12, 12)))
        for d in (parts.fixed.take(slice(0, 30)), parts.private.take(slice(0, 8)), parts.public.take(slice(0, 40)))
    )
    model, training = cnn(fixed.shape, 10), Training(optimizer=SGD(lr=0.1, momentum=0.9), epochs=4)
    victims = train_victims(model, training, initial_params(model, seed=0), fixed, private, seed=0)
    releases = [all_but_one(victim).release for victim in victims]
    bank = build_bank(releases[0], public, seed=0)
    errors = []
    gated = RecoNN(hidden=(32,), fitting=Fitting(optimizer=AdamW(lr=2e-3), epochs=20, batch_size=8))
    for attack in (replace(gated, head="dense"), gated, replace(gated, features=WeightFeatures(digest=True))):
        fitted = attack.fit(bank, seed=0)
        found = torch.cat([fitted.run(release, seed=0).x for release in releases])
        assert found.shape == private.x.shape
        errors.append(float((found - private.x).square().mean()))
    assert max(errors[1:]) < 0.8 * errors[0]
