"""Searches that are stopped and gone on with: the same bits, no step twice, and never another's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from remanence import SGD, Adam, BadInput, Data, FineTuned, Reconstruction, RMSProp, Training, train_victim
from remanence.attacks import Linearised, SimuDy
from remanence.engine import cuda as in_place
from remanence.models import initial_params, mlp
from remanence.releases import KnowsTraining, Victim, all_but_one, fine_tuned
from remanence.search import solver as _search

TRAINING = Training(optimizer=SGD(lr=0.1), epochs=3)
SHORT = SimuDy(candidates=4, steps=6, optimizer=Adam(lr=0.03))
ATTACKS = {
    "adam, with octaves": replace(SHORT, octaves=2),
    "sgd with momentum": replace(SHORT, optimizer=SGD(lr=0.1, momentum=0.9)),
    "plain sgd": replace(SHORT, optimizer=SGD(lr=0.1)),
    "rmsprop": replace(SHORT, optimizer=RMSProp(lr=0.01)),
    "restarts": replace(SHORT, restarts=2, steps=3),
    "in short, then in full": replace(
        SHORT, steps=3, start=replace(SHORT, steps=3, training=replace(TRAINING, epochs=2))
    ),
    "linearised": Linearised(candidates=4, steps=6, optimizer=Adam(lr=0.03)),
}


@pytest.fixture(scope="module")
def victim(digits: Data) -> Victim:
    data = digits.take(slice(0, 5)).to("cpu", torch.float64)
    model = mlp(data.shape, 10, hidden=(16,))
    initial = {name: p.double() for name, p in initial_params(model, seed=0).items()}
    return train_victim(model, TRAINING, initial, data.take([4]), data.take(slice(0, 4)), seed=0)


@pytest.fixture(scope="module")
def release(victim: Victim) -> FineTuned:
    return fine_tuned(victim).release


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[int]]:
    """A list that grows with every step of a search, which is kept at once; the one with this number is broken off."""

    def counted(broken: int | None) -> list[int]:
        taken = list[int]()

        def update(*args: Any) -> None:
            in_place.update(*args)
            taken.append(len(taken))
            if len(taken) == broken:
                raise KeyboardInterrupt

        monkeypatch.setattr(_search, "update", update)
        monkeypatch.setattr(_search, "_KEPT_EVERY", 0.0)
        return taken

    return counted


def same(one: Reconstruction, other: Reconstruction) -> bool:
    assert one.y is not None
    assert other.y is not None
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y) and one.objective == other.objective


@pytest.mark.parametrize("broken", [1, 4, 6])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_search_that_was_stopped_ends_with_the_same_bits(
    release: KnowsTraining, attack: SimuDy | Linearised, broken: int, steps: Callable[..., list[int]], tmp_path: Path
) -> None:
    whole, kept = attack.run(release, seed=0), replace(attack, checkpoints=tmp_path / "made")
    steps(broken)
    with pytest.raises(KeyboardInterrupt):
        kept.run(release, seed=0)
    again = steps(None)
    assert same(kept.run(release, seed=0), whole)
    assert len(again) == 6 - (broken - 1)  # the step that was broken off was not kept
    assert same(kept.run(release, seed=0), whole)
    assert len(again) == 6 - (broken - 1)  # what has ended is read


def test_what_another_left_is_not_met(
    victim: Victim, release: FineTuned, steps: Callable[..., list[int]], tmp_path: Path
) -> None:
    kept = replace(SHORT, checkpoints=tmp_path)
    kept.run(release, seed=0)
    moved = {name: p * 1.001 for name, p in release.final.items()}
    others: list[tuple[SimuDy, KnowsTraining, int]] = [
        (kept, release, 1),
        (replace(kept, tv=0.1), release, 0),
        (kept, replace(release, final=moved), 0),
        (kept, replace(release, training=replace(TRAINING, epochs=2)), 0),
        (kept, all_but_one(replace(victim, private=victim.private.take([0]))).release, 0),
    ]
    for attack, shown, seed in others:
        taken = steps(None)
        found = attack.run(shown, seed=seed)
        assert len(taken) == 6
        assert same(found, replace(attack, checkpoints=None).run(shown, seed=seed))
    assert len(list(tmp_path.iterdir())) == 1 + len(others)


def test_a_damaged_file_is_refused_by_its_name(release: KnowsTraining, tmp_path: Path) -> None:
    kept = replace(SHORT, checkpoints=tmp_path)
    kept.run(release, seed=0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match=rf"cannot use '{path}'"):
        kept.run(release, seed=0)


def test_nothing_tells_where_it_was_kept(tmp_path: Path) -> None:
    assert replace(SHORT, checkpoints=tmp_path) == SHORT
    assert repr(replace(SHORT, checkpoints=tmp_path)) == repr(SHORT)
