"""Mnemonist: its shortcut against every masked model in full, planted rows, and the contract of attacks."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remanence
from remanence import SGD, Adam, Attack, BadInput, Data, NotEnoughKnowledge, Training, train_victim
from remanence.attacks import RecoNN, ShadowAttack
from remanence.attacks.one_unknown.masks import MaskedReader, Superparameters, masks_of
from remanence.attacks.one_unknown.mnemonist import Importance, Mnemonist
from remanence.data import Split
from remanence.models import cnn, initial_params, mlp
from remanence.releases import AllButOne, all_but_one, all_but_one_unknown_init, fine_tuned
from remanence.shadow import ShadowBank, build_bank, stack_weights
from remanence.types import Params

ROWS, SHAPE = 4, (1, 4, 4)
QUICK = RecoNN(hidden=(16,), epochs=3, batch_size=16)


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
    moved = {n: torch.randn(count, *p.shape, generator=generator).to(dtype) * 0.03 for n, p in initial.items()}
    moved["1.weight"][:, holding] = 0.1 * (x.flatten(1) - 0.5)
    if faintly is not None:
        moved["1.weight"][:, faintly] += 0.05 * (x.flatten(1) - 0.5)
    weights = stack_weights({name: p + moved[name] for name, p in initial.items()})
    targets = Data(x=x, y=torch.zeros(count).long(), num_classes=3)
    return ShadowBank(weights=weights, targets=targets, model=model, initial=initial)


def release_of(bank: ShadowBank, row: Tensor, model: nn.Module) -> AllButOne:
    """A released model with the flat parameters `row`."""
    final, at = {}, 0
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for name in sorted(shapes):
        final[name] = row[at : at + shapes[name].numel()].view(shapes[name])
        at += shapes[name].numel()
    assert bank.initial is not None
    return AllButOne(
        model=model,
        final=final,
        shape=SHAPE,
        num_classes=3,
        initial=bank.initial,
        training=Training(),
        fixed=bank.targets.take([0]),
    )


def in_full(bank: ShadowBank, fitted: remanence.attacks.FittedRecoNN, masks: Tensor) -> Tensor:
    """(models, masks): each masked model made parameter by parameter and read as a release would be."""
    assert bank.model is not None
    assert bank.initial is not None
    errors = []
    for row, x in zip(bank.weights, bank.targets.x, strict=True):
        for mask in masks:
            final = {name: p.clone() for name, p in release_of(bank, row, bank.model).final.items()}
            for s in range(len(mask)):
                if not mask[s]:
                    final["1.weight"][s], final["1.bias"][s] = bank.initial["1.weight"][s], bank.initial["1.bias"][s]
            found = fitted.run(release_of(bank, flat(final)[0], bank.model), seed=0).x[0]
            errors.append((found - x).square().mean() + (found - x).abs().mean())
    return torch.stack(errors).view(len(bank.weights), len(masks))


@pytest.mark.parametrize(
    "reader",
    [
        RecoNN(hidden=(16, 8), clip=None),
        RecoNN(hidden=(16,), clip=0.7),
        RecoNN(hidden=(), clip=0.7),
        RecoNN(hidden=(16,), clip=0.7, pca=12),
        RecoNN(hidden=(16,), clip=0.7, gated=True),
        RecoNN(hidden=(16,), gated=True, pca=12),
        RecoNN(hidden=(16,), transposed=True),
        RecoNN(hidden=(), transposed=True, clip=0.7),
    ],
    ids=repr,
)
@pytest.mark.parametrize("hidden", [(ROWS,), (ROWS, 3, 3, 3, 3, 3)])  # with more than ten modules names sort otherwise
def test_the_shortcut_is_the_full_evaluation_of_every_mask(reader: RecoNN, hidden: tuple[int, ...]) -> None:
    bank = planted(60, seed=0, dtype=torch.float64, hidden=hidden)
    fitted = replace(reader, epochs=2, batch_size=16).fit(bank, seed=0)
    some = replace(bank, weights=bank.weights[:3], targets=bank.targets.take(slice(0, 3)))
    layer, masks = bank.first_layer(), masks_of(ROWS, 16, seed=0)
    assert layer is not None
    assert bank.initial is not None
    assert isinstance(bank.model, nn.Sequential)
    groups = Superparameters.of(bank.model, layer, bank.weights.device)
    masked = MaskedReader(net=fitted.net, scaler=fitted.scaler, groups=groups)
    found = masked.errors(some.weights, flat(bank.initial)[0], some.targets.x, masks)
    expected = in_full(some, fitted, masks)
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    assert expected.std(1).min() > 1e-4  # the masks do make a difference


def test_all_masks_come_once_and_of_many_too_few_to_balance_are_drawn() -> None:
    assert len(masks_of(3, 8, seed=0).unique(dim=0)) == 8
    drawn = masks_of(300, 500, seed=0)
    assert drawn.shape == (500, 300)
    assert (drawn.double().mean(0) - 0.5).abs().max() < 0.1
    assert not torch.equal(drawn, masks_of(300, 500, seed=1))


@pytest.mark.parametrize(("rows", "most", "count"), [(10, 64, 64), (10, 127, 96), (15, 64, 64), (16, 128, 128)])
def test_balanced_masks_keep_any_three_rows_in_all_ways_equally_often(rows: int, most: int, count: int) -> None:
    masks = masks_of(rows, most, seed=0)
    assert masks.shape == (count, rows)
    for three in combinations(range(rows), 3):
        ways = (masks[:, three] * torch.tensor([4, 2, 1])).sum(1).bincount(minlength=8)
        assert (ways == count // 8).all()
    assert not torch.equal(masks, masks_of(rows, most, seed=1))


def test_balanced_masks_tell_what_all_masks_tell_of_rows_that_act_in_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    alone, pairs = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((10,), (10, 10)))

    def coefficients(masks: Tensor) -> Tensor:
        signs = 2 * masks.double() - 1
        errors = masks.double() @ alone + ((signs @ pairs) * signs).sum(1)
        return Importance.of(masks, errors[None]).coefficient

    assert torch.allclose(coefficients(masks_of(10, 32, seed=0)), coefficients(masks_of(10, 1024, seed=0)))
    drawn = torch.randint(2, (32, 10), generator=generator)
    assert not torch.allclose(coefficients(drawn), alone, atol=0.1)


@pytest.mark.parametrize("drawn", [False, True])
def test_the_surrogate_is_ordinary_least_squares(drawn: bool) -> None:
    masks = masks_of(5, 25 if drawn else 32, seed=0)
    errors = torch.rand(7, len(masks), generator=torch.Generator().manual_seed(0)).double()
    importance = Importance.of(masks, errors)
    design = np.column_stack([np.ones(len(masks)), masks.numpy()])
    expected = np.array([np.linalg.lstsq(design, e, rcond=None)[0][1:] for e in errors.numpy()])
    assert np.allclose(importance.coefficients, expected, atol=1e-12)
    assert np.allclose(importance.coefficient, expected.mean(0))
    assert np.allclose(importance.standard_error, expected.std(0, ddof=1) / np.sqrt(7))
    assert importance.kept.tolist() == np.flatnonzero(expected.mean(0) < 0).tolist()


def test_where_no_row_helps_the_least_harmful_is_kept() -> None:
    masks = masks_of(3, 8, seed=0)
    errors = masks.double() @ torch.tensor([0.3, 0.1, 0.2]).double()
    assert Importance.of(masks, errors.expand(2, -1)).kept.tolist() == [1]


@pytest.mark.parametrize("holding", [0, 2])
@pytest.mark.parametrize("reader", [RecoNN(hidden=(64,)), RecoNN(hidden=(32,), gated=True)], ids=repr)
@pytest.mark.parametrize("to_mean", [False, True])
def test_the_one_row_that_stores_the_record_is_ranked_first(holding: int, reader: RecoNN, to_mean: bool) -> None:
    attack = Mnemonist(reader=replace(reader, epochs=30, batch_size=32), to_mean=to_mean)
    importance = attack.importance(planted(500, seed=0, holding=holding), seed=0)
    assert importance.coefficient.argmin() == holding
    assert holding in importance.kept
    others = importance.coefficient[torch.arange(ROWS) != holding]
    assert importance.coefficient[holding] + 5 * importance.standard_error[holding] < others.min()
    assert importance.coefficient[holding] < -0.05


def test_by_error_a_row_that_helps_little_is_left_out() -> None:
    reader = RecoNN(hidden=(32,), optimizer=Adam(lr=2e-3), epochs=40, batch_size=16)
    bank, signs = planted(300, seed=0, holding=1, faintly=3), Mnemonist(reader=reader, held_out=0.2)
    assert {1, 3} <= set(signs.fit(bank, seed=0).kept.tolist())
    assert replace(signs, by_error=True).fit(bank, seed=0).kept.tolist() == [1]


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_only_what_was_kept_is_read(later: bool, gated: bool) -> None:
    bank = planted(120, seed=0)
    attack = Mnemonist(reader=replace(QUICK, epochs=12, gated=gated), later=later)
    fitted = attack.fit(bank, seed=3)
    rejected = [s for s in range(ROWS) if s not in fitted.kept.tolist()]
    assert rejected
    assert bank.model is not None
    release = release_of(bank, bank.weights[0], bank.model)

    def read(name: str, row: int | slice) -> Tensor:
        """After that part of the released model has changed."""
        final = {name: p.clone() for name, p in release.final.items()}
        final[name][row] += 0.3
        return fitted.run(replace(release, final=final), seed=0).x

    same = fitted.run(release, seed=0).x
    for name in ("1.weight", "1.bias"):
        assert all(torch.equal(read(name, row), same) for row in rejected)
        assert not any(torch.equal(read(name, row), same) for row in fitted.kept.tolist())
    for name in ("3.weight", "3.bias"):
        assert torch.equal(read(name, slice(None)), same) is not later


def test_the_selected_reader_finds_its_rows_where_they_are() -> None:
    """Gates see the kept rows alone: the coordinates that are left are those of a smaller model."""
    bank = planted(120, seed=0)
    fitted = Mnemonist(reader=replace(QUICK, gated=True)).fit(bank, seed=3)
    rows, kept = fitted.reader.scaler.rows, fitted.kept
    assert rows is not None
    assert bank.model is not None
    weight = torch.stack([release_of(bank, row, bank.model).final["1.weight"] for row in bank.weights])
    assert torch.equal(rows.of(bank.weights[:, fitted.left]), weight[:, kept])


@pytest.mark.parametrize("to_mean", [False, True])
def test_the_reader_that_judges_never_sees_the_judges(to_mean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bank, seen, judges, backs = planted(50, seed=0), [], [], []
    fit, errors = RecoNN.fit, MaskedReader.errors

    def watched_fit(self: RecoNN, part: ShadowBank, *, seed: int) -> object:
        seen.append(part.weights)
        return fit(self, part, seed=seed)

    def watched_errors(self: MaskedReader, weights: Tensor, back: Tensor, *rest: Tensor) -> Tensor:
        judges.append(weights)
        backs.append(back)
        return errors(self, weights, back, *rest)

    monkeypatch.setattr(RecoNN, "fit", watched_fit)
    monkeypatch.setattr(MaskedReader, "errors", watched_errors)
    Mnemonist(reader=QUICK, held_out=0.2, to_mean=to_mean).importance(bank, seed=0)
    assert bank.initial is not None
    assert torch.equal(backs[0], seen[0].mean(0) if to_mean else flat(bank.initial)[0])
    assert (len(seen[0]), len(judges[0])) == (40, 10)
    assert len(torch.cat([seen[0], judges[0]]).unique(dim=0)) == 50


@pytest.mark.parametrize("to_mean", [False, True])
def test_a_judged_reader_that_is_there_already_is_not_fitted_again(
    to_mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, attack = planted(60, seed=0), Mnemonist(reader=QUICK, held_out=0.2, to_mean=to_mean)
    expected, judged = attack.importance(bank, seed=4), attack.judged(bank, seed=4)
    monkeypatch.delattr(RecoNN, "fit")
    torch.testing.assert_close(attack.importance(bank, seed=4, judged=judged).errors, expected.errors)


def small_world(parts: Split, dtype: torch.dtype = torch.float32) -> tuple[AllButOne, Data, remanence.Victim]:
    fixed, private = parts.fixed.to("cpu", dtype), parts.private.take([0]).to("cpu", dtype)
    model = mlp(fixed.shape, 10, hidden=(6,), activation=nn.ReLU)
    initial = {name: p.to(dtype) for name, p in initial_params(model, seed=0).items()}
    victim = train_victim(model, Training(epochs=5), initial, fixed, private, seed=0)
    return all_but_one(victim).release, parts.public.take(slice(0, 40)), victim


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keeps_the_contract_of_attacks(parts: Split, dtype: torch.dtype) -> None:
    release, public, victim = small_world(parts, dtype)
    attack, bank = Mnemonist(reader=QUICK), build_bank(release, public, seed=0)
    state = torch.get_rng_state()
    fitted = attack.fit(bank, seed=1)
    first, again, other = (
        f.run(release, seed=0).x for f in (fitted, attack.fit(bank, seed=1), attack.fit(bank, seed=2))
    )
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert isinstance(attack, ShadowAttack)
    assert isinstance(fitted, Attack)
    assert (first.dtype, first.shape) == (dtype, (1, *release.shape))
    assert not first.requires_grad
    with pytest.raises(NotEnoughKnowledge, match="Mnemonist needs `fixed`"):
        fitted.run(fine_tuned(victim).release, seed=0)  # type: ignore[arg-type]


def test_the_repr_is_the_call_that_makes_it() -> None:
    attack = Mnemonist(reader=RecoNN(transposed=True, optimizer=Adam(lr=1e-4)), masks=64, later=False, held_out=0.2)
    assert eval(repr(attack), vars(remanence) | vars(remanence.attacks)) == attack


def test_what_it_cannot_work_on_is_refused(parts: Split) -> None:
    bank = planted(40, seed=0)
    with pytest.raises(BadInput, match=r"must begin with a fully connected layer.*got None"):
        Mnemonist().fit(replace(bank, model=None), seed=0)
    images = replace(bank.targets, x=torch.rand(40, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(BadInput, match="got one that begins with Conv2d"):
        Mnemonist().fit(replace(bank, model=cnn((1, 12, 12), 3), targets=images), seed=0)
    with pytest.raises(BadInput, match="`bank` must show the weights that its shadows started from"):
        Mnemonist().fit(replace(bank, initial=None), seed=0)
    with pytest.raises(BadInput, match=r"`masks` must be more than the 4 rows of the first layer.*got 4"):
        Mnemonist(masks=4).fit(bank, seed=0)
    with pytest.raises(BadInput, match=r"`held_out` is a share and must lie in \(0, 1\), got 0"):
        Mnemonist(held_out=0.0)
    with pytest.raises(BadInput, match="leave `digest` out"):
        Mnemonist(reader=RecoNN(gated=True, digest=True))
    with pytest.raises(BadInput, match="4 shadow models, Mnemonist needs at least 5"):
        Mnemonist().fit(replace(bank, weights=bank.weights[:4], targets=bank.targets.take(slice(0, 4))), seed=0)


def test_a_model_of_another_size_is_refused() -> None:
    bank = planted(40, seed=0)
    other = planted(5, seed=0, hidden=(3,))
    assert other.model is not None
    with pytest.raises(BadInput, match="reads models of 83 parameters, got 63"):
        Mnemonist(reader=QUICK).fit(bank, seed=0).run(release_of(other, other.weights[0], other.model), seed=0)


def test_a_bank_of_unknown_starts_is_refused(parts: Split) -> None:
    _, public, victim = small_world(parts)
    bank = build_bank(all_but_one_unknown_init(victim).release, public, seed=0)
    assert bank.initial is None
    with pytest.raises(BadInput, match="build it for a release with `initial`"):
        Mnemonist(reader=QUICK).fit(bank, seed=0)


def test_rows_that_store_nothing_bear_on_nothing(parts: Split) -> None:
    """Real shadows: a row that is off on every record never moves, and the surrogate finds that it does not matter."""
    release, public, _ = small_world(parts)
    initial = {name: p.clone() for name, p in release.initial.items()}
    initial["1.bias"][1] = -100.0
    release = replace(release, initial=initial, training=Training(optimizer=SGD(lr=0.2, momentum=0.9), epochs=20))
    importance = Mnemonist(reader=QUICK).importance(build_bank(release, public, seed=0), seed=0)
    assert importance.coefficient[1].abs() < 1e-6
    assert importance.coefficient.abs().max() > 1e-4
