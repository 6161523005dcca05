"""Checkpoints of attacks: each search has a file of its own, which follows from all that determines its values."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulating import EASY, NETS, some, victim

from remanence import Adam, Reconstruction
from remanence.attacks import (
    KKT,
    GradientMatching,
    KKTRun,
    Linearised,
    Rounds,
    Search,
    SimuDy,
    Stationarity,
    TotalVariation,
    with_search,
)
from remanence.releases import KnowsTraining, all_but_one, fine_tuned, gradient_at_initial, weights_only
from remanence.search import solver

SHORT = SimuDy(candidates=4, search=Search(optimizer=Adam(lr=0.03), steps=4), whitening=None, surrogate=None)
MADE = victim(NETS["mlp with elu"], some(4), EASY)
RELEASE = fine_tuned(MADE).release


def same(one: Reconstruction, other: Reconstruction) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and one.objective == other.objective


SEARCHES = {
    "simudy": (SHORT, RELEASE, 1),
    "simudy, restarts": (with_search(SHORT, restarts=2), RELEASE, 2),
    "simudy from another": (
        replace(SHORT, start=replace(SHORT, simulation=replace(SHORT.simulation, training=replace(EASY, epochs=2)))),
        RELEASE,
        2,
    ),
    "linearised": (with_search(Linearised(candidates=4), steps=4), RELEASE, 1),
    "kkt, halved": (
        with_search(KKT(candidates=4, runs=(KKTRun(), KKTRun(init_std=0.1))), steps=4, halvings=1),
        weights_only(MADE).release,
        1,
    ),
    "stationarity, two rounds": (
        with_search(Stationarity(candidates=4, rounds=Rounds(keep_fractions=(0.5,))), steps=4),
        weights_only(victim(NETS["mlp with relu"], some(4), EASY)).release,
        2,
    ),
    "gradient matching": (with_search(GradientMatching(), steps=4), gradient_at_initial(MADE).release, 3),
}


@pytest.mark.parametrize(("attack", "release", "files"), SEARCHES.values(), ids=SEARCHES)
def test_an_attack_is_not_searched_twice(
    attack: SimuDy | Linearised, release: KnowsTraining, files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, stored = attack.run(release, seed=0), with_search(attack, checkpoints=tmp_path / "made")
    assert stored == attack
    assert repr(stored) == repr(attack)
    assert same(stored.run(release, seed=0), expected)
    assert len(list((tmp_path / "made").iterdir())) == files
    monkeypatch.setattr(solver.Stack, "step", None)
    assert same(stored.run(release, seed=0), expected)


@pytest.mark.slow
def test_what_another_search_left_is_not_loaded(tmp_path: Path) -> None:
    stored = with_search(SHORT, checkpoints=tmp_path)
    stored.run(RELEASE, seed=0)
    others: list[tuple[SimuDy, KnowsTraining, int]] = [
        (stored, RELEASE, 1),
        (replace(stored, prior=TotalVariation(weight=0.1)), RELEASE, 0),
        (stored, replace(RELEASE, final={name: p * 1.001 for name, p in RELEASE.final.items()}), 0),
        (stored, replace(RELEASE, training=replace(EASY, epochs=2)), 0),
        (stored, all_but_one(replace(MADE, private=MADE.private.take([0]))).release, 0),
    ]
    for attack, release, seed in others:
        assert same(attack.run(release, seed=seed), with_search(attack, checkpoints=None).run(release, seed=seed))
    assert len(list(tmp_path.iterdir())) == 1 + len(others)
