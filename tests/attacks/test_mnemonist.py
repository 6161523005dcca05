"""Mnemonist: its shortcut against every masked model in full, planted rows, and the contract of attacks."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn

import remanence
from remanence import SGD, Adam, Data, RMSProp, Training, train_victim
from remanence.attacks import FittedRecoNN, Fitting, RecoNN, WeightFeatures
from remanence.attacks.one_unknown.masks import MaskedReconstructor, Superparameters, sample_masks
from remanence.attacks.one_unknown.mnemonist import Importance, Mnemonist, ResetTo
from remanence.attacks.one_unknown.network import Head
from remanence.data import Split
from remanence.models import cnn, initial_params, mlp
from remanence.releases import AllButOne, all_but_one, all_but_one_unknown_init
from remanence.shadow import ShadowBank, build_bank, stack_weights
from remanence.shadow.features import Scaler
from remanence.types import Params

ROWS, SHAPE = 4, (1, 4, 4)
QUICK = RecoNN(hidden=(16,), head="dense", fitting=Fitting(optimizer=RMSProp(lr=1e-3), epochs=3, batch_size=16))


def flat(params: Params) -> Tensor:
    return stack_weights({name: p[None] for name, p in params.items()})


def planted(
    count: int,
    seed: int,
    *,
    holding: int = 2,
    faintly: int | None = None,
    dtype: torch.dtype = torch.float32,
    hidden: tuple[int, ...] = (ROWS,),
) -> ShadowBank:
    """One row has moved along the record, and another has beneath noise; all else but the start is noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, *SHAPE, generator=generator).to(dtype)
    model = mlp(SHAPE, 3, hidden=hidden, activation=nn.ReLU)
    initial = {name: p.to(dtype) for name, p in initial_params(model, seed=1).items()}
    delta = {n: torch.randn(count, *p.shape, generator=generator).to(dtype) * 0.03 for n, p in initial.items()}
    delta["1.weight"][:, holding] = 0.1 * (x.flatten(1) - 0.5)
    if faintly is not None:
        delta["1.weight"][:, faintly] += 0.05 * (x.flatten(1) - 0.5)
    weights = stack_weights({name: p + delta[name] for name, p in initial.items()})
    targets = Data(x=x, y=torch.zeros(count).long(), num_classes=3)
    return ShadowBank(weights=weights, targets=targets, model=model, initial=initial)


def release_of(bank: ShadowBank, row: Tensor, model: nn.Module) -> AllButOne:
    """A released model with the flat parameters `row`."""
    final, at = {}, 0
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for name in sorted(shapes):
        final[name] = row[at : at + shapes[name].numel()].view(shapes[name])
        at += shapes[name].numel()
    return AllButOne(
        model=model,
        final=final,
        shape=SHAPE,
        num_classes=3,
        initial=bank.initial,
        training=Training(),
        fixed=bank.targets.take([0]),
    )


def in_full(bank: ShadowBank, fitted: FittedRecoNN, masks: Tensor, layers: tuple[str, ...] = ("1",)) -> Tensor:
    """(models, masks): each masked model made parameter by parameter and attacked as a release would be."""
    errors, initial = [], bank.initial
    rows = [(layer, row) for layer in layers for row in range(len(initial[f"{layer}.weight"]))]
    for weights, x in zip(bank.weights, bank.targets.x, strict=True):
        for mask in masks:
            final = {name: p.clone() for name, p in release_of(bank, weights, bank.model).final.items()}
            for bit, (layer, row) in zip(mask, rows, strict=True):
                for name in (f"{layer}.weight", f"{layer}.bias"):
                    final[name][row] = final[name][row] if bit else initial[name][row]
            found = fitted.run(release_of(bank, flat(final)[0], bank.model), seed=0).x[0]
            errors.append((found - x).square().mean() + (found - x).abs().mean())
    return torch.stack(errors).view(len(bank.weights), len(masks))


def reconn(*hidden: int, head: Head = "dense", clip: float | None = 0.7, pca: int | None = None) -> RecoNN:
    features = WeightFeatures(clip=clip, pca=pca)
    return RecoNN(hidden=hidden, head=head, features=features, fitting=Fitting(epochs=2, batch_size=16))


@pytest.mark.parametrize(
    ("reconstructor", "hidden"),
    [
        (reconn(16, 8, clip=None), (ROWS,)),
        (reconn(16), (ROWS,)),
        (reconn(16), (ROWS, 3, 3, 3, 3, 3)),  # with more than ten modules names sort otherwise
        (reconn(), (ROWS,)),
        (reconn(16, pca=12), (ROWS,)),
        (reconn(16, head="gated"), (ROWS,)),
        (reconn(16, head="gated", clip=5.0, pca=12), (ROWS, 3, 3, 3, 3, 3)),
        (reconn(16, head="deconv", clip=5.0), (ROWS,)),
        (reconn(head="deconv"), (ROWS,)),
    ],
)
def test_the_shortcut_is_the_full_evaluation_of_every_mask(reconstructor: RecoNN, hidden: tuple[int, ...]) -> None:
    bank = planted(60, seed=0, dtype=torch.float64, hidden=hidden)
    fitted = reconstructor.fit(bank, seed=0)
    assert isinstance(fitted.features, Scaler)
    some = replace(bank, weights=bank.weights[:3], targets=bank.targets.take(slice(0, 3)))
    layer, masks = bank.first_layer(), sample_masks(ROWS, 16, seed=0)
    assert isinstance(bank.model, nn.Sequential)
    groups = Superparameters.from_layer(layer, bank.weights.device)
    masked = MaskedReconstructor(net=fitted.net, scaler=fitted.features, groups=groups)
    found = masked.errors(some.weights, flat(bank.initial)[0], some.targets.x, masks)
    expected = in_full(some, fitted, masks)
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert expected.std(1).min() > 1e-4  # the masks do make a difference


def test_rows_of_all_layers_are_masked_and_selected() -> None:
    bank = planted(60, seed=0, dtype=torch.float64, hidden=(ROWS, 3))
    attack = Mnemonist(reconstructor=reconn(16), layers="all", reset_to="initial", masks=32, validation_fraction=0.05)
    importance = attack.importance(bank, seed=4)
    assert importance.masks.shape == (32, ROWS + 3 + 3)
    expected = in_full(bank, attack.fit_probe(bank, seed=4), importance.masks, layers=("1", "3", "5"))
    for errors in importance.errors:  # of validation shadows, whichever they are
        assert (expected - errors).abs().amax(1).min() < 1e-10
    fitted = attack.select(bank, importance, torch.tensor([1, ROWS, ROWS + 4]), seed=0)
    sizes = {"1.weight": 16, "1.bias": 1, "3.weight": ROWS, "3.bias": 1, "5.weight": 3, "5.bias": 1}
    assert len(fitted.coordinates) == sum(sizes.values())  # one row of each layer and nothing else
    assert fitted.run(release_of(bank, bank.weights[0], bank.model), seed=0).x.shape == (1, *SHAPE)


def test_a_gated_head_takes_rows_of_the_first_layer_alone() -> None:
    with refused("conflict", "layers"):
        Mnemonist(layers="all")


def test_all_masks_come_once_and_of_many_too_few_to_balance_are_random() -> None:
    assert len(sample_masks(3, 8, seed=0).unique(dim=0)) == 8
    random = sample_masks(300, 500, seed=0)
    assert random.shape == (500, 300)
    assert (random.double().mean(0) - 0.5).abs().max() < 0.1
    assert not torch.equal(random, sample_masks(300, 500, seed=1))


@pytest.mark.parametrize(("rows", "max_masks", "count"), [(10, 64, 64), (10, 127, 96), (15, 64, 64), (16, 128, 128)])
def test_balanced_masks_select_any_three_rows_equally_often(rows: int, max_masks: int, count: int) -> None:
    masks = sample_masks(rows, max_masks, seed=0)
    assert masks.shape == (count, rows)
    for three in combinations(range(rows), 3):
        counts = (masks[:, three] * torch.tensor([4, 2, 1])).sum(1).bincount(minlength=8)
        assert (counts == count // 8).all()
    assert not torch.equal(masks, sample_masks(rows, max_masks, seed=1))


@pytest.mark.parametrize("count", [25, 32])
def test_the_surrogate_is_ordinary_least_squares(count: int) -> None:
    masks = sample_masks(5, count, seed=0)
    errors = torch.rand(7, len(masks), generator=torch.Generator().manual_seed(0)).double()
    importance = Importance.from_errors(masks, errors)
    design = np.column_stack([np.ones(len(masks)), masks.numpy()])
    expected = np.array([np.linalg.lstsq(design, e, rcond=None)[0][1:] for e in errors.numpy()])
    assert np.allclose(importance.coefficients, expected, atol=1e-12)
    assert np.allclose(importance.coefficient, expected.mean(0))
    assert np.allclose(importance.standard_error, expected.std(0, ddof=1) / np.sqrt(7))
    assert importance.helpful.tolist() == np.flatnonzero(expected.mean(0) < 0).tolist()


def test_where_no_row_helps_the_least_harmful_is_selected() -> None:
    masks = sample_masks(3, 8, seed=0)
    errors = masks.double() @ torch.tensor([0.3, 0.1, 0.2]).double()
    assert Importance.from_errors(masks, errors.expand(2, -1)).helpful.tolist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("holding", [0, 2])
@pytest.mark.parametrize("head", ["dense", "gated"])
@pytest.mark.parametrize("reset_to", ["initial", "mean"])
def test_the_one_row_that_stores_the_record_is_ranked_first(holding: int, head: Head, reset_to: ResetTo) -> None:
    fitting = Fitting(optimizer=RMSProp(lr=1e-3), epochs=30, batch_size=32)
    reconstructor = RecoNN(hidden=(32,) if head == "gated" else (64,), head=head, fitting=fitting)
    attack = Mnemonist(reconstructor=reconstructor, reset_to=reset_to)
    importance = attack.importance(planted(500, seed=0, holding=holding), seed=0)
    assert importance.coefficient.argmin() == holding
    assert holding in importance.helpful
    others = importance.coefficient[torch.arange(ROWS) != holding]
    assert importance.coefficient[holding] + 5 * importance.standard_error[holding] < others.min()
    assert importance.coefficient[holding] < -0.05


@pytest.mark.slow
def test_by_validation_a_row_that_helps_little_is_left_out() -> None:
    fitting = Fitting(optimizer=Adam(lr=2e-3), epochs=40, batch_size=16)
    reconstructor = RecoNN(hidden=(32,), head="dense", fitting=fitting)
    bank = planted(300, seed=0, holding=1, faintly=3)
    by_sign = Mnemonist(reconstructor=reconstructor, validation_fraction=0.2, reset_to="initial")
    assert {1, 3} <= set(by_sign.fit(bank, seed=0).rows.tolist())
    assert replace(by_sign, selection="validation").fit(bank, seed=0).rows.tolist() == [1]


@pytest.mark.parametrize("later_layers", [True, False])
@pytest.mark.parametrize("head", ["dense", "gated"])
def test_only_the_selected_rows_matter(later_layers: bool, head: Head) -> None:
    bank = planted(120, seed=0)
    reconstructor = replace(QUICK, head=head, fitting=replace(QUICK.fitting, epochs=12))
    attack = Mnemonist(reconstructor=reconstructor, reset_to="initial", later_layers=later_layers)
    fitted = attack.fit(bank, seed=3)
    rejected = [s for s in range(ROWS) if s not in fitted.rows.tolist()]
    assert rejected
    release = release_of(bank, bank.weights[0], bank.model)

    def after_change(name: str, row: int | slice) -> Tensor:
        final = {name: p.clone() for name, p in release.final.items()}
        final[name][row] += 0.3
        return fitted.run(replace(release, final=final), seed=0).x

    same = fitted.run(release, seed=0).x
    for name in ("1.weight", "1.bias"):
        assert all(torch.equal(after_change(name, row), same) for row in rejected)
        assert not any(torch.equal(after_change(name, row), same) for row in fitted.rows.tolist())
    for name in ("3.weight", "3.bias"):
        assert torch.equal(after_change(name, slice(None)), same) is not later_layers


@pytest.mark.parametrize("reset_to", ["initial", "mean"])
def test_the_probe_is_not_trained_on_validation_shadows(reset_to: ResetTo, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, training, validation, resets = planted(50, seed=0), [], [], []
    fit, errors = RecoNN.fit, MaskedReconstructor.errors

    def watched_fit(self: RecoNN, part: ShadowBank, *, seed: int) -> FittedRecoNN:
        training.append(part.weights)
        return fit(self, part, seed=seed)

    def watched_errors(self: MaskedReconstructor, weights: Tensor, reset: Tensor, *others: Tensor) -> Tensor:
        validation.append(weights)
        resets.append(reset)
        return errors(self, weights, reset, *others)

    monkeypatch.setattr(RecoNN, "fit", watched_fit)
    monkeypatch.setattr(MaskedReconstructor, "errors", watched_errors)
    Mnemonist(reconstructor=QUICK, validation_fraction=0.2, reset_to=reset_to).importance(bank, seed=0)
    assert torch.equal(resets[0], training[0].mean(0) if reset_to == "mean" else flat(bank.initial)[0])
    assert (len(training[0]), len(validation[0])) == (40, 10)
    assert len(torch.cat([training[0], validation[0]]).unique(dim=0)) == 50


def test_a_probe_that_is_given_is_not_fitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, attack = planted(60, seed=0), Mnemonist(reconstructor=QUICK, validation_fraction=0.2)
    expected, probe = attack.importance(bank, seed=4), attack.fit_probe(bank, seed=4)
    monkeypatch.delattr(RecoNN, "fit")
    torch.testing.assert_close(attack.importance(bank, seed=4, probe=probe).errors, expected.errors)


def small_world(parts: Split, dtype: torch.dtype = torch.float32) -> tuple[AllButOne, Data, remanence.Victim]:
    fixed, private = parts.fixed.to("cpu", dtype), parts.private.take([0]).to("cpu", dtype)
    model = mlp(fixed.shape, 10, hidden=(6,), activation=nn.ReLU)
    initial = {name: p.to(dtype) for name, p in initial_params(model, seed=0).items()}
    victim = train_victim(model, Training(epochs=5), initial, fixed, private, seed=0)
    return all_but_one(victim).release, parts.public.take(slice(0, 40)), victim


def test_what_it_cannot_work_on_is_refused(parts: Split) -> None:
    bank, attack = planted(40, seed=0), Mnemonist(reconstructor=QUICK)
    with refused("unsupported-model", "bank"):
        attack.fit(replace(bank, model=None), seed=0)
    images = replace(bank.targets, x=torch.rand(40, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    with refused("unsupported-model", "bank"):
        attack.fit(replace(bank, model=cnn((1, 12, 12), 3), targets=images), seed=0)
    with refused("too-few", "masks"):
        replace(attack, masks=4).fit(bank, seed=0)
    with refused("too-few", "bank"):
        attack.fit(replace(bank, weights=bank.weights[:4], targets=bank.targets.take(slice(0, 4))), seed=0)
    other = planted(5, seed=0, hidden=(3,))
    with refused("shape-mismatch", "release"):
        attack.fit(bank, seed=0).run(release_of(other, other.weights[0], other.model), seed=0)
    _, public, victim = small_world(parts)
    with refused("not-enough-knowledge", "bank"):
        attack.fit(build_bank(all_but_one_unknown_init(victim).release, public, seed=0), seed=0)


def test_rows_that_store_nothing_bear_on_nothing(parts: Split) -> None:
    """Real shadows: a row that is off on every record never moves, and the surrogate finds that it does not matter."""
    release, public, _ = small_world(parts)
    initial = {name: p.clone() for name, p in release.initial.items()}
    initial["1.bias"][1] = -100.0
    release = replace(release, initial=initial, training=Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=20))
    importance = Mnemonist(reconstructor=QUICK, reset_to="initial").importance(
        build_bank(release, public, seed=0), seed=0
    )
    assert importance.coefficient[1].abs() < 1e-6
    assert importance.coefficient.abs().max() > 1e-4
