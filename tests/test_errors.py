"""Numbers that would let a training or a search do nothing, refused before it is begun."""

from collections.abc import Callable
from math import inf, nan
from typing import cast

import numpy as np
import pytest

from remanence import (
    KKT,
    SGD,
    BadInput,
    ByLoss,
    GradientMatching,
    KKTRun,
    Mnemonist,
    RecoNN,
    SimuDy,
    Stationarity,
    Training,
)
from remanence.errors import unknown
from remanence.training import Adam, AdamW, RMSProp

WRONG: list[tuple[Callable[..., object], str, float]] = [
    (Training, "epochs", -1),
    (Training, "batch_size", 0),
    (Training, "weight_decay", -0.1),
    (SGD, "lr", nan),
    (SGD, "lr", inf),
    (Adam, "lr", -1e-3),
    (AdamW, "weight_decay", nan),
    (RMSProp, "lr", -1),
    (KKT, "iterations", 0),
    (KKT, "candidates", 0),
    (Stationarity, "steps", -1),
    (Stationarity, "restarts", 0),
    (Stationarity, "whitening", -0.5),
    (GradientMatching, "steps", 0),
    (RecoNN, "batch_size", 0),
    (RecoNN, "clip", -1),
    (KKTRun, "alpha", nan),
    (Mnemonist, "masks", -1),
]


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_a_number_below_its_least_is_refused(kind: Callable[..., object], field: str, value: float) -> None:
    with pytest.raises(BadInput, match=rf"`{field}` of \w+ must be [01] or more, got {value}"):
        kind(**{field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Training, "epochs", 1.5),
        (Training, "batch_size", 2.0),
        (SimuDy, "steps", "10"),
        (SimuDy, "segment", nan),
        (SimuDy, "labels", (0, 1.5, 2)),
        (RecoNN, "hidden", (8, 0.5)),
        (RecoNN, "pca", inf),
    ],
)
def test_what_is_counted_must_be_whole(kind: Callable[..., object], field: str, value: object) -> None:
    wrong = value[1] if isinstance(value, tuple) else value
    with pytest.raises(BadInput, match=rf"`{field}` of \w+ must be a whole number, [01] or more, got {wrong!r}"):
        kind(**{field: value})


@pytest.mark.parametrize("value", [0, -1, nan, inf])
@pytest.mark.parametrize(
    ("kind", "field"),
    [(Training, "clip"), (SimuDy, "clip"), (KKT, "norm"), (Stationarity, "norm"), (ByLoss, "fall")],
)
def test_what_would_leave_nothing_is_refused(kind: Callable[..., object], field: str, value: float) -> None:
    with pytest.raises(BadInput, match=rf"`{field}` of \w+ must be above 0, got {value}"):
        kind(**{field: value})


@pytest.mark.parametrize("wrong", [((2.0, 0.1),), ((0.5, 0.0),), ((-0.1, 0.5),)], ids=repr)
def test_a_rate_is_lowered_on_the_way(wrong: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(BadInput, match="`lowered` of ByLoss must hold pairs"):
        ByLoss(lowered=wrong)


@pytest.mark.parametrize(("kind", "field"), [(Stationarity, "whitening"), (SimuDy, "tv"), (SGD, "lr")])
def test_what_is_no_number_is_refused(kind: Callable[..., object], field: str) -> None:
    with pytest.raises(BadInput, match=rf"`{field}` of \w+ must be a number, 0 or more, got 'a'"):
        kind(**{field: "a"})


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (1.0, nan), (2.0,), 2.0, "ab", ("a", "b"), (1.0, inf)], ids=repr)
@pytest.mark.parametrize("kind", [Stationarity, SimuDy])
def test_gates_have_two_sharpnesses(kind: Callable[..., object], wrong: object) -> None:
    with pytest.raises(BadInput, match=r"`sharpness` of \w+ must be a tuple of 2 numbers above 0, got"):
        kind(sharpness=wrong)


@pytest.mark.parametrize("wrong", [0.5, "ab", (0.5, 1.0), ("a",)], ids=repr)
def test_shares_that_are_kept_lie_between_none_and_all(wrong: object) -> None:
    with pytest.raises(BadInput, match="`kept` of Stationarity must be a tuple of numbers between 0 and 1, got"):
        Stationarity(kept=wrong)  # type: ignore[arg-type]


def test_entries_and_numbers_of_numpy_are_looked_at_alike() -> None:
    with pytest.raises(BadInput, match="`hidden` of RecoNN must be 1 or more, got 0"):
        RecoNN(hidden=(8, 0))
    with pytest.raises(BadInput, match="`labels` of SimuDy must be 0 or more, got -1"):
        SimuDy(labels=(0, -1))
    assert Training(epochs=cast(int, np.int64(3))).epochs == 3
    assert SimuDy(sharpness=cast("tuple[float, float]", (np.float32(2), np.int64(40)))).sharpness == (2, 40)
    assert SGD(lr=1).lr == 1


def test_a_wrong_name_is_told_those_that_are_near() -> None:
    labels = ["100 images, whitened", "100 images, to convergence", "100 images"]
    known = "known: `100 images`; `100 images, to convergence`; `100 images, whitened`"
    assert str(unknown("cell", "whitned", labels)) == (
        f"unknown cell `whitned`: did you mean `100 images, whitened`? {known}"
    )
    assert str(unknown("cell", "100 Images,", labels)) == (
        "unknown cell `100 Images,`: did you mean one of `100 images, to convergence`; `100 images, whitened`? " + known
    )
    assert str(unknown("cell", "", labels)) == f"unknown cell ``: {known}"
    assert str(unknown("scale", "big", ("small", "paper"))) == "unknown scale `big`: known: paper, small"


def test_many_names_are_left_to_the_command_that_shows_them() -> None:
    many = [f"paper.figure{i}" for i in range(40)]
    assert str(unknown("recipe", "qqq", many, shown_by="remanence list")) == (
        "unknown recipe `qqq`: `remanence list` shows all"
    )
    assert "known: paper.figure0, " in str(unknown("recipe", "qqq", many))
    near = str(unknown("recipe", "paper", many)).partition("known: ")[0]
    assert near.count("`paper.figure") == 12
    assert near.endswith(" or 28 more? ")


def test_kkt_needs_a_run() -> None:
    with pytest.raises(BadInput, match="`runs` of KKT must hold one or more"):
        KKT(runs=())
