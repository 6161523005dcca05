"""The contract that every attack keeps. A new attack joins by one row of ROWS and gets every check below."""

import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn

import remanence
from remanence import Attack, Data, Training, Victim, train_victim
from remanence.attacks import (
    ATTACKS,
    GLM,
    KKT,
    L2,
    LBFGS,
    RGAP,
    SPEAR,
    ConvStationarity,
    Differencing,
    FirstLayer,
    Fitting,
    GradientMatching,
    KKTRun,
    Linearised,
    Mnemonist,
    NewtonStep,
    RecoNN,
    ShadowAttack,
    SimuDy,
    Simulation,
    Stationarity,
    Stein,
    Surrogate,
    TrainingInversion,
    Whitening,
    with_search,
)
from remanence.data import Split
from remanence.models import initial_params, mlp, normalized, normalized_params
from remanence.releases import (
    Case,
    all_but_one,
    before_and_after,
    fine_tuned,
    gradient_at_initial,
    local_update,
    weights_only,
)
from remanence.shadow import build_bank


@dataclasses.dataclass(frozen=True)
class Row:
    attack: Attack[Any] | ShadowAttack
    records: int  # private records of the victim
    reveal: Callable[[Victim], Case[Any]]
    poorer: Callable[[Victim], Case[Any]]  # a release that does not show enough
    missing: str  # what the refusal must name
    hidden: tuple[int, ...] = (6,)  # widths of the victim
    deterministic: bool = False  # nothing is drawn: every seed gives the same
    activation: Callable[[], nn.Module] = nn.ELU
    standardised: bool = False  # by the mean and standard deviation of its records
    convolution: bool = False  # before the fully connected layers


OWNED = Data(
    x=torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(0)), y=torch.zeros(50).long(), num_classes=10
)
versions = partial(before_and_after, public=OWNED)
RECONN = RecoNN(hidden=(16,), fitting=Fitting(epochs=3))
ROWS = [
    Row(with_search(GradientMatching(), steps=20), 3, gradient_at_initial, weights_only, "`sent`"),
    Row(with_search(GradientMatching(), steps=10, optimizer=LBFGS()), 2, local_update, weights_only, "`sent`"),
    Row(
        with_search(GradientMatching(features=FirstLayer(guesses=False)), steps=20),
        *(3, gradient_at_initial, weights_only, "`sent`"),
        hidden=(),
        convolution=True,
    ),
    Row(FirstLayer(), 1, gradient_at_initial, weights_only, "`gradient`", deterministic=True),
    Row(
        SPEAR(samples=4000),
        *(3, gradient_at_initial, weights_only, "`gradient`"),
        hidden=(100,),
        activation=nn.ReLU,
        deterministic=True,  # rows are sampled, but the batch is exact whichever were
    ),
    Row(RGAP(), 1, gradient_at_initial, weights_only, "`gradient`", deterministic=True, convolution=True),
    Row(Stein(), 3, gradient_at_initial, weights_only, "`gradient`", hidden=(500,)),
    Row(RECONN, 1, all_but_one, fine_tuned, "`fixed`"),
    Row(Mnemonist(reconstructor=RECONN), 1, all_but_one, fine_tuned, "`fixed`"),
    Row(with_search(KKT(candidates=3), steps=5), 3, weights_only, gradient_at_initial, "`final`", activation=nn.ReLU),
    Row(
        with_search(
            KKT(candidates=3, multipliers="projected", runs=(KKTRun(), KKTRun(init_std=0.1))), steps=8, halvings=1
        ),
        *(3, weights_only, gradient_at_initial, "`final`"),
        activation=nn.ReLU,
    ),
    Row(
        with_search(KKT(candidates=3, multipliers="squared"), steps=5), 3, weights_only, gradient_at_initial, "`final`"
    ),
    Row(
        with_search(Stationarity(candidates=3), steps=20),
        3,
        weights_only,
        gradient_at_initial,
        "`final`",
        activation=nn.ReLU,
    ),
    Row(
        with_search(ConvStationarity(candidates=3), steps=20),
        *(3, weights_only, gradient_at_initial, "`final`"),
        activation=nn.ReLU,
        convolution=True,
    ),
    Row(
        with_search(SimuDy(candidates=3, whitening=None, surrogate=None), steps=5),
        3,
        fine_tuned,
        weights_only,
        "`initial`",
    ),
    Row(
        with_search(SimuDy(candidates=1, simulation=Simulation(segment=2)), steps=5),
        1,
        all_but_one,
        weights_only,
        "`initial`",
        activation=nn.ReLU,
    ),
    Row(
        with_search(SimuDy(candidates=3, distance=L2(), whitening=Whitening(), surrogate=Surrogate()), steps=5),
        *(3, fine_tuned, weights_only, "`initial`"),
        activation=nn.ReLU,
    ),
    Row(with_search(Linearised(candidates=3), steps=5), 3, fine_tuned, weights_only, "`initial`"),
    Row(
        TrainingInversion(rounds=(1,), steps=2, descent_steps=3),
        *(1, all_but_one, fine_tuned, "`fixed`"),
        deterministic=True,
    ),
    Row(
        TrainingInversion(rounds=(1,), steps=2, descent_steps=3),
        1,
        all_but_one,
        fine_tuned,
        "`fixed`",
        deterministic=True,
    ),
    Row(Differencing(), 1, all_but_one, fine_tuned, "`fixed`", deterministic=True, standardised=True),
    Row(GLM(), 1, all_but_one, fine_tuned, "`fixed`", hidden=(), deterministic=True),
    Row(NewtonStep(), 1, versions, fine_tuned, "`before`", hidden=(), deterministic=True),
    Row(
        NewtonStep(several=with_search(GradientMatching(), steps=20)),
        *(2, partial(versions, change="added"), weights_only, "`before`"),
    ),
]
by_attack = pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row.attack).__name__)
PLACES = [("cpu", torch.float64)]
if torch.cuda.is_available():
    PLACES += [("cuda", torch.float32)]


def victim(row: Row, parts: Split, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Victim:
    fixed, private = parts.fixed.to(device, dtype), parts.private.take(slice(0, row.records)).to(device, dtype)
    model = mlp(private.shape, private.num_classes, hidden=row.hidden, activation=row.activation)
    if row.convolution:
        with torch.device("meta"):
            model = nn.Sequential(nn.Conv2d(private.shape[0], 1, 3, padding=1), row.activation(), *model)
    initial = {name: p.to(private.x) for name, p in initial_params(model, seed=0).items()}
    if row.standardised:
        x = torch.cat([fixed.x, private.x]).flatten(1)
        model = normalized(model, x.mean(0), x.std(0, correction=0).clamp_min(1e-3))
        initial = normalized_params(model, initial)
    return train_victim(model, Training(epochs=5), initial, fixed, private, seed=0)


def run(row: Row, release: Any, public: Data, seed: int = 0) -> Tensor:
    attack = row.attack
    if isinstance(attack, ShadowAttack):
        attack = attack.fit(build_bank(release, public.take(slice(0, 40)), seed=0), seed=seed)
    assert isinstance(attack, Attack)
    return attack.run(release, seed=seed).x


def test_every_attack_has_a_row() -> None:
    assert {type(row.attack) for row in ROWS} == set(ATTACKS)


@by_attack
def test_is_frozen_with_defaults_for_every_field(row: Row) -> None:
    default = type(row.attack)()
    for field in dataclasses.fields(default):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(default, field.name, None)


@by_attack
def test_repr_is_the_call_that_makes_it(row: Row) -> None:
    exported = {name: getattr(remanence, name) for name in remanence.__all__}  # some are imported when first asked for
    assert eval(repr(row.attack), exported | vars(remanence.attacks)) == row.attack


@pytest.mark.slow
@by_attack
def test_is_repeatable_and_follows_its_seed(row: Row, parts: Split) -> None:
    release = row.reveal(victim(row, parts)).release
    first, again, other = (run(row, release, parts.public, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) is row.deterministic


@pytest.mark.slow
@by_attack
@pytest.mark.parametrize(("device", "dtype"), PLACES, ids=str)
def test_device_and_dtype_follow_the_release(row: Row, parts: Split, device: str, dtype: torch.dtype) -> None:
    x = run(row, row.reveal(victim(row, parts, device, dtype)).release, parts.public)
    assert x.dtype == dtype
    assert x.device.type == device


@pytest.mark.slow
@by_attack
def test_returns_plain_records_in_the_unit_box_and_leaves_all_else_as_it_was(row: Row, parts: Split) -> None:
    case = row.reveal(victim(row, parts))
    tensors = [(tensor, tensor.clone()) for tensor in tensors_in(case.release)]
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    x = run(row, case.release, parts.public)
    assert (x.shape, x.dtype, x.requires_grad) == (case.truth.x.shape, torch.float32, False)
    assert x.isfinite().all()
    assert x.min() >= 0
    assert x.max() <= 1
    assert tensors
    assert all(torch.equal(tensor, copy) and not tensor.requires_grad for tensor, copy in tensors)
    assert torch.equal(generators[0], torch.get_rng_state())
    assert generators[1] == random.getstate()
    assert np.array_equal(generators[2], np.random.get_state()[1])  # noqa: NPY002


@by_attack
def test_refuses_a_poorer_release_and_names_what_is_missing(row: Row, parts: Split) -> None:
    made = victim(row, parts)
    attack = row.attack
    if isinstance(attack, ShadowAttack):
        attack = attack.fit(build_bank(row.reveal(made).release, parts.public.take(slice(0, 40)), seed=0), seed=0)
    assert isinstance(attack, Attack)
    with refused("not-enough-knowledge") as refusal:
        attack.run(row.poorer(made).release, seed=0)
    assert row.missing in str(refusal.value)
    assert type(row.attack).__name__ in str(refusal.value)


@by_attack
def test_no_withheld_record_is_within_reach_of_the_release(row: Row, parts: Split) -> None:
    case = row.reveal(victim(row, parts))
    assert not holds_any(tensors_in(case.release), case.truth.x)
    assert holds_any(tensors_in(case), case.truth.x)  # the search does find it where it is


def holds_any(found: list[Tensor], records: Tensor) -> bool:
    """Whether a withheld record stands anywhere in the tensors, as a row or as a stretch of their numbers."""
    size = records[0].numel()
    for tensor in found:
        if tensor.numel() >= size and tensor.is_floating_point():
            windows = tensor.detach().flatten().unfold(0, size, 1)
            if any((windows == record.flatten()).all(dim=1).any() for record in records):
                return True
    return False


def tensors_in(thing: object, seen: set[int] | None = None) -> list[Tensor]:
    """Every tensor that can be reached from `thing` through fields, containers, modules, methods and closures."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | int | float | type | None):
        return []
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return [thing] if thing.device.type != "meta" else []
    inside: list[object] = []
    if isinstance(thing, dict):
        inside += thing.values()
    elif isinstance(thing, list | tuple | set):
        inside += thing
    elif isinstance(thing, nn.Module) or hasattr(thing, "__dict__"):
        inside += vars(thing).values()
    inside += [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    inside += [getattr(thing, "__self__", None)]
    return [tensor for part in inside for tensor in tensors_in(part, seen)]
