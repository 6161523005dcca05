"""Attacks on records that do not lie in [0, 1]: standardised rows come back, and every box is kept."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remanence import SGD, Attack, Data, Training, Victim, train_victim
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
    Stationarity,
    Stein,
    TrainingInversion,
    with_search,
)
from remanence.bounds import Bounds
from remanence.models import centred_mlp, mlp, normalized, normalized_params, torch_params
from remanence.releases import (
    Case,
    Gradient,
    all_but_one,
    before_and_after,
    fine_tuned,
    gradient_at_initial,
    local_update,
    weights_only,
)
from remanence.search import Adam
from remanence.shadow import build_bank

FREE: Bounds = (-inf, inf)
SHORT = Training(optimizer=SGD(lr=0.1), epochs=5)
DECAYED = Training(
    optimizer=SGD(lr=0.1, momentum=0.9), epochs=1500, weight_decay=0.02, lr_schedule=((1000, 0.2), (1250, 0.04))
)
CONVERGED = Training(optimizer=SGD(lr=0.3, momentum=0.9), epochs=3000, weight_decay=0.02)
RECONN = RecoNN(hidden=(64,), fitting=Fitting(epochs=60))
MATCHING = GradientMatching(distance=L2(), prior=None)


@dataclass(frozen=True)
class Row:
    attack: Attack[Any] | ShadowAttack
    records: int  # that are private
    reveal: Callable[[Victim], Case[Any]]
    error: float  # relative, of each record's nearest candidate
    hidden: tuple[int, ...] = (64,)
    features: int = 12
    classes: int = 2
    training: Training = SHORT
    fixed: int = 0
    centred: bool = False  # the model, by the mean of its records, and without biases after the first layer
    standardises: bool = False  # the model, by the mean and standard deviation of its records


def versions(victim: Victim) -> Case[Any]:
    """Before and after the deletion, shown with public rows."""
    shape, box = victim.private.shape, victim.private.bounds
    x = torch.randn(400, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).clamp(*box)
    public = Data(x=x, y=torch.arange(400) % victim.private.num_classes, num_classes=2, name="rows", bounds=box)
    return before_and_after(victim, public=public)


ROWS = [
    Row(FirstLayer(), 3, gradient_at_initial, 1e-3, hidden=(300,)),
    Row(SPEAR(), 3, gradient_at_initial, 1e-3, hidden=(300,), classes=4),  # of two classes errors cancel exactly
    Row(Stein(), 3, gradient_at_initial, 1e-3, hidden=(500,)),
    Row(with_search(MATCHING, steps=300, optimizer=LBFGS()), 2, gradient_at_initial, 1e-2, hidden=(128,)),
    Row(with_search(GradientMatching(), steps=500), 2, local_update, 0.3),
    Row(with_search(SimuDy(candidates=2), steps=400), 2, fine_tuned, 0.05),
    Row(with_search(Linearised(candidates=2), steps=600), 2, fine_tuned, 0.7),
    Row(
        with_search(Stationarity(), steps=1500, optimizer=Adam(lr=0.01, eps=1e-20)),
        *(4, weights_only, 0.7, (60,), 40, 4, DECAYED),
        centred=True,
    ),
    Row(
        with_search(KKT(candidates=12, runs=(KKTRun(init_std=0.1, lr=0.01, min_multiplier=0.05),)), steps=4000),
        *(6, weights_only, 0.7, (60,), 40, 6, DECAYED),
        centred=True,
    ),
    Row(GLM(), 1, all_but_one, 1e-2, hidden=(), training=CONVERGED, fixed=40),
    Row(NewtonStep(), 1, versions, 0.5, hidden=(), training=CONVERGED, fixed=100),
    Row(Differencing(), 1, all_but_one, 1e-3, fixed=40, standardises=True),
    Row(RECONN, 1, all_but_one, 0.5, hidden=(10,), fixed=20),
    Row(TrainingInversion(labels=(0,)), 1, all_but_one, 1e-2, hidden=(10,), fixed=20),
    Row(Mnemonist(reconstructor=RECONN), 1, all_but_one, 0.6, hidden=(5,), fixed=20),
]
by_attack = pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row.attack).__name__)


def records(row: Row, count: int, *, seed: int, bounds: Bounds) -> Data:
    """Normal rows, clamped to the box; of all classes by turns."""
    x = torch.randn(count, row.features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels = torch.arange(count) % row.classes
    return Data(x=x.clamp(*bounds), y=labels, num_classes=row.classes, name="rows", bounds=bounds)


def revealed(row: Row, bounds: Bounds = FREE) -> Case[Any]:
    private = records(row, row.records, seed=0, bounds=bounds)
    fixed = records(row, row.fixed, seed=1, bounds=bounds)
    net = centred_mlp if row.centred else partial(mlp, activation=nn.ReLU)
    model: nn.Module = net(private.shape, row.classes, hidden=row.hidden)
    initial = {name: p.double() for name, p in torch_params(model, seed=0).items()}
    if row.centred:
        initial["1.mean"] = private.x.mean(0)
    if row.standardises:
        x = torch.cat([fixed.x, private.x])
        model = normalized(model, x.mean(0), x.std(0, correction=0))
        initial = normalized_params(model, initial)
    return row.reveal(train_victim(model, row.training, initial, fixed, private, seed=0))


def run(row: Row, release: Any, *, shadows: int = 1000) -> Tensor:
    attack = row.attack
    if isinstance(attack, ShadowAttack):
        public = records(row, shadows, seed=2, bounds=release.bounds)
        attack = attack.fit(build_bank(release, public, seed=0), seed=0)
    assert isinstance(attack, Attack)
    return attack.run(release, seed=0).x


def errors(found: Tensor, truth: Tensor) -> Tensor:
    """(records,): the distance of the nearest candidate, relative to the record's norm."""
    return torch.cdist(truth, found.to(truth)).amin(1) / truth.norm(dim=1)


def test_every_attack_on_rows_has_one() -> None:
    assert {type(row.attack) for row in ROWS} == set(ATTACKS) - {ConvStationarity, RGAP}  # which are for images


@pytest.mark.slow
@by_attack
def test_standardised_rows_come_back(row: Row) -> None:
    case = revealed(row)
    found = run(row, case.release)
    assert found.isfinite().all()
    assert float(errors(found, case.truth.x).max()) < row.error
    assert float(found.min()) < -0.3
    assert float(found.max()) > 1


@pytest.mark.slow
@by_attack
@pytest.mark.parametrize("bounds", [(0.0, inf), (-1.0, 0.5), (-inf, 0.25)], ids=str)
def test_candidates_lie_in_the_box_of_the_release(row: Row, bounds: Bounds) -> None:
    quick = replace(row, attack=with_search(row.attack, steps=20)) if hasattr(row.attack, "search") else row
    release = revealed(quick, bounds).release
    assert release.bounds == bounds
    found = run(quick, release, shadows=100)
    assert found.isfinite().all()
    assert float(found.min()) >= bounds[0]
    assert float(found.max()) <= bounds[1]
    assert float(found.std()) > 0


def test_a_release_made_by_hand_is_of_records_in_the_unit_box() -> None:
    case = revealed(ROWS[0])
    shown = {name: value for name, value in vars(case.release).items() if name != "bounds"}
    assert Gradient(**shown).bounds == (0.0, 1.0)
    found = FirstLayer().run(Gradient(**shown), seed=0).x
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1


@pytest.mark.parametrize(
    ("bounds", "reconstructed"), [((0.0, 255.0), 255.0), ((-1.0, 1.0), 2.0)], ids=["bytes", "symmetric"]
)
def test_a_search_takes_the_same_steps_in_units_of_any_finite_box(bounds: Bounds, reconstructed: float) -> None:
    """Records in another box, of a net that maps them back to [0, 1], are searched for as those in [0, 1] are."""
    generator = torch.Generator().manual_seed(0)
    unit = Data(x=torch.rand(2, 12, generator=generator).double(), y=torch.tensor([0, 1]), num_classes=2)
    other = replace(unit, x=bounds[0] + reconstructed * unit.x, bounds=bounds)
    net = mlp((12,), 2, hidden=(64,), activation=nn.ReLU)
    initial = {name: p.double() for name, p in torch_params(net, seed=0).items()}
    attack, found = with_search(GradientMatching(prior=None), steps=50), list[Tensor]()
    for data, low, span in ((unit, 0.0, 1.0), (other, bounds[0], reconstructed)):
        model = normalized(net, torch.full((12,), low).double(), torch.full((12,), span).double())
        start = normalized_params(model, initial)
        victim = train_victim(model, SHORT, start, data.take([]), data, seed=0)
        x = attack.run(gradient_at_initial(victim).release, seed=0).x
        found.append((x - low) / span)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-4)
